"""Placement ``fragmentation`` in the ledger: it takes the node and GPU that leave most to the expected requests."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger import columns as columns_module
from gpushare.ledger.placement import score_cache as cache_module
from gpushare.ledger.placement.fragmentation import growth as growth_module
from gpushare.ledger.placement.fragmentation import lookahead as lookahead_module
from gpushare.ledger.placement.fragmentation.growth import CLOSES, IDLE_PRICE_MILLE, UNKNOWN, Growth
from gpushare.ledger.placement.fragmentation.outlook import SEQUENCES
from gpushare.ledger.placement.fragmentation.workload_mix import ARRIVAL, Kind
from tests.randomized import rounds
from tests.unit.ledger.ledger_samples import A100, T4, asks, holding, node, share
from tests.unit.ledger.naive_fragmentation import NaiveGpu, NaiveNode

quick = settings(max_examples=rounds(30, soak=60), deadline=None)
NAMES = [f"n{number}" for number in range(6)]
FRAGMENTATION = Placement.FRAGMENTATION


def ledger_of(*nodes: NodeDevices, policy: Placement = FRAGMENTATION) -> Ledger:
    ledger = Ledger(node_policy=policy)
    for one in nodes:
        ledger.set_node(one)
    return ledger


def with_cpu(request: Request, cpu_milli: int) -> Request:
    return msgspec.structs.replace(request, cpu_milli=cpu_milli)


def arrive(ledger: Ledger, *requests: Request) -> None:
    for request in requests:
        ledger.arrived(request)


def test_before_anything_has_arrived_the_tightest_gpu_is_taken() -> None:
    ledger = ledger_of(node("n1", A100, T4, placement=FRAGMENTATION))
    assert ledger.reserve("a", "a", asks(4), "n1").gpus[0].index == 1


def test_a_gpu_is_left_in_a_size_that_arrives() -> None:
    """With 9 and 14 GiB free, binpack would leave 9 - 4 = 5 GiB, too little for any arrival; 14 - 4 = 10 is enough."""
    for placement, index in ((Placement.BINPACK, 0), (FRAGMENTATION, 1)):
        ledger = ledger_of(node("n1", 9 * 1024, 14 * 1024, placement=placement))
        arrive(ledger, *[asks(10)] * 8, *[asks(8)] * 8)
        assert ledger.reserve("a", "a", asks(4), "n1").gpus[0].index == index


def test_a_node_is_scored_by_the_gpu_that_its_own_placement_takes() -> None:
    ledger = ledger_of(node("n1", 9 * 1024, 14 * 1024), node("n2", 14 * 1024, placement=FRAGMENTATION))
    arrive(ledger, *[asks(10)] * 8, *[asks(8)] * 8)
    assert ledger.score(asks(4), ["n1", "n2"]) == [0, 10]
    assert ledger.reserve("a", "a", asks(4), "n1").gpus[0].index == 0


def test_pods_with_memory_only_avoid_the_node_that_pods_with_compute_could_use() -> None:
    ledger = ledger_of(node("core", T4, mode=NodeMode.CORE_MEM), node("cgpu", T4))
    arrive(ledger, *[asks(4)] * 4, *[asks(4, 50)] * 4)
    assert ledger.score(asks(4), ["core", "cgpu"]) == [0, 10]


def test_pods_with_few_cpus_go_where_cpus_are_short_and_pods_with_many_elsewhere() -> None:
    """Next to it either node could take another pod of its kind."""
    ledger = ledger_of(node("few", *[T4] * 4), node("many", *[T4] * 4))
    ledger.set_free_cpu("few", 14_000)
    ledger.set_free_cpu("many", 64_000)
    arrive(ledger, *[with_cpu(asks(15), 4_000)] * 4)
    assert ledger.score(with_cpu(asks(15), 2_000), ["few", "many"]) == [10, 0]
    assert ledger.score(with_cpu(asks(15), 8_000), ["few", "many"]) == [0, 10]
    ledger.set_free_cpu("few", None)
    assert ledger.score(with_cpu(asks(15), 8_000), ["few", "many"]) == [10, 10]
    ledger.set_free_cpu("gone", 1)


def test_values_that_one_call_leaves_open_are_completed_by_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The work of a call is bounded: the node with the tightest GPU comes first, and is preferred until more is known."""
    sizes = (9, 7, 5, 8, 6, 4)
    nodes = [node(name, size * 1024) for name, size in zip(NAMES, sizes, strict=True)]
    whole, ledger = ledger_of(*nodes), ledger_of(*nodes)
    for one in (whole, ledger):
        arrive(one, *[asks(3)] * 4, asks(5))
    complete = whole._growth.of(asks(2)).grown
    monkeypatch.setattr(lookahead_module, "STEPS", 1)
    monkeypatch.setattr(lookahead_module, "PYTHON_STEPS", 1)
    monkeypatch.setattr(growth_module, "_CONTINUED_PART", 1)
    assert ledger.score(asks(2), NAMES)[NAMES.index("n5")] == 10
    left_open = []
    for _ in NAMES:
        grown = ledger._growth.of(asks(2)).grown
        left_open.append(np.count_nonzero(grown == UNKNOWN))
        assert ((grown == complete) | (grown == UNKNOWN)).all()
    assert left_open == [4, 3, 2, 1, 0, 0]


def test_free_gpus_are_reported_as_fragments_once_no_kind_has_enough_cpu() -> None:
    ledger = ledger_of(node("few", T4, T4))
    ledger.set_free_cpu("few", 4_000)
    arrive(ledger, *[with_cpu(asks(15), 4_000)] * 4)
    assert ledger.fragments_mib() == 0
    ledger.set_free_cpu("few", 3_999)
    assert ledger.fragments_mib() == 2 * T4


def test_several_gpus_are_taken_where_the_fewest_whole_gpus_are_lost() -> None:
    ledger = ledger_of(
        node("eight", *[T4] * 8, placement=FRAGMENTATION), node("two", T4, T4, placement=FRAGMENTATION)
    )
    arrive(ledger, *[asks(15, gpus=8, whole=True)] * 2, *[asks(15, gpus=2)] * 6)
    for request in (asks(15, gpus=2), asks(15, gpus=2, whole=True)):
        assert ledger.score(request, ["eight", "two"]) == [0, 10]
    assert [share.index for share in ledger.reserve("a", "a", asks(15, gpus=2), "two").gpus] == [0, 1]
    assert ledger.score(asks(1, gpus=9), ["eight", "two"]) == [0, 0]


def test_ten_nodes_get_different_scores_however_far_one_stands_out() -> None:
    names = [f"n{number}" for number in range(14)]
    ledger = ledger_of(*(node(name, (number + 4) * 1024) for number, name in enumerate(names)))
    assert ledger.score(asks(4), [*names, "nowhere"]) == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0]
    assert ledger.score(asks(4), []) == []


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that soon have to grow, and small caches."""
    monkeypatch.setattr(columns_module.Columns.__init__, "__defaults__", (4, 1))
    monkeypatch.setattr(columns_module, "MOST_NOTED", 40)
    monkeypatch.setattr(cache_module, "MOST_KEPT", 3)


requests = st.builds(
    lambda units, core, gpus, whole, cpu: with_cpu(asks(units, core, gpus=gpus, whole=whole), cpu),
    st.integers(1, 9),
    st.just(0),
    st.sampled_from((1, 1, 1, 2, 3)),
    st.sampled_from((False, False, True)),
    st.sampled_from((0, 500, 3000)),
) | st.builds(lambda units, core: asks(units, core), st.integers(1, 9), st.sampled_from((5, 60)))
shapes = st.builds(
    lambda name, sizes, mode, placement, cap: node(
        name, *sizes, mode=mode, placement=placement, max_pods=cap
    ),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from((2048, 5000, 8192)), min_size=1, max_size=4),
    st.sampled_from((NodeMode.CGPU, NodeMode.CGPU, NodeMode.CORE_MEM)),
    st.sampled_from((FRAGMENTATION, FRAGMENTATION, Placement.BINPACK, Placement.SPREAD)),
    st.sampled_from((None, 2)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("node"), shapes),
        st.tuples(st.just("cpu"), st.tuples(st.sampled_from(NAMES), st.sampled_from((None, 0, 2000, 9000)))),
        st.tuples(st.just("pod"), requests),
        st.tuples(st.just("pod"), requests),
        st.tuples(st.just("pod"), requests),
        st.tuples(st.just("ends"), st.integers(0, 30)),
        st.tuples(st.just("goes"), st.sampled_from(NAMES)),
    ),
    min_size=6,
    max_size=40,
)


def play(ledger: Ledger, number: int, what: str, argument: object) -> None:
    if what == "node":
        assert isinstance(argument, NodeDevices)
        ledger.set_node(argument)
    elif what == "cpu":
        name, milli = argument  # type: ignore[misc]
        ledger.set_free_cpu(name, milli)
    elif what == "ends":
        ledger.release(f"u{argument}")
    elif what == "goes":
        ledger.remove_node(str(argument))
    else:
        assert isinstance(argument, Request)
        ledger.arrived(argument)
        fits = ledger.filter(argument, NAMES).fits
        if fits:
            scored = ledger.score(argument, fits)
            ledger.reserve(f"u{number}", "p", argument, fits[scored.index(max(scored))])


@given(steps=steps, request=requests)
@quick
def test_cached_values_equal_newly_computed_ones(steps: list[tuple[str, object]], request: Request) -> None:
    ledger = ledger_of()
    for number, (what, argument) in enumerate(steps):
        play(ledger, number, what, argument)
        cached = ledger._growth.of(request)
        fresh = Growth(ledger._books.columns, ledger._books.near)
        fresh._mix.weights = ledger._growth._mix.weights
        computed = fresh.of(request)
        assert np.array_equal(cached.grown, computed.grown)
        assert np.array_equal(cached.left, computed.left)
        for column in range(cached.left.size):
            # In the product's order: by GPU right after the columns were updated.
            assert ledger._growth.by_gpu(request, column) == fresh.by_gpu(request, column)


@given(steps=steps, request=requests)
@quick
def test_the_best_node_is_the_first_with_the_highest_score_of_those_that_fit(
    steps: list[tuple[str, object]], request: Request
) -> None:
    ledger = ledger_of()
    for number, (what, argument) in enumerate(steps):
        play(ledger, number, what, argument)
        fits = ledger.filter(request, NAMES).fits
        scored = ledger.score(request, fits)
        best = fits[scored.index(max(scored))] if fits else None
        assert ledger.best(request, NAMES) == best


@given(steps=steps, request=requests)
@quick
def test_the_node_with_the_highest_score_allocates_the_gpus_that_were_scored(
    steps: list[tuple[str, object]], request: Request
) -> None:
    """By the written-out definition, these leave most."""
    ledger = ledger_of()
    for number, (what, argument) in enumerate(steps):
        play(ledger, number, what, argument)
    fits = ledger.filter(request, NAMES).fits
    scored = dict(zip(fits, ledger.score(request, fits), strict=True))
    growth = ledger._growth
    grown: dict[str, int] = {}
    for name in fits:
        node = naive(ledger, name, 0)
        value = node.value(growth._outlook)
        idle_mib = sum(gpu.free_mib for gpu in node.gpus if gpu.untouched)
        ledger.reserve("probe", "p", request, name)
        value -= naive(ledger, name, request.cpu_milli).value(growth._outlook)
        grown[name] = value * ledger._books.nodes[name].devices.unit.mib // SEQUENCES
        grown[name] += idle_mib * IDLE_PRICE_MILLE // 1000
        ledger.release("probe")
    scored_growth = ledger._growth.of(request).grown
    for name in fits:
        column = ledger._books.column_of[name]
        if scored_growth[column] >= CLOSES // 2:  # what is added to may be negative
            grown[name] += CLOSES
        assert scored_growth[column] == grown[name]
    best = [name for name in fits if scored[name] == 10]
    assert all(grown[name] == min(grown.values()) for name in best)
    for one in fits:
        for other in fits:
            if grown[one] < grown[other]:
                assert scored[one] > scored[other] or scored[one] == scored[other] == 0


def naive(ledger: Ledger, name: str, cpu_milli: int) -> NaiveNode:
    """The node for the written-out definition, from the books."""
    book = ledger._books.nodes[name]
    assert book.devices is not None
    gpus = tuple(
        NaiveGpu(max(gpu.device.total_mib - gpu.taken_mib, 0), gpu.fit_units, gpu.free_core, gpu.is_untouched)
        for gpu in book.present
        if gpu.device is not None
    )
    cpu = int(ledger._books.columns.free_cpu_milli[book.column])
    return NaiveNode(
        gpus,
        None if cpu == 1 << 31 else max(cpu - cpu_milli, 0),
        not book.core_pods,
        not book.memory_pods and book.devices.mode.gives_core,
        book.devices.unit.mib,
    )


def test_the_mix_counts_each_arrival_by_its_request() -> None:
    ledger = ledger_of()
    arrive(ledger, with_cpu(asks(3, 30), 500), asks(2, gpus=4))
    assert ledger._growth._mix.weights == {Kind(1, 3, 30, 500): ARRIVAL, Kind(4, 2): ARRIVAL}


def test_where_whole_gpus_are_requested_a_share_goes_to_a_gpu_that_is_in_use() -> None:
    """By size alone it would go to the tighter one, which is empty."""
    for whole, index in ((False, 0), (True, 1)):
        ledger = ledger_of(node("n1", 8 * 1024, 16 * 1024, placement=FRAGMENTATION))
        ledger.hold("begun", "p", "n1", holding(share("n1-gpu1", 2048)))
        arrive(ledger, *[asks(2, whole=whole)] * 8)
        assert ledger.reserve("a", "a", asks(2), "n1").gpus[0].index == index
