"""The arrays say of every node what the definition of fragments says, and of every GPU what a request adds to them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI
from gpushare.ledger.placement.fragmentation.measure import (
    MOST_WEIGHED,
    State,
    Weighed,
)
from gpushare.ledger.placement.fragmentation.served import OPEN_TO_CORE, OPEN_TO_MEMORY
from gpushare.ledger.placement.fragmentation.workload_mix import ARRIVAL, MOST_ARRIVALS, MOST_KINDS, Kind, Mix
from tests.randomized import rounds
from tests.unit.ledger.naive_fragmentation import NaiveGpu, NaiveNode

quick = settings(max_examples=rounds(60, soak=200), deadline=None)
MIB = 128

kinds = st.builds(
    Kind,
    st.integers(0, 3),
    st.integers(1, 20),
    st.sampled_from((0, 0, 5, 50, 100)),
    st.sampled_from((0, 100, 3152, 11_300, 64_000)),
    st.sampled_from((False, False, True)),
)
weights = st.dictionaries(kinds, st.integers(1, 400), max_size=12)
gpus = st.one_of(
    st.just(NaiveGpu(20 * MIB, 20, 100, untouched=True)),
    st.builds(
        lambda units, core, shut, untouched: NaiveGpu(units * MIB, -1 if shut else units, core, untouched),
        st.integers(0, 20),
        st.sampled_from((-1, 0, 5, 55, 100)),
        st.sampled_from((False, False, False, True)),
        st.booleans(),
    ),
)


@st.composite
def node_lists(draw: st.DrawFn) -> list[NaiveNode]:
    rows = draw(st.integers(1, 4))
    return draw(
        st.lists(
            st.builds(
                NaiveNode,
                st.tuples(*[gpus] * rows),
                st.sampled_from((None, 0, 99, 3152, 20_000, 96_000)),
                st.booleans(),
                st.booleans(),
                st.sampled_from((MIB, 1024)),
            ),
            min_size=1,
            max_size=5,
        )
    )


def state_of(nodes: list[NaiveNode]) -> State:
    def plane(figure: str) -> np.ndarray:
        return np.array([[getattr(gpu, figure) for gpu in one.gpus] for one in nodes], np.int64).T

    def line(figures: list[int]) -> np.ndarray:
        return np.array(figures, np.int64)

    return State(
        plane("free_mib"),
        plane("fit_units"),
        plane("free_core"),
        plane("untouched") == 1,
        line([UNKNOWN_CPU_MILLI if one.cpu_milli is None else one.cpu_milli for one in nodes]),
        line([one.open_to_memory * OPEN_TO_MEMORY + one.open_to_core * OPEN_TO_CORE for one in nodes]),
        line([one.unit_mib for one in nodes]),
    )


def whole_mix(weights: dict[Kind, int], monkeypatch: pytest.MonkeyPatch) -> Weighed:
    monkeypatch.setattr("gpushare.ledger.placement.fragmentation.measure.WEIGHED_PERCENT", 100)
    return Weighed(weights)


@given(weights=weights, nodes=node_lists())
@quick
def test_fragments_are_those_of_the_definition(weights: dict[Kind, int], nodes: list[NaiveNode]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        weighed = whole_mix(weights, monkeypatch)
    assert weighed.fragments(state_of(nodes)).tolist() == [one.fragments(weights) for one in nodes]


@given(weights=weights, nodes=node_lists(), units=st.integers(1, 20), cpu_milli=st.integers(0, 20_000))
@quick
def test_growth_is_the_difference_that_one_gpu_makes(
    weights: dict[Kind, int], nodes: list[NaiveNode], units: int, cpu_milli: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        weighed = whole_mix(weights, monkeypatch)
    taken = [
        [
            replace(
                gpu, free_mib=gpu.free_mib - units * MIB, fit_units=gpu.fit_units - units, untouched=False
            )
            for gpu in one.gpus
        ]
        for one in nodes
    ]
    after = [
        replace(
            one,
            gpus=tuple(gpus),
            cpu_milli=None if one.cpu_milli is None else max(one.cpu_milli - cpu_milli, 0),
            open_to_core=False,
        )
        for one, gpus in zip(nodes, taken, strict=True)
    ]
    before = state_of(nodes)
    grown = weighed.grown_by_one(before, state_of(after), before.fit_units >= units)
    for at, (one, then) in enumerate(zip(nodes, after, strict=True)):
        for row, gpu in enumerate(one.gpus):
            if gpu.fit_units < units:
                assert grown[row, at] == FAR
                continue
            there = (*one.gpus[:row], then.gpus[row], *one.gpus[row + 1 :])
            expected = replace(then, gpus=there).fragments(weights) - one.fragments(weights)
            assert grown[row, at] == expected


def test_what_too_small_gpus_have_free_is_a_fragment_and_all_is_where_too_few_take_the_kind() -> None:
    halves = NaiveNode((NaiveGpu(5 * MIB, 5, -1), NaiveGpu(10 * MIB, 10, -1)), None, True, False, MIB)
    weighed = Weighed({Kind(1, 8): 3})
    assert weighed.fragments(state_of([halves])).tolist() == [3 * 5 * MIB]
    weighed = Weighed({Kind(2, 8): 3})
    assert weighed.fragments(state_of([halves])).tolist() == [3 * 15 * MIB]


def test_all_is_a_fragment_where_processors_do_not_do_for_one_pod_of_the_kind() -> None:
    node = NaiveNode((NaiveGpu(10 * MIB, 10, -1), NaiveGpu(10 * MIB, 10, -1)), 6000, True, False, MIB)
    assert Weighed({Kind(1, 10, 0, 6000): 1}, loads=()).fragments(state_of([node])).tolist() == [0]
    assert Weighed({Kind(1, 10, 0, 6001): 1}, loads=()).fragments(state_of([node])).tolist() == [20 * MIB]


def test_what_processors_do_not_serve_of_the_average_pod_is_a_fragment() -> None:
    node = NaiveNode((NaiveGpu(10 * MIB, 10, -1), NaiveGpu(5 * MIB, 5, -1)), 4500, True, False, MIB)
    mix = {Kind(1, 5, 0, 1000): 1, Kind(1, 5, 0, 2000): 1}
    kinds = Weighed(mix, loads=()).fragments(state_of([node])).item()
    assert Weighed(mix, loads=(1,)).fragments(state_of([node])).item() - kinds == 0
    # Twice 1,500 for 5 units: 4,500 serve 7.5 of them, of 15 that are free.
    assert Weighed(mix, loads=(2,)).fragments(state_of([node])).item() - kinds == 2 * 7.5 * MIB


def test_unknown_free_cpu_suffices_for_every_pod() -> None:
    node = NaiveNode((NaiveGpu(10 * MIB, 10, -1),), None, True, False, MIB)
    assert Weighed({Kind(1, 1, 0, 1 << 31): 3}).fragments(state_of([node])).tolist() == [0]


def test_the_average_pod_is_right_however_large_the_figures_are() -> None:
    most, weight = 1 << 31, 1 << 18
    mix = {Kind(8, most - 1, 0, most - 1): weight}
    for free_cpu, served_mib in ((0, 0), (1000, 1000 * 8 * 1024), (most - 1, 1 << 25)):
        node = NaiveNode((NaiveGpu(1 << 25, most, -1),), free_cpu, True, False, 1024)
        kinds = Weighed(mix, loads=()).fragments(state_of([node])).item()
        unserved_mib = (Weighed(mix, loads=(1,)).fragments(state_of([node])).item() - kinds) // weight
        assert (1 << 25) - unserved_mib == pytest.approx(served_mib, rel=1e-5)


def test_the_rarest_kinds_are_left_out_and_the_number_of_others_is_bounded() -> None:
    assert Weighed({Kind(1, 1): 95, Kind(1, 2): 4, Kind(1, 3): 1}, loads=()).weight == 95
    assert Weighed({Kind(1, units): 1 for units in range(1, 300)}, loads=()).weight == MOST_WEIGHED


def test_a_mix_of_nothing_has_no_fragments() -> None:
    node = NaiveNode((NaiveGpu(10 * MIB, 10, -1),), None, True, False, MIB)
    assert Weighed({}).fragments(state_of([node])).tolist() == [0]
    assert Weighed({Kind(0, 0, 0, 1000): 5}).fragments(state_of([node])).tolist() == [0]


def test_a_mix_is_renewed_after_as_many_arrivals_as_went_into_it() -> None:
    mix = Mix()
    renewed = []
    for arrival in range(1, 65):
        before = mix.weights
        mix.arrived(Kind(1, 1))
        if mix.weights is not before:
            renewed.append(arrival)
    assert renewed == [1, 2, 4, 8, 16, 32, 64]
    assert mix.weights == {Kind(1, 1): 64 * ARRIVAL}


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
