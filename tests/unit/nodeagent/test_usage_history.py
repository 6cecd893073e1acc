"""What the node agent remembers of use: bounded, and right to a sixteenth."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.nodeagent import usage_history
from gpushare.nodeagent.isolation.judging import Holder, Use
from gpushare.nodeagent.usage_history import UsageHistory, most_in, step_of

quick = settings(max_examples=200, deadline=None, derandomize=True, database=None)


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


def use(mib: int, percent: int = 0, *, pod: str = "a", container: str = "main", gpu: str = "GPU-0") -> Use:
    return Use(Holder(f"default/{pod}", f"uid-{pod}", container, gpu, 4096, 30), mib, percent, [1])


def told(history: UsageHistory) -> list[dict[str, Any]]:
    answer = json.loads(history.answer())
    assert answer["version"] == 1
    assert answer["since"] == 1000
    return list(answer["containers"])


def test_peak_quantile_and_last_are_told_for_each_container_and_gpu() -> None:
    clock = Wall()
    history = UsageHistory(clock)
    assert told(history) == []
    for second in range(100):
        clock.now_s = 1000 + second
        history.take([use(3000 if second == 7 else 1000, 90 if second < 3 else 20), use(5, gpu="GPU-1")])
    first, second = told(history)
    assert first == {
        "namespace": "default",
        "pod": "a",
        "uid": "uid-a",
        "container": "main",
        "gpu": "GPU-0",
        "looks": 100,
        "first": 1000,
        "last": 1099,
        "givenMiB": 4096,
        "peakMiB": 3000,
        "p95MiB": 1023,
        "lastMiB": 1000,
        "givenCorePercent": 30,
        "peakPercent": 90,
        "p95Percent": 20,
    }
    assert (second["gpu"], second["peakMiB"], second["p95MiB"]) == ("GPU-1", 5, 5)


def test_who_was_not_seen_for_longest_is_forgotten_first() -> None:
    history = UsageHistory(Wall())
    for number in range(usage_history.MOST_KEPT):
        history.take([use(1, pod=f"p{number}")])
    history.take([use(1, pod="p0")])
    history.take([use(1, pod="more"), use(1, pod="most")])
    kept = {one["pod"] for one in told(history)}
    assert len(kept) == usage_history.MOST_KEPT
    assert {"p0", "more", "most"} <= kept
    assert not {"p1", "p2"} & kept


@quick
@given(st.integers(0, 1 << 24))
def test_a_step_holds_what_lies_in_it_to_a_sixteenth(mib: int) -> None:
    step = step_of(mib)
    assert mib <= most_in(step) <= mib + mib // 16
    assert step_of(most_in(step)) == step
    assert step_of(most_in(step) + 1) == step + 1


@quick
@given(st.lists(st.tuples(st.integers(0, 1 << 17), st.integers(0, 140)), min_size=1, max_size=200))
def test_the_quantile_is_that_of_the_looks(looks: list[tuple[int, int]]) -> None:
    history = UsageHistory(Wall())
    for mib, percent in looks:
        history.take([use(mib, percent)])
    (one,) = told(history)
    exact = sorted(mib for mib, _ in looks)[-(-len(looks) * 95 // 100) - 1]
    assert exact <= one["p95MiB"] <= min(exact + exact // 16, one["peakMiB"])
    assert one["peakMiB"] == max(mib for mib, _ in looks)
    percents = sorted(min(percent, 100) for _, percent in looks)
    assert one["p95Percent"] == percents[-(-len(looks) * 95 // 100) - 1]
    assert one["peakPercent"] == percents[-1]
