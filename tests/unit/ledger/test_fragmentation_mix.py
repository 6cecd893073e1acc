"""What arrives is counted by kind: a mix that is bounded, renewed in steps, and forgets what no longer comes."""

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


def test_a_mix_is_renewed_after_an_eighth_of_the_arrivals_that_went_into_it() -> None:
    mix = Mix()
    renewed = []
    for arrival in range(1, 42):
        before = mix.weights
        mix.arrived(Kind(1, 1))
        if mix.weights is not before:
            renewed.append(arrival)
    assert renewed == [*range(1, 17), 18, 20, 22, 24, 27, 30, 33, 37, 41]
    assert mix.weights == {Kind(1, 1): 41 * ARRIVAL}


def test_a_kind_that_no_longer_comes_is_forgotten() -> None:
    mix = Mix()
    mix.arrived(Kind(1, 7))
    for _ in range(6 * MOST_ARRIVALS):
        mix.arrived(Kind(1, 1))
    assert list(mix.weights) == [Kind(1, 1)]
    assert mix.weights[Kind(1, 1)] <= MOST_ARRIVALS * ARRIVAL


def test_however_many_kinds_come_few_are_kept() -> None:
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
