"""Arrivals are counted by kind, in a mix that is bounded, recomputed in steps, and forgets kinds that no longer arrive."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.ledger.placement.fragmentation.workload_mix import ARRIVAL, MOST_ARRIVALS, MOST_KINDS, Kind, Mix
from tests.randomized import rounds

quick = settings(max_examples=rounds(60, soak=200), deadline=None)

kinds = st.builds(
    Kind,
    st.integers(0, 3),
    st.integers(1, 20),
    st.sampled_from((0, 0, 5, 50, 100)),
    st.sampled_from((0, 100, 3152, 11_300, 64_000)),
    st.sampled_from((False, False, True)),
)


def test_a_mix_is_recomputed_once_arrivals_have_grown_by_an_eighth() -> None:
    mix = Mix()
    recomputed_at = []
    for arrival in range(1, 42):
        before = mix.weights
        mix.arrived(Kind(1, 1))
        if mix.weights is not before:
            recomputed_at.append(arrival)
    assert recomputed_at == [*range(1, 17), 18, 20, 22, 24, 27, 30, 33, 37, 41]
    assert mix.weights == {Kind(1, 1): 41 * ARRIVAL}


def test_a_kind_that_no_longer_arrives_is_forgotten() -> None:
    mix = Mix()
    mix.arrived(Kind(1, 7))
    for _ in range(6 * MOST_ARRIVALS):
        mix.arrived(Kind(1, 1))
    assert list(mix.weights) == [Kind(1, 1)]
    assert mix.weights[Kind(1, 1)] <= MOST_ARRIVALS * ARRIVAL


def test_the_number_of_kinds_in_a_mix_is_bounded() -> None:
    mix = Mix()
    for units in range(5 * MOST_KINDS):
        mix.arrived(Kind(1, units))
    assert len(mix.weights) <= MOST_KINDS


@given(arrivals=st.lists(kinds, max_size=50))
@quick
def test_the_same_arrivals_give_the_same_mix(arrivals: list[Kind]) -> None:
    one, other = Mix(), Mix()
    for kind in arrivals:
        one.arrived(kind)
        other.arrived(kind)
    assert list(one.weights.items()) == list(other.weights.items())
