"""What containers may use of a GPU above their request, and what is reclaimed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.nodeagent.isolation.burst.plan import Sharer, plan, short_mib, victims

GIB = 1024


def sharer(
    key: str = "a", request: int = 6, limit: int = 15, used: int = 0, allowed: int = 0, held: int = 0
) -> Sharer:
    """Amounts in GiB."""
    return Sharer(key, request * GIB, limit * GIB, used * GIB, allowed * GIB, held * GIB)


def planned(free: int, *sharers: Sharer) -> list[float]:
    return [mib / GIB for mib in plan(free * GIB, sharers).values()]


def test_a_single_container_may_use_all_that_is_free_up_to_its_limit() -> None:
    assert planned(9, sharer()) == [15]
    assert planned(9, sharer(limit=10)) == [10]
    assert planned(2, sharer()) == [8]


def test_several_get_equal_parts_of_the_unused_memory() -> None:
    assert planned(6, sharer("a", 3), sharer("b", 3)) == [6, 6]
    # What one cannot use goes to the others.
    assert planned(6, sharer("a", 3, limit=4), sharer("b", 3)) == [4, 8]


def test_memory_used_above_the_request_stays_until_a_request_needs_it() -> None:
    assert planned(6, sharer("a", 3, used=7, allowed=7), sharer("b", 3)) == [8, 4]


def test_memory_taken_from_one_goes_to_the_next_once_a_sample_shows_it_free() -> None:
    before = sharer("a", 3, allowed=9), sharer("b", 3)
    assert planned(6, *before) == [6, 3]
    assert planned(6, sharer("a", 3, allowed=6, held=9), sharer("b", 3, allowed=3)) == [6, 3]
    assert planned(6, sharer("a", 3, allowed=6), sharer("b", 3, allowed=3)) == [6, 6]


def test_if_a_request_needs_the_memory_no_container_gets_more_and_the_newcomer_waits() -> None:
    """GPU of 15: a (6, uses 12), then a newcomer with 6."""
    before = [sharer(used=12, allowed=15, held=0), sharer("new", limit=6)]
    assert planned(3, *before) == [6, 0]
    # A later sample shows 3 of its 6 free.
    after = [sharer(used=12, allowed=6), sharer("new", limit=6, allowed=0)]
    assert planned(3, *after) == [6, 3]
    assert planned(3, sharer(used=9, allowed=6), sharer("new", limit=6, allowed=3)) == [9, 6]


def test_a_container_that_got_its_request_keeps_it() -> None:
    assert planned(3, sharer(used=12, allowed=6), sharer("old", limit=6, allowed=6)) == [6, 6]


def test_those_furthest_above_their_request_give_back_and_as_few_as_suffice() -> None:
    sharers = [sharer("a", 2, used=4), sharer("b", 2, used=7), sharer("c", 2, used=2)]
    assert [one.key for one in victims(8 * GIB, sharers)] == []
    assert [one.key for one in victims(3 * GIB, sharers)] == ["b"]
    assert [one.key for one in victims(1 * GIB, sharers)] == ["b", "a"]
    assert short_mib(3 * GIB, sharers) == 4 * GIB


def test_a_little_memory_taken_by_the_driver_is_not_above_the_request() -> None:
    just = Sharer("a", 6 * GIB, 15 * GIB, 6 * GIB + 16, 6 * GIB, 0)
    assert short_mib(0, [just]) == 0


@st.composite
def _sharers(draw: st.DrawFn) -> list[Sharer]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        request = draw(st.integers(1, 8))
        limit = request + draw(st.integers(0, 8))
        amounts = st.integers(0, limit)
        made.append(
            sharer(
                str(number), request, limit, draw(amounts), draw(amounts), draw(st.sampled_from([0, limit]))
            )
        )
    return made


@settings(max_examples=300)
@given(_sharers(), st.integers(0, 16))
def test_all_together_may_never_use_more_than_there_is(sharers: list[Sharer], free: int) -> None:
    """Counted with what each may still have of its earlier allowance."""
    allowed = plan(free * GIB, sharers)
    held = {one.key: max(one.allowed, one.may_hold, one.used) for one in sharers}
    after = {key: max(mib, held[key]) for key, mib in allowed.items()}
    requests = {one.key: one.request for one in sharers}
    above_before = sum(max(held[key] - requests[key], 0) for key in held)
    above_after = sum(max(after[key] - requests[key], 0) for key in held)
    assert above_after <= max(free * GIB, above_before)
    for one in sharers:
        assert allowed[one.key] <= one.limit
        if one.allowed >= one.request:
            assert allowed[one.key] >= one.request
    # Where others hold more than is free, newcomers get that much less, unless they use it already.
    newcomers = [one for one in sharers if one.allowed < one.request]
    waits = sum(one.request - allowed[one.key] for one in newcomers if allowed[one.key] < one.request)
    could_wait = sum(max(one.request - one.used, 0) for one in newcomers)
    assert waits == min(max(above_before - free * GIB, 0), could_wait)


@settings(max_examples=100)
@given(_sharers(), st.integers(0, 16))
def test_with_samples_the_plan_becomes_stable(sharers: list[Sharer], free: int) -> None:
    for _ in range(40):
        allowed = plan(free * GIB, sharers)
        now = [one._replace(allowed=allowed[one.key], may_hold=0) for one in sharers]
        if now == sharers:
            return
        sharers = now
    raise AssertionError(sharers)
