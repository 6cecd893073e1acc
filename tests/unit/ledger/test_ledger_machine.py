"""After any history of nodes and pods the ledger agrees with the naive model (Hypothesis state machine)."""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs
from numpy.testing import assert_array_equal

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.node.device import Device, NodeDevices, Placement, index_uuid
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import matrix
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger import Held, Ledger, Refused
from gpushare.ledger.fit import multi_gpu
from gpushare.ledger.fit.single_gpu import left_over
from gpushare.ledger.preemption.victims import Rank
from tests.randomized import rounds
from tests.unit.ledger.ledger_samples import asks, counts
from tests.unit.ledger.naive_ledger import Holding, NaiveLedger

NAMES = ("n0", "n1", "n2")
UIDS = tuple(f"uid{number}" for number in range(12))
SIZES = (900, 1024, 2047, 3000, 4096, 5000)
#: Modes that allow more operations are drawn more often.
MODES = (
    NodeMode.CORE_MEM,
    NodeMode.CORE_MEM,
    NodeMode.CORE_MEM,
    NodeMode.CGPU,
    NodeMode.MPS,
    NodeMode.SHARE,
    NodeMode.TOPOLOGY,
)


def _uuid(name: str, slot: int) -> str:
    """The UUID of a GPU; slot 3 is a MIG instance."""
    return f"{'MIG-' if slot == 3 else ''}{name}-{slot}"


@st.composite
def _nodes(draw: st.DrawFn, name: str) -> NodeDevices:
    # Obstacles to pods are rare; otherwise nothing would ever fit, and what follows would not be tested.
    odd = draw(st.sampled_from((False, False, False, True)))
    slots = draw(st.lists(st.sampled_from(range(4)), unique=True, min_size=0 if odd else 2, max_size=4))
    # Sometimes only a node's capacity is known, and its GPUs only by index.
    by_index = odd and draw(st.integers(0, 4)) == 0
    devices = []
    for index, slot in enumerate(slots):
        healthy = not odd or draw(st.integers(0, 5)) > 0
        size = draw(st.sampled_from(SIZES))
        devices.append(
            Device(
                index,
                index_uuid(name, index) if by_index else _uuid(name, slot),
                size,
                draw(st.sampled_from(("", "A10", "Tesla T4"))),
                healthy=healthy,
                reason="" if healthy else f"XID {slot}",
                foreign_mib=draw(st.sampled_from((0, 0, 0, 100, 1024, 6000))) if odd else 0,
                cordoned=odd and draw(st.integers(0, 7)) == 0,
                numa_node=draw(st.sampled_from((-1, 0, 0, 1))),
                architecture=draw(st.sampled_from(("", "ampere", "turing"))),
            )
        )
    pairs = draw(st.dictionaries(st.frozensets(st.integers(0, 3), min_size=2, max_size=2), st.integers(0, 3)))
    return NodeDevices(
        name=name,
        mode=draw(st.sampled_from(MODES)),
        unit=draw(st.sampled_from(MemoryUnit)),
        devices=tuple(devices),
        placement=draw(st.sampled_from(Placement)),
        max_pods=draw(st.sampled_from((None, None, 1, 2, 16))),
        refusal=draw(st.sampled_from(("", "", "", "", "node is switching from share to cgpu")))
        if odd
        else "",
        max_node_pods=draw(st.sampled_from((None, None, None, 1, 2, 3))),
        near=matrix(len(devices), lambda a, b: pairs.get(frozenset((a, b)), 0)),
    )


names = st.sampled_from(NAMES)
uids = st.sampled_from(UIDS)
nodes = names.flatmap(_nodes)
amounts = st.one_of(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(1, 45), st.just(2**40)
)
any_gpu_requests = st.one_of(
    st.builds(asks, amounts, st.sampled_from((0, 0, 5, 30, 50, 100, 120))),
    st.builds(asks, amounts, gpus=st.integers(2, 4), whole=st.booleans()),
    st.builds(asks, amounts, st.sampled_from((30, 50, 100)), gpus=st.integers(2, 3)),
    st.builds(asks, amounts, st.sampled_from((0, 0, 30, 100)), whole=st.just(True)),
    st.builds(counts, st.sampled_from((1, 1, 2, 2, 3, 4, 2**40))),
)
_uuids = st.sampled_from(tuple(f"{name}-{slot}" for name in NAMES for slot in range(3)))
selections = st.one_of(
    st.builds(GpuSelection, models=st.just(("A10",))),
    st.builds(GpuSelection, models_excluded=st.just(("T4",))),
    st.builds(GpuSelection, architectures=st.just(("ampere", "hopper"))),
    st.builds(GpuSelection, architectures_excluded=st.just(("turing",)), min_mib=st.just(2048)),
    st.builds(GpuSelection, max_mib=st.just(3000)),
    st.builds(GpuSelection, uuids=st.lists(_uuids, min_size=1, max_size=4).map(tuple)),
    st.builds(GpuSelection, uuids_excluded=st.lists(_uuids, min_size=1, max_size=4).map(tuple)),
)
requests = st.one_of(
    any_gpu_requests,
    any_gpu_requests,
    st.builds(
        lambda request, selection: structs.replace(request, selection=selection), any_gpu_requests, selections
    ),
    st.builds(
        lambda request, gpu, node: structs.replace(request, gpu_placement=gpu, node_placement=node),
        any_gpu_requests,
        st.sampled_from((None, *Placement)),
        st.sampled_from((None, *Placement)),
    ),
)
#: They fit on most nodes once other pods have ended.
small_requests = st.builds(asks, st.integers(1, 2), st.sampled_from((0, 0, 5, 30)))


@st.composite
def _allocations(draw: st.DrawFn, name: str) -> Allocation:
    """A record that another scheduler might have written: on one GPU or more, existing or not, fitting or not."""
    slots = draw(st.lists(st.sampled_from(range(5)), min_size=1, max_size=2))
    core = draw(st.sampled_from((0, 0, 20, 60)))
    by_index = draw(st.integers(0, 4)) == 0
    shares = tuple(
        GpuShare(
            index_uuid(name, slot) if by_index else _uuid(name, slot),
            slot,
            draw(st.integers(0, 3000)),
            draw(st.integers(1, 4)),
            draw(st.integers(1, 8)),
            core,
        )
        for slot in slots
    )
    return Allocation(shares, {"main": shares}, draw(st.sampled_from((None, *MemoryUnit))))


class LedgerMachine(RuleBasedStateMachine):
    """The ledger and the naive model go through the same history, and are compared after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.naive = NaiveLedger()
        # Pods with reserved capacity, by UID: the request and the victims. Dropped if another party changes the node.
        self.promised: dict[str, tuple[Request, set[str]]] = {}

    # --- nodes ---

    @initialize(some=st.tuples(*map(_nodes, NAMES)))
    def nodes_are_there(self, some: tuple[NodeDevices, ...]) -> None:
        for node in some:
            self.node_appears_or_changes(node)

    @rule(node=nodes)
    def node_appears_or_changes(self, node: NodeDevices) -> None:
        before = self.naive.nodes.get(node.name)
        self.ledger.set_node(node)
        self.ledger.set_node(node)
        self.naive.nodes[node.name] = node
        if before != node:
            self._node_changed(node.name)

    @rule(name=names, unit=st.sampled_from(MemoryUnit), mode=st.sampled_from(MODES))
    def node_changes_unit_and_mode(self, name: str, unit: MemoryUnit, mode: NodeMode) -> None:
        node = self.naive.nodes.get(name)
        if node is not None:
            self.node_appears_or_changes(structs.replace(node, mode=mode, unit=unit))

    @rule(name=names)
    def node_goes(self, name: str) -> None:
        self.ledger.remove_node(name)
        self.naive.nodes.pop(name, None)
        self._node_changed(name)

    def _node_changed(self, name: str) -> None:
        """Nominations on the node are on GPUs that still exist, or were dropped."""
        self._break_promises(name)
        devices = self.naive.nodes[name].devices if name in self.naive.nodes else ()
        for uid, (on, shares) in list(self.naive.nominated.items()):
            if on == name and not self.ledger.nominations.node_of(uid):
                del self.naive.nominated[uid]
            elif on == name:
                assert {share.uuid for share in shares} <= {one.uuid for one in devices if one.in_service}

    def _break_promises(self, name: str) -> None:
        for uid in [uid for uid in self.promised if self.naive.nominated[uid][0] == name]:
            del self.promised[uid]

    # --- pods ---

    @rule(uid=uids, request=requests, name=names)
    def pod_is_reserved(self, uid: str, request: Request, name: str) -> None:
        self.nomination_is_dropped(uid)
        held = self.naive.holdings.get(uid)
        if held is not None and held.node == name:
            assert self.ledger.reserve(uid, uid, request, name) == held.allocation
            return
        if held is not None and held.confirmed:
            with pytest.raises(Refused, match=f"already holds its share on node {held.node}"):
                self.ledger.reserve(uid, uid, request, name)
            return
        reason = self.naive.reason(request, name)
        if reason is not None:
            with pytest.raises(Refused) as refused:
                self.ledger.reserve(uid, uid, request, name)
            assert (refused.value.reason, refused.value.hopeless) == reason
            return
        # A reservation on another node does not prevent it: it is moved. (Its nomination anywhere was dropped before.)
        expected = self.naive.reserve(uid, uid, request, name)
        assert self.ledger.reserve(uid, uid, request, name) == expected
        self._check_place(name, expected, request)

    def _check_place(self, name: str, allocation: Allocation, request: Request) -> None:
        """The ledger's own decisions never exceed a limit, whatever else is allocated."""
        node = self.naive.nodes[name]
        assert node.max_node_pods is None or self.naive.pods_of(name) <= node.max_node_pods
        assert len({one.uuid for one in allocation.gpus}) == len(allocation.gpus) == request.gpu_count
        for one in allocation.gpus:
            usage = next(gpu for gpu in self.ledger.usage(name).gpus if gpu.uuid == one.uuid)
            assert usage.healthy
            assert request.allows(next(device for device in node.devices if device.uuid == one.uuid))
            assert one.uuid not in {device.uuid for device in node.devices if device.cordoned}
            assert usage.used_mib + usage.foreign_mib <= usage.total_mib
            assert usage.used_units <= usage.total_units
            assert usage.used_core <= 100 or not one.core_percent
            assert node.max_pods is None or len(usage.pods) <= node.max_pods
            assert request.by_gpu or not self.naive.of_kind(name, core=not one.core_percent)
            assert request.by_gpu == (node.mode is NodeMode.TOPOLOGY)
            if request.whole_device:
                assert (len(usage.pods), usage.used_mib) == (1, usage.total_mib)
                assert one.units == one.device_units >= request.memory_units
            else:
                assert one.units == request.memory_units

    @rule(request=requests)
    def request_is_precomputed(self, request: Request) -> None:
        self.ledger.precompute(request)

    @rule(uid=uids)
    def binding_is_observed(self, uid: str) -> None:
        held = self.naive.holdings.get(uid)
        if held is not None:
            held.confirmed = True
            self.ledger.hold(uid, held.pod, held.node, held.allocation)

    @rule(data=st.data(), uid=uids, name=names)
    def foreign_allocation_is_observed(self, data: st.DataObject, uid: str, name: str) -> None:
        allocation = data.draw(_allocations(name))
        self._break_promises(name)
        self.nomination_is_dropped(uid)
        self.ledger.hold(uid, uid, name, allocation)
        self.naive.holdings[uid] = Holding(uid, name, allocation, confirmed=True)

    @rule(data=st.data(), uid=uids, name=names)
    def foreign_allocation_is_read_ahead_of_the_watch(self, data: st.DataObject, uid: str, name: str) -> None:
        allocation = data.draw(_allocations(name))
        self._break_promises(name)
        self.nomination_is_dropped(uid)
        self.ledger.hold(uid, uid, name, allocation, confirmed=False)
        held = self.naive.holdings.get(uid)
        if held is None or not held.confirmed:
            self.naive.holdings[uid] = Holding(uid, name, allocation, confirmed=False)

    @rule(uid=uids)
    def pod_ends(self, uid: str) -> None:
        assert self.ledger.release(uid) == (self.naive.holdings.pop(uid, None) is not None)
        assert not self.ledger.release(uid)

    # --- nominations ---

    @rule(
        number=st.integers(0, 2),
        request=st.one_of(small_requests, requests),
        name=names,
        evictable=st.one_of(st.just(set(UIDS)), st.sets(uids)),
    )
    def nomination_is_added(self, number: int, request: Request, name: str, evictable: set[str]) -> None:
        pending = [uid for uid in UIDS if uid not in self.naive.holdings and uid not in self.naive.nominated]
        if not pending:
            return
        uid = pending[number % len(pending)]
        plan = self.ledger.evictions.plan(request, (name,), lambda one: Rank(0) if one in evictable else None)
        if plan is None:
            assert self.naive.reason(request, name) is not None
            return
        assert set(plan.victims) <= evictable & self.naive.holdings.keys()
        self.ledger.nominations.add(uid, request, plan)
        self.naive.nominate(uid, request, name, plan.rows)
        self.promised[uid] = (request, set(plan.victims))

    @rule(uid=uids)
    def nomination_is_dropped(self, uid: str) -> None:
        self.ledger.nominations.remove(uid)
        self.naive.nominated.pop(uid, None)
        self.promised.pop(uid, None)

    @precondition(lambda self: self.promised)
    @rule(data=st.data())
    def nominated_pod_fits_once_its_victims_are_gone(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.promised)))
        request, (name, _) = self.promised[uid][0], self.naive.nominated[uid]
        for other, (_, victims) in self.promised.items():
            if self.naive.nominated[other][0] == name:
                for victim in victims:
                    self.pod_ends(victim)
        assert self.ledger.filter_for(uid, request, NAMES).fits.count(name) == 1
        self.nomination_is_dropped(uid)
        expected = self.naive.reserve(uid, uid, request, name)
        assert self.ledger.reserve(uid, uid, request, name) == expected
        self._check_place(name, expected, request)

    # --- queries ---

    @rule(request=requests)
    def filter_agrees(self, request: Request) -> None:
        candidates = [*NAMES, "never-seen"]
        verdict = self.ledger.filter(request, candidates)
        expected = {name: self.naive.reason(request, name) for name in candidates}
        assert verdict.fits == [name for name, reason in expected.items() if reason is None]
        assert verdict.refused == {name: why[0] for name, why in expected.items() if why and not why[1]}
        assert verdict.hopeless == {name: why[0] for name, why in expected.items() if why and why[1]}
        for name in candidates:
            # Filtered alone, and reserved.
            alone = self.ledger.filter(request, [name])
            assert alone.fits == ([name] if name in verdict.fits else [])
            try:
                self.ledger.reserve("probe", "probe", request, name)
            except Refused as refused:
                assert {**verdict.refused, **verdict.hopeless}[name] == refused.reason  # noqa: PT017
                assert (name in verdict.hopeless) == refused.hopeless  # noqa: PT017
            else:
                assert name in verdict.fits
                assert self.ledger.release("probe")

    @rule(request=requests, policy=st.sampled_from(Placement))
    def score_agrees(self, request: Request, policy: Placement) -> None:
        candidates = ["never-seen", *NAMES]
        ledger = self.ledger if policy is Placement.BINPACK else self.rebuilt(0, policy)
        expected = self.naive.scores(request, candidates, policy)
        assert ledger.score(request, candidates) == expected
        assert ledger.standing_out(request, candidates) == [
            (name, score - min(expected))
            for name, score in zip(candidates, expected, strict=True)
            if score > min(expected)
        ]
        assert ledger.score(request, candidates[::-1]) == expected[::-1]

    @rule(request=requests)
    def feasible_nodes_are_scored_next(self, request: Request) -> None:
        """As kube-scheduler does: the nodes that fit, in their order."""
        fits = self.ledger.filter(request, ["never-seen", *NAMES]).fits
        assert self.ledger.score(request, fits) == self.naive.scores(request, fits, Placement.BINPACK)

    @rule()
    def cached_values_equal_newly_computed_ones(self) -> None:
        for units, core, gpus, whole, by_gpu, selection, gpu, node in list(self.ledger._left._cache):
            request = counts(gpus) if by_gpu else asks(units, core, gpus=gpus, whole=whole)
            request = structs.replace(request, selection=selection, gpu_placement=gpu, node_placement=node)
            fresh = multi_gpu.left_over(self.ledger._books.columns, request, self.ledger._books.near)
            assert_array_equal(self.ledger._left.of(request), fresh)
            if request.is_ordinary:
                # The path for several GPUs gives the same result for one.
                assert_array_equal(left_over(self.ledger._books.columns, request), fresh)

    # --- invariants ---

    def rebuilt(self, seed: int, policy: Placement = Placement.BINPACK) -> Ledger:
        """A new ledger, given the API server's objects in any order."""
        ledger = Ledger(node_policy=policy)
        events: list[NodeDevices | tuple[str, Holding]] = [
            *self.naive.nodes.values(),
            *self.naive.holdings.items(),
        ]
        Random(seed).shuffle(events)
        for event in events:
            if isinstance(event, NodeDevices):
                ledger.set_node(event)
            else:
                uid, held = event
                ledger.hold(uid, held.pod, held.node, held.allocation)
        ledger.nominations.restore(self.naive.nominated)
        return ledger

    @rule(seed=st.integers(0, 1 << 16))
    def rebuild_gives_the_same(self, seed: int) -> None:
        fresh = self.rebuilt(seed)
        for name in NAMES:
            assert fresh.usage(name) == self.ledger.usage(name)

    @invariant()
    def usage_agrees(self) -> None:
        for name in NAMES:
            assert self.ledger.usage(name) == self.naive.usage(name)
            assert self.ledger.node(name) == self.naive.nodes.get(name)
        assert self.ledger.totals() == self.naive.totals()
        for uid in UIDS:
            mine, naive = self.ledger.held(uid), self.naive.holdings.get(uid)
            assert mine == (naive and Held(uid, naive.pod, naive.node, naive.allocation, naive.confirmed))

    @invariant()
    def a_repeated_request_is_answered_correctly(self) -> None:
        candidates = ["never-seen", *NAMES]
        request = asks(2, 30)
        assert self.ledger.score(request, candidates) == self.naive.scores(
            request, candidates, Placement.BINPACK
        )

    @invariant()
    def nothing_unneeded_is_kept(self) -> None:
        needed = set(self.naive.nodes) | {held.node for held in self.naive.holdings.values()}
        assert set(self.ledger._books.nodes) == needed
        for name, book in self.ledger._books.nodes.items():
            usage = self.naive.usage(name)
            present = {gpu.uuid for gpu in usage.gpus} | {one.share.uuid for one in usage.pending}
            assert set(book.gpus) == present

    @precondition(lambda self: self.naive.holdings)
    @rule()
    def everything_ends(self) -> None:
        self._release_all()

    def _release_all(self) -> None:
        for uid in list(self.naive.nominated):
            self.nomination_is_dropped(uid)
        for uid in list(self.naive.holdings):
            self.pod_ends(uid)
        empty = Ledger()
        for node in self.naive.nodes.values():
            empty.set_node(node)
        for name in NAMES:
            assert self.ledger.usage(name) == empty.usage(name)
        assert self.ledger.totals() == empty.totals()

    def teardown(self) -> None:
        self._release_all()
        for name in NAMES:
            self.node_goes(name)
        assert self.ledger.totals() == Ledger().totals()
        # Nothing is left of removed objects.
        assert not self.ledger._books.nodes
        assert not self.ledger._books.absent
        assert not self.ledger._books.refusals._against
        assert not self.ledger._books.refusals._notes
        assert self.ledger._books.columns.width <= len(NAMES) + 1


# Not traced for coverage: it would take twice as long, and other tests go through the same lines.
TestLedgerMachine = pytest.mark.no_cover(LedgerMachine.TestCase)
TestLedgerMachine.settings = settings(
    max_examples=rounds(60, soak=120),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
