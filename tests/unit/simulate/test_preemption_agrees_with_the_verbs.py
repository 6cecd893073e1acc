"""A simulation evicts the same pods as a cluster: compared with the extender's verbs, called with encoded bodies, and its preemptor."""

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.disruption import DisruptionBudget, decode_budget
from gpushare.api.json_objects import Json, key_of, name_of, spec_of, uid_of
from gpushare.api.node.device import Placement
from gpushare.kube.client.errors import ApiError
from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.node_usage import Occupancy, priority_of
from gpushare.kubescheduler.preemption import Candidate, Worth, candidates, cheapest
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.plugins.preemption.plugin import SETTLE_S, Preemptor
from gpushare.scheduler.server import protocol
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.eviction import MOST_TIMES, unscheduled
from gpushare.simulate.engine.simulation import simulate
from gpushare.simulate.engine.virtual_clock import JumpingClock, run
from gpushare.simulate.input.manifests import manifests_of
from gpushare.simulate.snapshot import ClusterState, counting_of
from gpushare_playground.kubescheduler.cycle import Unschedulable, choose
from gpushare_playground.kubescheduler.extender import FilterResult
from tests.randomized import rounds
from tests.unit.scheduler.world import Api, Recorded, Refusing, framework_of
from tests.unit.simulate.objects import node, pod
from tests.unit.simulate.test_agrees_with_the_verbs import GPUS, Verbs

quick = settings(max_examples=rounds(30, soak=60), deadline=None)
APP = "app"


class GuardedApi(Api):
    """Evicts no pod that its budget protects; pods that are being deleted do not count as healthy."""

    def __init__(self, min_available: int) -> None:
        super().__init__()
        self._min_available = min_available

    def budget(self) -> DisruptionBudget:
        """A minimum of pods of one app has to stay."""
        healthy = sum(
            bool(spec_of(one).get("nodeName"))
            and one["metadata"]["labels"].get(APP) == "kept"
            and "deletionTimestamp" not in one["metadata"]
            for one in self.pods.values()
        )
        spec = {"selector": {"matchLabels": {APP: "kept"}}}
        status = {"disruptionsAllowed": max(healthy - self._min_available, 0)}
        metadata = {"name": "b", "namespace": "default"}
        return decode_budget(msgspec.json.encode({"metadata": metadata, "spec": spec, "status": status}))

    async def list_budgets(self) -> list[DisruptionBudget]:
        return [self.budget()]

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        guarded = self.pods[f"{namespace}/{name}"]["metadata"]["labels"].get(APP) == "kept"
        if guarded and not self.budget().status.disruptions_allowed:
            raise ApiError(429, "TooManyRequests", "the disruption budget b needs 3 healthy pods", "")
        await super().evict_pod(namespace, name, uid=uid)


class Cluster(Verbs):
    """kube-scheduler's loop with its own preemption, the extender's verbs, and the preemptor."""

    def __init__(
        self,
        nodes: Sequence[Json],
        pods: Sequence[Json],
        policy: Placement,
        min_available: int,
        seed: int,
        *,
        alone: bool,
    ) -> None:
        self.guarded = GuardedApi(min_available)
        super().__init__(nodes, policy, self.guarded)
        self.clock = JumpingClock(0)
        self.preemptor = Preemptor(self.view, self.api, Recorded(), self.clock)
        self.ignored = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage") if alone else ()
        self.occupancy = Occupancy()
        self.chance = random.Random(seed).random
        self.evicted: list[tuple[str, str]] = []
        self.again: list[str] = []
        self.times: dict[str, int] = {}
        for one in nodes:
            self.occupancy.set_node(one)
        self.current = self.api.pods
        for one in pods:
            self.take(msgspec.json.decode(msgspec.json.encode(one)))

    def take(self, item: Json) -> None:
        self.api.create(item)
        self.observe(item)

    async def filter(self, item: Json, names: Sequence[str]) -> FilterResult:
        body = msgspec.json.encode({"Pod": item, "Nodes": None, "NodeNames": list(names)})
        response = filter_nodes(self.view, Bodies().read(body), framework_of(Refusing(self.refused)))
        return msgspec.json.decode(response, type=FilterResult)

    def refused(self, uid: str, nodes: Any) -> None:
        self.preemptor.post_filter(uid, nodes)

    async def schedule(self, keys: list[str]) -> None:
        queue = self.by_rank(keys)
        while True:
            evicted = len(self.evicted)
            left = [key for key in queue if not await self.tried(key)]
            await self.settled()
            if len(self.evicted) == evicted and len(left) in (0, len(queue)):
                return
            queue = self.by_rank([*left, *self.again])
            self.again = []

    def by_rank(self, keys: list[str]) -> list[str]:
        return sorted(keys, key=lambda key: -priority_of(self.current[key]))

    async def tried(self, key: str) -> bool:
        item = self.current[key]
        extender: Any = self if self.is_interested(item) else None
        try:
            try:
                on = (await choose(item, self.occupancy, extender, self.chance, self.left_out(item))).node
            except Unschedulable:
                nominated = self.by_sums(item)
                if not nominated:
                    raise
                found = await self.filter(item, [nominated]) if self.is_interested(item) else None
                if found is None or found.node_names:
                    on = nominated
                else:
                    on = (await choose(item, self.occupancy, extender, self.chance, self.left_out(item))).node
            if self.is_interested(item):
                await self.bind(item, on)
            else:
                item["spec"]["nodeName"] = on
        except (Unschedulable, BindRefused):
            return False
        self.observe(item)
        self.occupancy.place(item)
        return True

    def left_out(self, item: Json) -> Sequence[str]:
        """The resources of a pod that kube-scheduler ignores."""
        return self.ignored if self.is_interested(item) else ()

    def by_sums(self, item: Json) -> str:
        """kube-scheduler's own preemption; the verb preempt with encoded body and response."""
        if item["spec"]["preemptionPolicy"] == "Never":
            return ""
        ours = self.is_interested(item)
        wanted = Wanted(item, self.left_out(item))
        refusing = [state for state in self.occupancy if wanted.refusals(state)]
        by_uid = {uid_of(one): one for one in self.current.values()}
        allowed = self.guarded.budget().status.disruptions_allowed

        def worth(uid: str) -> Worth:
            return Worth(priority_of(by_uid[uid]), "~")

        def guarded(uids: Collection[str]) -> set[str]:
            protected = [uid for uid in uids if by_uid[uid]["metadata"]["labels"].get(APP) == "kept"]
            return set(protected[allowed:])

        found = candidates(wanted, refusing, self.occupancy, worth, guarded)
        if found and ours:
            victims = {
                one.node: {"Pods": [{"UID": uid} for uid in one.victims], "NumPDBViolations": one.violations}
                for one in found
            }
            body = msgspec.json.encode({"Pod": item, "NodeNameToMetaVictims": victims})
            response = preempt_pods(
                self.view,
                protocol.read_preemption(body),
                self.preemptor.left_to_scheduler,
                protected=guarded,
            )
            found = [
                Candidate(name, tuple(each["UID"] for each in one["Pods"]), one["NumPDBViolations"])
                for name, one in msgspec.json.decode(response)["NodeNameToMetaVictims"].items()
            ]
        if not found:
            return ""
        taken = cheapest(found, worth)
        for uid in taken.victims:
            assert priority_of(by_uid[uid]) < priority_of(item)
            self.end(key_of(by_uid[uid]), key_of(item))
        return taken.node

    async def settled(self) -> None:
        working = asyncio.create_task(self.preemptor.run())
        await self.clock.sleep(2.5 * SETTLE_S)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        names, self.api.evicted = self.api.evicted, []
        for name in names:
            self.end(f"default/{name}", "")

    def end(self, key: str, by: str) -> None:
        item = self.current.pop(key)
        record = self.view.bound.get(uid_of(item))
        if record is not None:
            self.view.remove_pod(record)
        self.occupancy.remove(uid_of(item))
        self.evicted.append((key, by))
        self.times[key] = self.times.get(key, 0) + 1
        assert self.times[key] < MOST_TIMES
        meta = {each: value for each, value in item["metadata"].items() if each != "deletionTimestamp"}
        meta["uid"] = f"{uid_of(item).partition('~')[0]}~{self.times[key]}"
        self.take(unscheduled({**item, "metadata": meta}))
        self.again.append(key)


pod_lists = st.lists(
    st.tuples(
        st.sampled_from((None, 1, 2, 3, 5, 8, 15)),
        st.sampled_from((None, None, 30)),
        st.sampled_from(("100m", "1", "3")),
        st.integers(0, 3),
        st.sampled_from(("kept", "other")),
        st.booleans(),
    ),
    min_size=2,
    max_size=14,
)
node_lists = st.lists(
    st.tuples(GPUS, st.sampled_from(("share", "core_mem")), st.sampled_from(("2", "4", "16"))),
    min_size=1,
    max_size=4,
)


@quick
@given(node_lists, pod_lists, st.sampled_from(Placement), st.integers(0, 3), st.integers(0, 2), st.booleans())
def test_the_same_pods_are_evicted_as_by_the_extender_and_kube_scheduler(
    shapes: list[Any], requested: list[Any], policy: Placement, min_available: int, seed: int, alone: bool
) -> None:
    nodes = tuple(
        node(f"n{number}", *gpus, mode=mode, cpu=cpu) for number, (gpus, mode, cpu) in enumerate(shapes)
    )
    guard = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {APP: "kept"}}, "minAvailable": min_available},
    }
    documents = []
    for number, (mem, core, cpu, _, app, preempts) in enumerate(requested):
        made = pod(f"p{number}", mem, core if mem else None, labels={APP: app})
        made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
        made["spec"]["preemptionPolicy"] = "PreemptLowerPriority" if preempts else "Never"
        documents.append(("test", made))
    empty = ClusterState(nodes)
    wanted_pods = [one for one in manifests_of(documents, empty, counting_of(empty)).pods if not one.refused]
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    for one in wanted_pods:
        one.pod["metadata"]["ownerReferences"] = [owner]
    # First only the pods of lower priority are scheduled.
    by_name = {f"p{number}": row[3] for number, row in enumerate(requested)}
    for one in wanted_pods:
        one.pod["spec"]["priority"] = by_name[name_of(one.pod)]
    first = [one for one in wanted_pods if by_name[name_of(one.pod)] < 2]
    placed = _bound(nodes, [one.pod for one in first], policy, seed)
    state = ClusterState(nodes, tuple(placed), budgets=(guard,))
    arriving = [one for one in wanted_pods if by_name[name_of(one.pod)] >= 2]
    result = simulate(state, arriving, Settings(policy, seed=seed, ignored_by_scheduler=alone))
    expected = run(
        _run_cluster(nodes, placed, [one.pod for one in arriving], policy, min_available, seed, alone=alone)
    )
    assert [one.victim for one in result.evictions] == [key for key, _ in expected.evicted]
    by_sums = {(key, by) for key, by in expected.evicted if by}
    assert by_sums <= {(one.victim, one.by) for one in result.evictions}
    found = {fate.pod: (fate.node, [share.index for share in fate.gpus]) for fate in result.fates}
    for key, simulated in found.items():
        item = expected.current[key]
        held = expected.ledger.held(uid_of(item))
        indexes = [share.index for share in held.allocation.gpus] if held else []
        assert simulated == (item["spec"].get("nodeName") or "", indexes)
    priorities = {key_of(one.pod): priority_of(one.pod) for one in wanted_pods}
    for eviction in result.evictions:
        assert priorities[eviction.victim] < priorities[eviction.by]
    for usage in result.nodes:
        assert all(gpu.used_units <= gpu.total_units for gpu in usage.gpus)


def _bound(nodes: tuple[Json, ...], pods: list[Json], policy: Placement, seed: int) -> list[Json]:
    """The pods as they are once placed; those that fit nowhere are left out."""
    from gpushare.simulate.engine.engine import Scheduling

    async def scheduled() -> list[Json]:
        made = Scheduling(
            ClusterState(nodes),
            Settings(policy, seed=seed, preemption=False, ignored_by_scheduler=False),
            JumpingClock(0),
        )
        for one in pods:
            made.arrive(one)
        unplaced = await made.schedule(list(made.pods))
        return [one for key, one in made.pods.items() if key not in unplaced]

    return run(scheduled())


async def _run_cluster(
    nodes: Sequence[Json],
    running: Sequence[Json],
    arriving: Sequence[Json],
    policy: Placement,
    min_available: int,
    seed: int,
    *,
    alone: bool,
) -> Cluster:
    cluster = Cluster(nodes, running, policy, min_available, seed, alone=alone)
    for item in list(cluster.current.values()):
        cluster.occupancy.place(item)
    pending = [msgspec.json.decode(msgspec.json.encode(one)) for one in arriving]
    for item in pending:
        cluster.take(item)
    await cluster.schedule([key_of(item) for item in pending])
    return cluster
