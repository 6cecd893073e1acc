"""What the node agent remembers of use: bounded, and accurate to a sixteenth."""

import itertools
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.nodeagent.isolation.storage import usage_file
from gpushare.nodeagent.isolation.storage.files import USAGE, Claimed
from gpushare.nodeagent.isolation.watchdog.violations import Holder, Use
from gpushare.nodeagent.observability import usage_history
from gpushare.nodeagent.observability.usage_history import UsageHistory, most_in, step_of
from tests.randomized import rounds

quick = settings(max_examples=rounds(100, soak=200), deadline=None)


class Wall:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 1000

    def monotonic(self) -> float:
        raise AssertionError("it is the time of day that counts")

    def time_ns(self) -> int:
        return self.now_s * 10**9

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits")


def use(
    mib: int,
    percent: int = 0,
    *,
    pod: str = "a",
    container: str = "main",
    gpu: str = "GPU-0",
    unreported: int = 0,
) -> Use:
    return Use(
        Holder(f"default/{pod}", f"uid-{pod}", container, gpu, 4096, 30), mib, percent, [1], unreported
    )


def reported(history: UsageHistory, query: str = "") -> list[dict[str, Any]]:
    answer = json.loads(history.answer(query))
    assert answer["version"] == 1
    assert answer["since"] == 1000
    return list(answer["containers"])


def test_peak_quantile_and_last_are_reported_for_each_container_and_gpu() -> None:
    clock = Wall()
    history = UsageHistory(clock)
    assert reported(history) == []
    for second in range(100):
        clock.now_s = 1000 + second
        history.take([use(3000 if second == 7 else 1000, 90 if second < 3 else 20), use(5, gpu="GPU-1")])
    first, second = reported(history)
    assert first == {
        "namespace": "default",
        "pod": "a",
        "uid": "uid-a",
        "container": "main",
        "gpu": "GPU-0",
        "looks": 100,
        "untoldLooks": 0,
        "first": 1000,
        "last": 1099,
        "workSeconds": 99,
        "waitedSeconds": 0,
        "givenMiB": 4096,
        "peakMiB": 3000,
        "p95MiB": 1023,
        "lastMiB": 1000,
        "givenCorePercent": 30,
        "peakPercent": 90,
        "p95Percent": 20,
    }
    assert (second["gpu"], second["peakMiB"], second["p95MiB"]) == ("GPU-1", 5, 5)


def test_the_container_not_seen_for_longest_is_forgotten_first() -> None:
    history = UsageHistory(Wall())
    for number in range(usage_history.MOST_KEPT):
        history.take([use(1, pod=f"p{number}")])
    history.take([use(1, pod="p0")])
    history.take([use(1, pod="more"), use(1, pod="most")])
    pods = {one["pod"] for one in reported(history)}
    assert len(pods) == usage_history.MOST_KEPT
    assert {"p0", "more", "most"} <= pods
    assert not {"p1", "p2"} & pods


@quick
@given(st.integers(0, 1 << 24))
def test_a_histogram_step_is_accurate_to_a_sixteenth(mib: int) -> None:
    step = step_of(mib)
    assert mib <= most_in(step) <= mib + mib // 16
    assert step_of(most_in(step)) == step
    assert step_of(most_in(step) + 1) == step + 1


def p95_at_work(percents: Iterable[int]) -> int:
    """Naive: of the samples in which it was computing."""
    found = sorted(min(percent, 100) for percent in percents if percent)
    return found[-(-len(found) * 95 // 100) - 1] if found else 0


looks_of_pods = st.lists(
    st.tuples(
        st.sampled_from((2, 2, 30, 400, 900, 5000)),
        st.dictionaries(
            st.sampled_from("abc"), st.tuples(st.integers(0, 40_000), st.integers(0, 100)), max_size=3
        ),
    ),
    min_size=1,
    max_size=120,
)


@settings(quick, max_examples=rounds(50, soak=150))
@given(looks_of_pods, st.integers(1, 50_000))
def test_a_window_covers_every_look_since_the_reported_moment_and_no_other(
    looks: list[tuple[int, dict[str, tuple[int, int]]]], window_s: int
) -> None:
    clock = Wall()
    history = UsageHistory(clock)
    seen: list[tuple[int, str, int, int]] = []
    for passed_s, uses in looks:
        clock.now_s += passed_s
        history.take([use(mib, percent, pod=pod) for pod, (mib, percent) in uses.items()])
        seen += [(clock.now_s, pod, *used) for pod, used in uses.items()]

    for query, reach_s in (
        ("timeout=5s", 1000),
        (f"timeout=5s&window={window_s}", max(clock.now_s - window_s, 1000)),
    ):
        answer = json.loads(history.answer(query))
        # All of the window, and not much more: slices grow no longer than what is younger than they are.
        assert 1000 <= answer["from"] <= reach_s
        naive: dict[str, list[tuple[int, int, int]]] = {}
        for at_s, pod, mib, percent in seen:
            if at_s >= answer["from"]:
                naive.setdefault(pod, []).append((at_s, mib, percent))
        assert {one["pod"] for one in answer["containers"]} == set(naive)
        for one in answer["containers"]:
            its = naive[one["pod"]]
            place = -(-len(its) * 95 // 100) - 1
            exact = sorted(mib for _, mib, _ in its)[place]
            assert (one["looks"], one["first"], one["last"]) == (len(its), its[0][0], its[-1][0])
            assert (one["peakMiB"], one["lastMiB"]) == (max(mib for _, mib, _ in its), its[-1][1])
            assert exact <= one["p95MiB"] <= exact + exact // 16
            assert one["p95Percent"] == p95_at_work(percent for *_, percent in its)
            assert one["peakPercent"] == max(percent for *_, percent in its)


@pytest.mark.no_cover  # 260,000 looks: would double the duration
def test_the_memory_is_bounded_and_old_slices_are_longer() -> None:
    clock = Wall()
    history = UsageHistory(clock)
    for look in range(6 * 24 * 30):
        clock.now_s = 1000 + 300 * look
        history.take([use(1000 + look % 7, look % 100, pod=f"p{number}") for number in range(60)])
    begins = [one.begin_ns // 10**9 for one in history._slices]
    assert sum(len(one.tracks) for one in history._slices) <= usage_history.MOST_TRACKS + 60
    lengths = [end - begin for begin, end in itertools.pairwise(begins)]
    assert len(begins) > 10
    assert lengths[0] > 20 * lengths[-1]
    # The excess of a window over the request is a part of it.
    for window_s in (3600, 6 * 3600, 86400):
        reached_s = clock.now_s - json.loads(history.answer(f"window={window_s}"))["from"]
        assert window_s <= reached_s <= 2 * window_s + 1200
    assert reported(history)[0]["looks"] == 6 * 24 * 30


@pytest.mark.parametrize(
    "query", ["window", "window=0", "window=-1", "window=1h", "timeout=5s&window=x", "window=" + "9" * 20]
)
def test_an_invalid_query_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match="a window is a whole number of seconds from 1"):
        UsageHistory(Wall()).answer(query)


class Waits:
    """A container's directory, in which its library counts how long threads have waited."""

    def __init__(self, folder: Path, core_percent: int = 30) -> None:
        self.folder = folder
        self.claimed = Claimed("default/a", "uid-a", "main", "GPU-0", 4096, "ids", core_percent)

    def record(self, waited_s: float) -> None:
        text = bytearray(usage_file._GPUS_AT + usage_file._GPU_BYTES)
        usage_file._HEADER.pack_into(text, 0, usage_file._MAGIC, usage_file._VERSION)
        struct.pack_into("<QQQ", text, usage_file._PAGE + usage_file._TURN_AT, 0, 0, int(waited_s * 1e9))
        (self.folder / USAGE).write_bytes(text)

    def directories(self) -> list[tuple[Claimed, Path]]:
        return [(self.claimed, self.folder)]


def test_waiting_time_is_that_of_the_window_and_not_from_before(tmp_path: Path) -> None:
    clock, waits = Wall(), Waits(tmp_path)
    history = UsageHistory(clock, waits.directories)
    waits.record(5000)  # before this agent was there
    counted_s = 5000.0
    for look in range(1801):
        # Half of the first half hour, a tenth of the second.
        clock.now_s = 1000 + 2 * look
        waits.record(counted_s)
        history.take([use(1000, 30), use(1000, 30, container="")])
        counted_s += 1.0 if look < 900 else 0.2

    first, pods = reported(history)
    assert (first["workSeconds"], first["waitedSeconds"]) == (3600, pods["waitedSeconds"])
    assert 1075 <= first["waitedSeconds"] <= 1085
    late = reported(history, "window=1200")[0]
    assert abs(late["waitedSeconds"] / late["workSeconds"] - 0.1) < 0.02

    # It starts again and counts from nothing; two threads wait at once; nothing can be read.
    waits.record(3)
    clock.now_s += 10
    assert reported(history)[0]["waitedSeconds"] == first["waitedSeconds"] + 3
    waits.record(1000)
    clock.now_s += 10
    assert reported(history)[0]["waitedSeconds"] == first["waitedSeconds"] + 13


def test_looks_without_reported_memory_are_counted() -> None:
    clock = Wall()
    history = UsageHistory(clock)
    assert json.loads(history.answer())["looked"] == 0
    for look in range(50):
        clock.now_s = 1000 + 20 * look
        history.take([use(300 if look % 2 else 700, unreported=look % 2)])
    (one,) = reported(history)
    assert (one["looks"], one["untoldLooks"], one["peakMiB"]) == (50, 25, 700)
    assert json.loads(history.answer())["looked"] == clock.now_s


def test_idle_moments_are_no_time_at_work(tmp_path: Path) -> None:
    clock, waits = Wall(), Waits(tmp_path)
    history = UsageHistory(clock, waits.directories)
    for look in range(1000):
        # In 4 of 100 looks it computes, and waits for half of that time.
        clock.now_s = 1000 + 5 * look
        waits.record(2.5 * (look // 25))
        history.take([use(1000, 80 if look % 25 == 24 else 0)])
    (one,) = reported(history)
    assert (one["looks"], one["peakPercent"], one["p95Percent"]) == (1000, 80, 80)
    assert one["workSeconds"] == 40 * 5
    assert abs(one["waitedSeconds"] / one["workSeconds"] - 0.5) < 0.02


def test_a_container_without_a_compute_request_waits_for_none_and_long_silence_is_no_work(
    tmp_path: Path,
) -> None:
    clock, waits = Wall(), Waits(tmp_path, core_percent=0)
    waits.record(0)
    history = UsageHistory(clock, waits.directories)
    history.take([use(1, 5)])
    waits.record(100)
    clock.now_s += 61
    history.take([use(1, 5)])
    (one,) = reported(history)
    assert (one["workSeconds"], one["waitedSeconds"]) == (0, 0)


def test_waiting_before_a_container_was_first_seen_is_not_counted(
    tmp_path: Path,
) -> None:
    clock, waits = Wall(), Waits(tmp_path)
    history = UsageHistory(clock, waits.directories)
    history.take([])
    clock.now_s += 30
    waits.record(20)
    history.take([use(1, 5)])
    clock.now_s += 10
    waits.record(27)
    history.take([use(1, 5)])
    (one,) = reported(history)
    assert (one["workSeconds"], one["waitedSeconds"]) == (10, 7)
