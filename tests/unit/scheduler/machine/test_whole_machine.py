"""Whatever pods, people, nodes and failures do, in any order: no capacity is allocated twice (Hypothesis state machine).

Thousands of steps, counted, drive everything together that decides: filter, prioritize, bind and preempt, reservations, gangs, room kept
for more important pods, retries, and the defragmenter; by two replicas of the scheduler between which the lease goes, over an API
server in memory whose watches tell each of them late.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from gpushare.api import names
from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from tests.randomized import SOAK, rounds
from tests.unit.scheduler.idle_time import IdleTimeLoop
from tests.unit.scheduler.machine.machine_leading import Electing
from tests.unit.scheduler.machine.machine_moving import Moving
from tests.unit.scheduler.machine.machine_owners import Owning
from tests.unit.scheduler.machine.machine_preempting import Preempting
from tests.unit.scheduler.machine.policy_truth import POLICIES, PolicyTruth, some_policy
from tests.unit.scheduler.machine.quota_truth import TREES, QuotaTruth, some_tree
from tests.unit.scheduler.machine.watched import Cluster, allocation_of
from tests.unit.scheduler.some_pods import GANGS, SPACE_OF, made_pod, some_pod

NODES = ("n0", "n1", "n2")
#: MiB of the GPUs of each node.
SIZES = {"n0": (8192, 8192), "n1": (4096, 8080, 8192, 8192), "n2": (16384,)}
#: By which units choose nodes.
POOLS = {"n0": "a", "n1": "b", "n2": "c"}
MODES = (
    *(NodeMode.CORE_MEM,) * 4,
    *(NodeMode.TOPOLOGY,) * 2,
    NodeMode.SHARE,
    NodeMode.CGPU,
    NodeMode.MPS,
    NodeMode.DEFAULT,
)

#: The minimum number of rules executed. Examples come in batches, until there was enough of each kind of event.
STEPS = rounds(1_000, soak=10_000)
MOST_BATCHES = 20

machine = settings(
    max_examples=10,
    stateful_step_count=100,
    deadline=None,
    # A failure is shrunk; looking for other ones takes too long.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def node(name: str, generation: int = 0) -> NodeDevices:
    """A node with different GPUs in each generation."""
    devices = tuple(
        Device(index, f"GPU-{name}-{generation}-{index}", size) for index, size in enumerate(SIZES[name])
    )
    return NodeDevices(name, NodeMode.CORE_MEM, MemoryUnit.GIB, devices)


class WholeMachine(Preempting, Moving, Electing, Owning):
    """Ends of pods, faults and kills between any two steps; invariants are checked after each."""

    steps = 0
    """Rules that were carried out, of all examples."""
    both = 0
    """After how many of them both replicas knew everything."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=IdleTimeLoop)
        self.cluster = self.do(self._begin())
        self.truth = QuotaTruth(self.cluster)
        self.of_policies = PolicyTruth(self.cluster)
        self.cluster.api.on_bound = self._was_bound
        self.cluster.pools |= POOLS
        self.cluster.on_switch = self.room_changes
        self.follow_moves()
        self.written = 0
        self.made = 0
        self.generation = dict.fromkeys(NODES, 0)
        self.size_of = {gpu.uuid: gpu.total_mib for name in NODES for gpu in node(name).devices}
        #: Gangs that were disturbed after their first pod was bound: no scheduler is certain to complete them.
        self.disturbed: set[str] = set()
        #: Pods that began to leave with all others of their gangs.
        self.drained: set[str] = set()

    async def _begin(self) -> Cluster:
        return Cluster()

    def _was_bound(self, name: str) -> None:
        self.truth.check_binding(name)
        self.of_policies.check_binding(name)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.do(self.cluster.stop())
        self.runner.close()

    @initialize()
    def nodes_come(self) -> None:
        for name in NODES:
            self.cluster.nodes[name] = node(name)
        self.do(self.cluster.start(0, 1))
        WholeMachine.steps -= 1  # the start is no step, though invariants are checked after it

    # --- pods -------------------------------------------------------------------------------------

    @rule(new=st.lists(some_pod(), min_size=1, max_size=6), together=st.integers(1, 5))
    def pods_are_made(self, new: list[dict[str, Any]], together: int) -> None:
        for settings_of in new:
            for _ in range(together if settings_of["labels"].get(names.LABEL_GANG_NAME) else 1):
                self.made += 1
                name = f"p{self.made}"
                self.cluster.api.create(made_pod(name, f"uid-{self.made}", **settings_of))
                self.cluster.api.changed(name)

    @rule(new=st.lists(some_pod(), min_size=4, max_size=12))
    def a_day_goes_as_planned(self, new: list[dict[str, Any]]) -> None:
        """Create pods, deliver them, schedule them, and deliver the result."""
        self.pods_are_made(new, 5)
        self.do(self.cluster.taken_over())
        for _ in range(2):
            self.cluster.leader.tell_all()
            self.do(self.cluster.schedule(self.cluster.waiting()))
        self.cluster.leader.tell_all()

    @rule(data=st.data(), phase=st.sampled_from(("Succeeded", "Failed", "leaves", "")))
    def a_pod_ends(self, data: st.DataObject, phase: str) -> None:
        """Or begins to terminate, or is deleted, whether it was bound or not."""
        if not self.cluster.api.pods:
            return
        name = data.draw(st.sampled_from(sorted(self.cluster.api.pods))).partition("/")[2]
        self.befell(name)
        bound = self.cluster.api.pods[self.cluster.api.key(name)]["spec"]["nodeName"]
        if phase == "leaves" and bound:
            self.leaves(name)
        elif phase and bound:
            self.cluster.api.pods[self.cluster.api.key(name)]["status"]["phase"] = phase
            self.cluster.api.changed(name)
        else:
            self.cluster.api.remove(name)

    @rule()
    def those_that_leave_are_gone(self) -> None:
        """Evicted pods end at some time."""
        for key, pod in list(self.cluster.api.pods.items()):
            if pod["metadata"].get("deletionTimestamp"):
                self.befell(key.partition("/")[2])
                self.cluster.api.remove(key.partition("/")[2])

    @rule(gang=st.sampled_from(sorted(GANGS)), successors=st.integers(0, 6), mem=st.sampled_from((2, 4, 7)))
    def a_gang_is_drained(self, gang: str, successors: int, mem: int) -> None:
        """Its running pods begin to terminate, the rest is deleted: of its successors enough run, or none, as of any gang."""
        for key, pod in list(self.cluster.api.pods.items()):
            if self._gang_of(pod) != gang:
                continue
            name = key.partition("/")[2]
            if pod["spec"]["nodeName"] and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                pod["metadata"].setdefault("deletionTimestamp", "2026-11-22T10:00:00Z")
                self.cluster.api.changed(name)
                self.drained.add(name)
            else:
                self.cluster.api.remove(name)
        self.disturbed.discard(gang)
        labels = {names.LABEL_GANG_NAME: gang, names.LABEL_GANG_LEAST: str(GANGS[gang])}
        settings_of = {"mem": mem, "core": None, "labels": labels, "namespace": SPACE_OF[gang]}
        for _ in range(successors):
            self.made += 1
            name = f"p{self.made}"
            self.cluster.api.create(made_pod(name, f"uid-{self.made}", gpus=None, beside=[], **settings_of))
            self.cluster.api.changed(name)

    def befell(self, name: str) -> None:
        if name in self.drained:
            return  # others have taken its place
        gang = self._gang_of(self.cluster.api.pods[self.cluster.api.key(name)])
        if gang:
            self.disturbed.add(gang)

    def leaves(self, name: str) -> None:
        """Its end was requested, and it has time to end."""
        pod = self.cluster.api.pods[self.cluster.api.key(name)]
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
            self.cluster.api.changed(name)

    def room_changes(self) -> None:
        """Gangs of which one was bound and the API server lost the others' Bindings may find no room for them any more."""
        self.disturbed |= {gang for gang in GANGS if self._half_placed(gang)}

    @staticmethod
    def _gang_of(pod: dict[str, Any]) -> str:
        return str(pod["metadata"]["labels"].get(names.LABEL_GANG_NAME, ""))

    # --- nodes ------------------------------------------------------------------------------------

    @precondition(lambda self: self.cluster.nodes)
    @rule(
        data=st.data(),
        changes=st.one_of(
            st.builds(dict, mode=st.sampled_from(MODES)),
            st.builds(dict, unit=st.sampled_from(MemoryUnit)),
            st.builds(
                dict, placement=st.sampled_from(Placement), max_pods=st.sampled_from((None, None, 1, 2, 16))
            ),
        ),
    )
    def a_node_is_labelled_otherwise(self, data: st.DataObject, changes: dict[str, Any]) -> None:
        """Or its memory unit changes, under running pods."""
        self.room_changes()
        name = data.draw(st.sampled_from(sorted(self.cluster.nodes)))
        self.cluster.set_node(structs.replace(self.cluster.nodes[name], **changes))

    @precondition(lambda self: self.cluster.nodes)
    @rule(
        data=st.data(),
        lost=st.integers(0, 3),
        changes=st.sampled_from(
            (
                {"healthy": True, "reason": "", "cordoned": False, "foreign_mib": 0},
                {"healthy": False, "reason": "XID 79"},
                {"cordoned": True},
                {"foreign_mib": 2000},
            )
        ),
    )
    def a_gpu_fails_recovers_or_falls_off_the_bus(
        self, data: st.DataObject, lost: int, changes: dict[str, Any]
    ) -> None:
        before = self.cluster.nodes[data.draw(st.sampled_from(sorted(self.cluster.nodes)))]
        if not before.devices:
            return
        self.room_changes()
        struck = data.draw(st.sampled_from(before.devices))
        after = () if lost == 0 else (structs.replace(struck, **changes),)
        devices = tuple(one for gpu in before.devices for one in (after if gpu is struck else (gpu,)))
        self.cluster.set_node(structs.replace(before, devices=devices))

    @rule(name=st.sampled_from(NODES), comes=st.integers(0, 3))
    def a_node_goes_or_comes_back(self, name: str, comes: int) -> None:
        """With its old GPUs, or with others in their places."""
        self.room_changes()
        if comes == 0 and name in self.cluster.nodes:
            self.cluster.remove_node(name)
            return
        self.generation[name] += comes == 1
        devices = node(name, self.generation[name])
        self.size_of |= {gpu.uuid: gpu.total_mib for gpu in devices.devices}
        self.cluster.set_node(devices)

    # --- quotas and policies ----------------------------------------------------------------------

    @rule(number=st.integers(-1, len(TREES) - 1))
    def the_quotas_change_or_go(self, number: int) -> None:
        self.room_changes()
        self.written += 1
        self.cluster.set_tree(None if number < 0 else some_tree(number, self.written))

    @rule(number=st.integers(-2, len(POLICIES) - 1))
    def the_policy_changes_or_goes(self, number: int) -> None:
        self.room_changes()
        self.written += 1
        self.cluster.set_policy(None if number < 0 else some_policy(number, self.written))

    # --- the scheduler ----------------------------------------------------------------------------

    @rule(
        order=st.randoms(use_true_random=False),
        fates=st.lists(st.sampled_from(("", "", "lost before", "lost after", "failed")), max_size=4),
    )
    def pods_are_scheduled(self, order: Any, fates: list[str]) -> None:
        waiting = self.cluster.waiting()
        order.shuffle(waiting)
        self.cluster.api.answers.extend(fates)
        self.do(self.cluster.schedule(waiting))
        self.cluster.api.answers.clear()

    @rule(seconds=st.sampled_from((1, 2, 5, 20, 70, 200)))
    def time_passes(self, seconds: int) -> None:
        self._turn(seconds)

    def _turn(self, seconds: int) -> None:
        evictions_before = len(self.cluster.api.evicted)
        self.do(self.cluster.turn(seconds))
        for name in self.cluster.api.evicted[evictions_before:]:
            self.befell(name)

    # --- invariants -------------------------------------------------------------------------------

    @invariant()
    def a_step_was_made(self) -> None:
        WholeMachine.steps += 1

    @invariant()
    def no_gpu_is_allocated_twice(self) -> None:
        mib: Counter[str] = Counter()
        core: Counter[str] = Counter()
        whole: dict[str, str] = {}
        holders: dict[str, list[str]] = defaultdict(list)
        for name, pod in self.cluster.running().items():
            if not _asks(pod):
                continue
            for share in allocation_of(pod).gpus:
                mib[share.uuid] += share.mib
                core[share.uuid] += share.core_percent
                holders[share.uuid].append(name)
                if names.LABEL_POD_PLACEMENT in pod["metadata"]["labels"]:
                    whole[share.uuid] = name
        for uuid, used in mib.items():
            assert used <= self.size_of[uuid], f"{uuid}: {used} MiB for {holders[uuid]}"
            assert core[uuid] <= 100, f"{uuid}: {core[uuid]}% for {holders[uuid]}"
        for uuid, name in whole.items():
            assert holders[uuid] == [name], f"{uuid} was allocated whole to {name}, and to {holders[uuid]}"

    @invariant()
    def the_books_are_those_of_the_api_server(self) -> None:
        """Of each replica whose watches have delivered everything, and of a new one: so they are equal."""
        caught_up = [replica for replica in self.cluster.replicas if replica.caught_up()]
        if not caught_up:
            return
        again = self.cluster.rebuilt_lately()
        truth = {pod["metadata"]["uid"]: pod for pod in self.cluster.running().values() if _asks(pod)}
        usage = {name: again.ledger.usage(name) for name in NODES}
        for replica in caught_up:
            ledger = replica.world.ledger
            for uid, pod in truth.items():
                held = ledger.held(uid)
                assert held is not None, f"{uid} is lost"
                assert (held.node, held.allocation) == (pod["spec"]["nodeName"], allocation_of(pod))
            assert ledger.totals().pods == len(truth), "no other pod holds anything"
            assert ledger.totals().reserved == 0
            assert again.quotas.books.usage() == replica.world.quotas.books.usage()
            assert {name: ledger.usage(name) for name in NODES} == usage
            assert ledger.totals() == again.ledger.totals()
        if self.cluster.leader in caught_up:
            self.truth.books_agree()
            self.of_policies.books_agree()
        WholeMachine.both += len(caught_up) == 2

    @rule()
    def once_all_is_calm_no_gang_runs_in_part(self) -> None:
        """Deliver everything, and retry every pod that could not be bound, for longer than capacity is reserved."""
        self.cluster.api.lease.lost_after = 0
        self.do(self.cluster.taken_over())
        for _ in range(3):
            self.cluster.leader.tell_all()
            self.do(self.cluster.schedule(self.cluster.waiting()))
            self._turn(20)
        self.cluster.leader.tell_all()
        there = {self._gang_of(pod) for pod in self.cluster.api.pods.values()}
        self.disturbed &= there  # those without a pod left begin as any gang
        for gang in GANGS:
            assert gang in self.disturbed or not self._half_placed(gang), f"gang {gang} runs in part"

    @rule()
    def unused_reservations_are_released_in_the_end(self) -> None:
        """No pod is tried for longer than capacity is reserved for a gang: nothing is reserved any more."""
        for _ in range(4):
            self.the_watches_tell_all(2)
            self.time_passes(70)
        self.the_watches_tell_all(2)
        for replica in self.cluster.replicas:
            world = replica.world
            assert world.ledger.totals().reserved == 0
            assert not world.policies.promises
            # Nominated or not: a pod that does not use its reservation loses it. Pods are moved all the while, also for pods
            # that are not tried: how long capacity is reserved for those is checked after each step.
            still_reserved = {
                name: world.ledger.nominations.node_of(uid)
                for name in self.cluster.waiting()
                if (uid := self._uid(name)) not in replica.mover._reservations
            }
            assert not any(still_reserved.values()), still_reserved
            sums = [name for name in still_reserved if world.quotas.keeps(self._uid(name))]
            assert not sums, sums

    def _uid(self, name: str) -> str:
        return str(self.cluster.api.pods[self.cluster.api.key(name)]["metadata"]["uid"])

    def _half_placed(self, gang: str) -> bool:
        """Whether pods with a GPU run without the others; pods without are bound without a call to us."""
        bound = [
            pod
            for pod in self.cluster.running().values()
            if self._gang_of(pod) == gang and "deletionTimestamp" not in pod["metadata"]
        ]
        return any(map(_asks, bound)) and len(bound) < GANGS[gang]


def _asks(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"]["containers"][0]["resources"]["limits"])


def _lacking() -> list[str]:
    """Events that have not occurred often enough yet."""
    least = (
        (Preempting.added, 2, "the verb has to add a victim"),
        (Moving.moved, 1, "pods have to be moved to be looked at"),
        (Moving.spared, 2, "budgets have to stand against moves"),
        (Electing.switched, 50, "the lease has to go to and fro"),
        (WholeMachine.both, 500, "ledgers have to be compared"),
    )
    return [words for times, enough, words in least if times < enough]


@pytest.mark.randomized
@pytest.mark.no_cover  # would more than double the duration; other tests cover the same lines
@pytest.mark.timeout(1800)
def test_no_capacity_is_allocated_twice_whatever_happens() -> None:
    WholeMachine.steps = 0
    for number in range(MOST_BATCHES):
        if not SOAK:
            seed(number)(WholeMachine)
        run_state_machine_as_test(WholeMachine, settings=machine)  # type: ignore[no-untyped-call]
        if WholeMachine.steps >= STEPS and (SOAK or not _lacking()):
            break
    print(
        f"{WholeMachine.steps} steps; {Preempting.preempted} ended for others, {Preempting.added} by us alone;"
        f" {Moving.acts} acts of moving, {Moving.moved} moved, {Moving.spared} plans against budgets; {Electing.switched} switches of the leader,"
        f" both knew everything after {WholeMachine.both} steps"
    )
    assert WholeMachine.steps >= STEPS
    # In a round of make soak some kind of event may be rare.
    assert SOAK or not _lacking()
