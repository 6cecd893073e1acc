"""The schedule of turns: compared with the model step by step, and judged by its effect over seconds of simulated time."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.randomized import rounds
from tests.unit.isolation.building import build
from tests.unit.isolation.schedule_model import MS, NEVER, Class, Model, Page

PLACES: Final = 4
Ask = Callable[[str], str]


def conversation(name: str) -> Iterator[Ask]:
    """A program that answers lines; those without a question mark get no answer."""
    with subprocess.Popen(
        [build("programs") / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(text: str) -> str:
            process.stdin.write(text.rstrip("?") + "\n")
            if not text.endswith("?"):
                return ""
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, "the program exited, which it must not for any input"
            return answer

        yield ask
        process.stdin.close()
        assert process.wait(10) == 0


@pytest.fixture(scope="module")
def schedule() -> Iterator[Ask]:
    yield from conversation("schedule_check")


@pytest.fixture(scope="module")
def simulation() -> Iterator[Ask]:
    yield from conversation("schedule_simulation")


# --- against the model ------------------------------------------------------------------------------------------

PERCENT = st.one_of(st.integers(1, 100), st.sampled_from([10, 30, 50, 90, 100]))
SPAN = st.one_of(
    st.integers(0, 3 * MS),
    st.integers(0, 30 * MS),
    st.integers(0, 2000 * MS),
    st.sampled_from([0, MS, 8 * MS]),
)
WORD = st.integers(0, 2**64 - 1)


@dataclass(frozen=True)
class Change:
    """An event of a container: it is added, its page or its share changes, or it is removed."""

    what: str
    place: int
    percent: int
    borrows: bool
    class_: Class
    spent: int
    busy: int
    new_request: bool
    wants: bool
    noise: int


CHANGES = st.builds(
    Change,
    what=st.sampled_from(["admit", "dismiss", "change", "noise", *["page"] * 12]),
    place=st.integers(0, PLACES - 1),
    percent=PERCENT,
    borrows=st.booleans(),
    class_=st.sampled_from(Class),
    spent=st.one_of(SPAN, st.just(0), st.integers(-20 * MS, 0)),
    busy=SPAN,
    new_request=st.booleans(),
    wants=st.booleans(),
    noise=WORD,
)
HISTORIES = st.lists(st.tuples(SPAN, st.booleans(), st.lists(CHANGES, max_size=4)), max_size=60)


def happen(change: Change, model: Model, pages: dict[int, Page], ask: Ask) -> None:
    place, page = change.place, pages[change.place]
    there = place in model.containers
    if change.what == "admit" and not there:
        pages[place] = Page()
        model.admit(place, change.percent, change.borrows, 0, change.class_)
        ask(f"admit {place} {change.percent} {int(change.borrows)} 0 {change.class_}")
    elif change.what == "dismiss" and there:
        model.dismiss(place)
        ask(f"dismiss {place}")
    elif change.what == "change" and there:
        model.change(place, change.percent, change.borrows, change.class_)
        ask(f"change {place} {change.percent} {int(change.borrows)} {change.class_}")
    elif change.what == "page":
        page.used = (page.used + change.spent) % 2**64
        page.busy_until = model.now + change.busy
        page.requests = (page.requests + change.new_request) % 2**32
        page.wants = change.wants
    elif change.what == "noise":
        page.used, page.busy_until = change.noise, (change.noise * 7919) % 2**64


@settings(max_examples=rounds(150, soak=600), deadline=None, suppress_health_check=list(HealthCheck))
@given(HISTORIES)
def test_every_step_equals_the_models(schedule: Ask, history: list[tuple[int, bool, list[Change]]]) -> None:
    model = Model(now=1000 * MS)
    pages = {place: Page() for place in range(PLACES)}
    schedule(f"begin {model.now}")
    due = NEVER
    for span, when_due, changes in history:
        for change in changes:
            happen(change, model, pages, schedule)
        now = due if when_due and model.now < due < model.now + 5000 * MS else model.now + span
        due, granted = model.step(now, pages)
        words = " ".join(
            f"{place} {page.used} {page.busy_until} {page.requests} {int(page.wants)}"
            for place, page in pages.items()
            if place in model.containers
        )
        first, *rest = schedule(f"step {now} {words}?").split()
        assert int(first) == due
        grants = {int(key): tuple(map(int, words)) for key, *words in (word.split(":") for word in rest)}
        assert grants == granted
        turns = [place for place, (until, *_) in granted.items() if until > now]
        visitors = [place for place, one in model.containers.items() if one.visits_since is not None]
        assert len(set(turns) - set(visitors)) <= 1, "a turn is one container's"
        assert due > now or due == NEVER or model.turn, "nothing to do, and no pause"


# --- simulated effect -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tenant:
    """A container in the simulation; lengths in nanoseconds, moments in seconds."""

    percent: int
    borrows: bool = False
    kernel: int = 50_000
    gap: int = 0
    late: int = 100_000
    start: float = 0
    end: float = 1000
    stop: float = 0
    lies: int = 0
    class_: Class = Class.INFERRED


@dataclass(frozen=True)
class Had:
    """Percent of the GPU's time that a container had from its second second on, and latencies of kernels that it waited for, in
    nanoseconds from their intended launch."""

    share: float
    p50: int
    p99: int


def run(ask: Ask, *tenants: Tenant, seconds: int = 7, late: int = 100_000) -> list[Had]:
    """GPU time and latencies of each tenant."""
    ask(f"run {seconds} 20000 1 {late}")
    for it in tenants:
        moments = [int(moment * 1e9) for moment in (it.start, it.end, it.stop)]
        times = " ".join(map(str, moments))
        ask(
            f"tenant {it.percent} {int(it.borrows)} {it.kernel} {it.gap} {it.late} {times} {it.lies} {it.class_}"
        )
    words = [int(word) for word in ask("go?").split()]
    return [
        Had(share / 100, p50 * 1000, p99 * 1000)
        for share, p50, p99 in zip(words[1::4], words[2::4], words[3::4], strict=True)
    ]


def shares(ask: Ask, *tenants: Tenant, seconds: int = 7, late: int = 100_000) -> list[float]:
    """Percent of the GPU's time that each had."""
    return [had.share for had in run(ask, *tenants, seconds=seconds, late=late)]


KERNELS = st.sampled_from([50_000, 1_000_000, 20_000_000])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(PERCENT, KERNELS, st.integers(20_000, 1_000_000))
def test_a_single_container_gets_its_share(simulation: Ask, percent: int, kernel: int, late: int) -> None:
    [share] = shares(simulation, Tenant(percent, kernel=kernel, late=late), late=late)
    assert share == pytest.approx(percent, abs=2)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(5, 45), KERNELS, st.sampled_from(Class)), min_size=2, max_size=4))
def test_containers_together_get_their_shares(simulation: Ask, wanted: list[tuple[int, int, Class]]) -> None:
    total = sum(percent for percent, *_ in wanted)
    tenants = [
        Tenant(percent * 90 // max(total, 90), kernel=kernel, class_=class_)
        for percent, kernel, class_ in wanted
    ]
    for tenant, share in zip(tenants, shares(simulation, *tenants), strict=True):
        assert share == pytest.approx(tenant.percent, abs=5)


@pytest.mark.parametrize("kernel", [50_000, 20_000_000, 200_000_000])
def test_long_kernels_of_one_container_take_nothing_from_another(simulation: Ask, kernel: int) -> None:
    first, second = shares(simulation, Tenant(10, kernel=200_000_000), Tenant(90, kernel=kernel), seconds=21)
    assert first == pytest.approx(10, abs=5)
    assert second == pytest.approx(90, abs=5)


def test_kernels_of_seconds_are_paid_for_by_their_own_container(simulation: Ask) -> None:
    first, second = shares(simulation, Tenant(10, kernel=3_000_000_000), Tenant(90), seconds=61)
    assert first == pytest.approx(10, abs=5)
    assert second == pytest.approx(90, abs=5)


def test_idle_time_is_used_only_by_containers_that_may_borrow(simulation: Ask) -> None:
    assert shares(simulation, Tenant(20, borrows=True)) == [pytest.approx(100, abs=2)]
    borrower, hard = shares(simulation, Tenant(20, borrows=True), Tenant(50))
    assert (borrower, hard) == (pytest.approx(50, abs=3), pytest.approx(50, abs=2))


def test_borrowed_time_is_paid_back(simulation: Ask) -> None:
    late = Tenant(70, start=3)
    assert shares(simulation, Tenant(30, borrows=True), late, seconds=8)[1] == pytest.approx(70, abs=3)


@pytest.mark.parametrize("lies", [1, 2, 3])
def test_a_container_that_lies_takes_nothing_from_the_others(simulation: Ask, lies: int) -> None:
    _, *others = shares(simulation, Tenant(30, lies=lies), Tenant(40), Tenant(30, kernel=1_000_000))
    assert others[0] >= 36
    assert others[1] >= 26


@pytest.mark.parametrize("class_", Class)
@pytest.mark.parametrize("moment", [2.0, 2.003, 2.007, 2.0115, 2.0171])
def test_a_stopped_container_does_not_block_others(simulation: Ask, moment: float, class_: Class) -> None:
    _, other = shares(simulation, Tenant(30, stop=moment, class_=class_), Tenant(70))
    assert other == pytest.approx(70, abs=3)


# --- return after a pause ---------------------------------------------------------------------------------------

#: The GPU's own slices, as on an H200 (some 2 ms).
SLICE: Final = 2 * MS
KERNEL: Final = 1_600_000


@pytest.mark.parametrize("percent", [50, 30, 20])
def test_a_service_below_its_share_waits_for_no_turn(simulation: Ask, percent: int) -> None:
    service, loop = run(
        simulation, Tenant(percent, kernel=KERNEL, gap=10 * MS), Tenant(100 - percent, kernel=KERNEL)
    )
    # Without isolation it has every other slice.
    assert service.p99 <= KERNEL + SLICE + MS // 10
    assert loop.share >= 0.95 * (100 - percent)
    assert loop.share <= 100 - percent + 2


def test_services_do_not_wait_for_each_other(simulation: Ask) -> None:
    services = [Tenant(30, kernel=KERNEL, gap=10 * MS + MS // 2 * number) for number in range(3)]
    assert max(had.p99 for had in run(simulation, *services)) <= 2 * KERNEL


def test_a_service_with_long_work_has_the_gpu_for_itself(simulation: Ask) -> None:
    service, loop = run(
        simulation, Tenant(40, kernel=20 * MS, gap=50 * MS), Tenant(60, kernel=KERNEL), seconds=21
    )
    assert service.p50 <= 21 * MS
    assert loop.share >= 0.95 * 60


def test_services_that_fill_their_shares_take_nothing_from_a_loop(simulation: Ask) -> None:
    services = [Tenant(25, kernel=KERNEL, gap=MS) for _ in range(3)]
    *others, loop = run(simulation, *services, Tenant(25, kernel=KERNEL), seconds=11)
    assert loop.share == pytest.approx(25, abs=2)
    assert max(had.share for had in others) <= 27


def test_a_service_above_its_share_has_its_share(simulation: Ask) -> None:
    service, loop = run(
        simulation, Tenant(10, kernel=KERNEL, gap=5 * MS), Tenant(90, kernel=KERNEL), seconds=11
    )
    assert service.share == pytest.approx(10, abs=2)
    assert loop.share == pytest.approx(90, abs=2)


@pytest.mark.parametrize("class_", Class)
def test_next_to_short_kernels_no_container_gets_more_than_its_share(simulation: Ask, class_: Class) -> None:
    service = Tenant(30, kernel=100_000, gap=400_000, class_=class_)
    _, loop = run(simulation, service, Tenant(70, kernel=KERNEL, class_=Class.BATCH), seconds=11)
    assert loop.share == pytest.approx(70, abs=2)


# --- classes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [50_000, KERNEL, 20 * MS])
@pytest.mark.parametrize("percent", [5, 30, 60])
def test_without_pauses_latency_and_batch_have_their_shares(
    simulation: Ask, percent: int, kernel: int
) -> None:
    latency, batch = shares(
        simulation,
        Tenant(percent, kernel=kernel, class_=Class.LATENCY),
        Tenant(100 - percent, kernel=KERNEL, class_=Class.BATCH),
        seconds=11,
    )
    assert latency == pytest.approx(percent, abs=2)
    assert batch == pytest.approx(100 - percent, abs=2)


@pytest.mark.parametrize("gap", [0, MS // 10, MS, 5 * MS])
def test_a_latency_container_cannot_take_more_than_its_percentage(simulation: Ask, gap: int) -> None:
    latency, other = shares(
        simulation, Tenant(10, kernel=KERNEL, gap=gap, class_=Class.LATENCY), Tenant(50), seconds=11
    )
    assert latency <= 11
    assert other == pytest.approx(50, abs=2)


def test_class_latency_is_no_worse_for_a_service_than_the_inferred_class(simulation: Ask) -> None:
    had = {
        class_: run(
            simulation,
            Tenant(30, kernel=KERNEL, gap=10 * MS, class_=class_),
            Tenant(70, kernel=KERNEL, class_=Class.BATCH),
        )[0]
        for class_ in Class
    }
    assert had[Class.LATENCY].p99 <= had[Class.INFERRED].p99
    # It has turns alone: it waits for the end of the other's.
    assert had[Class.BATCH].p50 >= 20 * MS


@pytest.mark.parametrize("class_", [Class.INFERRED, Class.LATENCY])
def test_services_that_fill_their_shares_wait_for_no_turn(simulation: Ask, class_: Class) -> None:
    services = [Tenant(25, kernel=KERNEL, gap=MS, class_=class_) for _ in range(3)]
    *had, loop = run(simulation, *services, Tenant(25, kernel=KERNEL, class_=Class.BATCH), seconds=11)
    assert loop.share == pytest.approx(25, abs=2)
    # Four slices at most, where turns alone would be four of 50 ms.
    assert max(one.p99 for one in had) <= 4 * SLICE


def test_a_service_above_its_share_waits_less_with_class_latency(simulation: Ask) -> None:
    inferred, latency = (
        run(
            simulation,
            Tenant(10, kernel=KERNEL, gap=5 * MS, class_=class_),
            Tenant(90, kernel=KERNEL, class_=Class.BATCH),
            seconds=11,
        )[0]
        for class_ in (Class.INFERRED, Class.LATENCY)
    )
    assert latency.p99 < inferred.p99 / 2


def test_work_that_ends_sooner_than_reported_is_followed_by_a_pause(simulation: Ask) -> None:
    """Next to a loop a kernel takes several times its time, and is estimated to take even longer."""
    service, loop = run(
        simulation, Tenant(30, kernel=50_000, gap=2 * MS), Tenant(70, kernel=KERNEL), seconds=11
    )
    assert service.p99 <= SLICE + MS // 2
    assert loop.share == pytest.approx(70, abs=2)


def test_a_visit_is_not_lengthened_while_it_lasts(schedule: Ask) -> None:
    schedule(f"begin {1000 * MS}")
    schedule(f"admit 0 50 0 0 {Class.LATENCY}")
    schedule(f"step {1000 * MS} 0 0 0 0 0?")
    visits = [
        schedule(f"step {(1200 + at) * MS} 0 {at * MS} {(1201 + at) * MS} 1 1?").split()[1]
        for at in range(20)
    ]
    assert set(visits) == {f"0:{1250 * MS}:{50 * MS}:0:0"}


def test_one_visit_follows_the_other_immediately(schedule: Ask) -> None:
    schedule(f"begin {1000 * MS}")
    schedule(f"admit 0 100 0 0 {Class.LATENCY}")
    schedule(f"step {1000 * MS} 0 0 0 0 0?")
    schedule(f"step {1200 * MS} 0 0 0 1 1?")
    # 50 ms are over, and as much was saved up.
    state = schedule(f"step {1250 * MS} 0 {49 * MS} {1275 * MS} 2 1?").split()[1]
    assert state == f"0:{1300 * MS}:{99 * MS}:0:1"
