"""A cluster whose changes are told by two watches, late and in any order between them, to a scheduler that may be killed."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from gpushare.kube.errors import ApiError, Unreachable
from gpushare.model import names
from gpushare.model.allocation import Allocation
from gpushare.model.device import NodeDevices
from gpushare.model.disruption import DisruptionBudget, violating
from gpushare.model.objects import decode_pod
from gpushare.model.quota_tree import QuotaTreeRecord
from gpushare.model.resource_policy import PolicyPod, ResourcePolicy, policy_pod_of
from gpushare.model.wire import read_allocation
from gpushare.scheduler.bind import Binder, BindRefused
from gpushare.scheduler.extender import Bodies, filter_nodes, prioritize_nodes
from gpushare.scheduler.policies import Policies
from gpushare.scheduler.policy_binding import PolicyBinding
from gpushare.scheduler.preempt_verb import preempt_pods
from gpushare.scheduler.records import PodRecord, followed_record_of
from gpushare.scheduler.view import NodeRecord
from gpushare.scheduler.wire import BindingArgs, read_preemption
from tests.unit.scheduler.world import Api, TurnedClock, World

PATIENCE_S = 0.002


def covers(budget: DisruptionBudget, pod: dict[str, Any]) -> bool:
    return budget.covers(pod["metadata"]["namespace"], pod["metadata"]["labels"])


class WatchedApi(Api):
    """As its base, and tells of every change of a pod."""

    def __init__(self) -> None:
        super().__init__()
        self.told: deque[tuple[PodRecord, bool]] = deque()
        """What the watch of pods has still to tell: a record, and whether it is the last of its pod."""
        self._known: dict[str, PodRecord] = {}
        self.told_policies: deque[tuple[PolicyPod, bool]] = deque()
        """What the watch of the pods of namespaces with ResourcePolicies has still to tell."""
        self.answers: deque[str] = deque()
        """What becomes of the next Bindings: ``lost before`` and ``lost after`` they were written, ``failed``."""
        self.on_bound: Callable[[str], None] = lambda name: None
        self.on_evicted: Callable[[str], None] = lambda name: None
        self.forbidden: list[str] = []
        """Pods whose eviction was asked for and that budgets did not let go."""
        self.informed = False
        """Whether the scheduler knew of everything when it last had pods ended for another."""

    def record(self, name: str) -> PodRecord | None:
        return followed_record_of(decode_pod(self.pods[self.key(name)]), self.counted_in)

    def changed(self, name: str) -> None:
        self._tell(name, last=False)

    def _tell(self, name: str, *, last: bool) -> None:
        record = self.record(name)
        if record is not None:
            self.told.append((record, last))
            self._known[name] = record
        elif name in self._known:
            self.told.append((self._known.pop(name), True))
        pod = decode_pod(self.pods[self.key(name)])
        self.told_policies.append((policy_pod_of(pod), last or pod.finished))

    def remove(self, name: str) -> None:
        self._tell(name, last=True)
        del self.pods[self.key(name)]

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        fate = self.answers.popleft() if self.answers else ""
        await asyncio.sleep(0)
        if fate == "lost before":
            raise Unreachable("API server", "connection reset", sent=None)
        if fate == "failed":
            raise ApiError(500, "InternalError", "etcdserver: request timed out", "")
        await super().bind(namespace=namespace, name=name, uid=uid, node=node, annotations=annotations)
        self.changed(name)
        self.on_bound(name)
        if fate == "lost after":
            raise Unreachable("API server", "connection reset", sent=None)

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> None:
        if f"{namespace}/{name}" not in self.pods:
            raise ApiError(404, "NotFound", f'pods "{name}" not found', "")
        await super().annotate_pod(namespace, name, annotations, uid=uid)

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        pod = self.pods.get(f"{namespace}/{name}")
        covering = [one for one in self.budgets if pod is not None and covers(one, pod)]
        if len(covering) > 1 or any(one.status.disruptions_allowed < 1 for one in covering):
            self.forbidden.append(name)
            raise ApiError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                "",
            )
        await super().evict_pod(namespace, name, uid=uid)
        for one in covering:
            one.status.disruptions_allowed -= 1
        self.changed(name)
        self.on_evicted(name)

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        self.informed = not self.told
        await super().nominate(namespace, name, node, uid=uid)

    def claims(self, name: str) -> None:
        """Others are about to be ended for a pod that is nominated nowhere."""
        self.informed = not self.told
        self.nominated.append((name, ""))


class Governed(World):
    """A scheduler with ResourcePolicies."""

    def __init__(self, api: WatchedApi, clock: TurnedClock) -> None:
        super().__init__(api, clock)
        self.policies = Policies(clock)
        self.policies.kept_on = self.ledger.kept_on
        self.preemptor.in_turn = self.policies.by_unit
        self.view.gangs.is_governed = self.policies.governs
        self.binding = PolicyBinding(api, self.policies, clock)
        self.binder = Binder(self.view, self.binding, self.reservations, clock)
        keep = self.view.quotas.keep

        def kept(uid: str) -> None:
            api.claims(self.view.waiting_besides[uid].pod.partition("/")[2])
            keep(uid)

        setattr(self.view.quotas, "keep", kept)  # noqa: B010 - it stands for a nomination


class Cluster:
    """The API server, its nodes, and the scheduler that leads now."""

    def __init__(self) -> None:
        self.api = WatchedApi()
        self.clock = TurnedClock()
        self.nodes: dict[str, NodeDevices] = {}
        self.told: deque[tuple[str, NodeDevices | None]] = deque()
        """What the watch of nodes has still to tell."""
        self.tree: QuotaTreeRecord | None = None
        self.told_trees: deque[tuple[str, QuotaTreeRecord, bool]] = deque()
        """What the watch of ElasticQuotaTrees has still to tell: key, tree, and whether it is gone."""
        self.on_tree: Callable[[], None] = lambda: None
        """Called when the scheduler counts by another tree."""
        self.policy: ResourcePolicy | None = None
        self.told_policies: deque[tuple[ResourcePolicy, bool]] = deque()
        """What the watch of ResourcePolicies has still to tell, and whether it is gone."""
        self.pools: dict[str, str] = {}
        """The label ``pool`` of each node, by which units choose."""
        self.known_pools: dict[str, str] = {}
        """What the scheduler knows of them."""
        self.world = Governed(self.api, self.clock)
        self._tasks: list[asyncio.Task[None]] = []

    # --- the scheduler's life -------------------------------------------------------------------

    def rebuilt(self) -> Governed:
        """A scheduler that has read the API server just now, and does nothing yet."""
        world = Governed(self.api, self.clock)
        world.view.gangs._patience_s = PATIENCE_S
        if self.tree is not None:
            world.view.quotas.upsert(self.tree)
        for devices in self.nodes.values():
            world.add_node(devices)
        for key in self.api.pods:
            world.see(key.partition("/")[2])
        for node, pool in self.pools.items():
            world.policies.census.set_node(node, {"pool": pool})
        if self.policy is not None:
            world.policies.upsert_policy(self.policy)
            self._list_pods(world.policies)
        return world

    def _list_pods(self, policies: Policies) -> None:
        """The first list of the pods of a namespace with policies."""
        for pod in map(decode_pod, self.api.pods.values()):
            if not pod.finished:
                policies.upsert_pod(policy_pod_of(pod))
        policies.unread.clear()

    async def start(self) -> None:
        """Kill the one that leads; another begins."""
        await self.stop()
        self.api.told.clear()
        self.told.clear()
        self.told_trees.clear()
        self.told_policies.clear()
        self.api.told_policies.clear()
        self.known_pools = dict(self.pools)
        self.world = self.rebuilt()
        self.on_tree()
        self._tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (
                self.world.binder.sweep(),
                self.world.retries.run(),
                self.world.preemptor.run(),
                self.world.binding.run(),
            )
        ]
        await self.settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def settle(self) -> None:
        """Let whatever can go on go on: with everybody's turn between the plans for the pods of a few gangs."""
        for _ in range(48):
            await asyncio.sleep(0)
        for task in self._tasks:
            assert not task.done(), task

    async def turn(self, seconds: float) -> None:
        """Let time pass, a second at a time while little of it is asked for: loops look once a second."""
        for _ in range(min(int(seconds), 4)):
            await self.clock.turn(seconds / min(int(seconds), 4))
            await self.settle()

    # --- what the watches tell ------------------------------------------------------------------

    def tell_pods(self, most: int) -> None:
        for _ in range(min(most, len(self.api.told))):
            record, last = self.api.told.popleft()
            if last:
                self.world.view.remove_pod(record)
                self.world.nominated.gone(record.uid)
            else:
                self.world.view.upsert_pod(record)
                self.world.nominated.seen(record)

    def tell_nodes(self, most: int) -> None:
        for _ in range(min(most, len(self.told))):
            name, devices = self.told.popleft()
            if devices is None:
                self.world.view.remove_node(name)
            else:
                self.world.view.upsert_node(NodeRecord(devices, ""))

    def tell_policies(self, most: int) -> None:
        """Of policies, and of the pods that they may govern."""
        policies = self.world.policies
        for _ in range(min(most, len(self.api.told_policies))):
            pod, last = self.api.told_policies.popleft()
            if last:
                policies.remove_pod(pod)
            else:
                policies.upsert_pod(pod)
        for _ in range(min(most, len(self.told_policies))):
            policy, gone = self.told_policies.popleft()
            if gone:
                policies.remove_policy(policy.key)
                continue
            policies.upsert_policy(policy)
            if policies.unread:
                # Its pods are listed anew, and watched from there.
                self.api.told_policies.clear()
                self._list_pods(policies)

    def tell_pools(self) -> None:
        for node, pool in self.pools.items():
            if self.known_pools.get(node) != pool:
                self.known_pools[node] = pool
                self.world.policies.census.set_node(node, {"pool": pool})

    def set_policy(self, policy: ResourcePolicy | None) -> None:
        """Another policy, or with ``None`` none any more."""
        told = policy or self.policy
        if told is not None:
            self.told_policies.append((told, policy is None))
        self.policy = policy

    def tell_trees(self, most: int) -> None:
        for _ in range(min(most, len(self.told_trees))):
            key, tree, gone = self.told_trees.popleft()
            if gone:
                self.world.view.quotas.remove(key, tree)
            else:
                self.world.view.quotas.upsert(tree)
            self.on_tree()

    def set_tree(self, tree: QuotaTreeRecord | None) -> None:
        """Another tree, or with ``None`` none any more."""
        told = tree or self.tree
        if told is not None:
            self.told_trees.append((f"{names.QUOTA_NAMESPACE}/{told.name}", told, tree is None))
        self.tree = tree

    def set_node(self, devices: NodeDevices) -> None:
        self.nodes[devices.name] = devices
        self.told.append((devices.name, devices))

    def remove_node(self, name: str) -> None:
        del self.nodes[name]
        self.told.append((name, None))

    # --- kube-scheduler -------------------------------------------------------------------------

    def ask(self, name: str, nodes: list[str]) -> str:
        """The node that kube-scheduler would choose for the pod, empty where there is none."""
        body = msgspec.json.encode({"Pod": self.api.pods[self.api.key(name)], "NodeNames": nodes})
        bodies = Bodies()
        fits = msgspec.json.decode(
            filter_nodes(self.world.view, bodies.read(body), self.world.refused, self.world.policies)
        )["NodeNames"]
        if not fits:
            return ""
        scored = msgspec.json.encode({"Pod": self.api.pods[self.api.key(name)], "NodeNames": fits})
        points = {
            one["Host"]: one["Score"]
            for one in msgspec.json.decode(prioritize_nodes(self.world.view, bodies.read(scored)))
        }
        return max(fits, key=lambda node: points.get(node, 0))

    async def bind(self, name: str, node: str) -> bool:
        """Whether the extender said that the pod is bound."""
        uid = self.api.pods[self.api.key(name)]["metadata"]["uid"]
        try:
            await self.world.binder.bind(BindingArgs(self.api.key(name).partition("/")[0], name, uid, node))
        except BindRefused:
            return False
        return True

    async def schedule(self, pods: list[str]) -> None:
        """A cycle for each of the pods: all are asked about, then bound side by side."""
        chosen = {name: node for name in pods if (node := self.ask(name, sorted(self.nodes)))}
        await asyncio.gather(*(self.bind(name, node) for name, node in chosen.items()))
        await self.settle()

    def preempt(self, name: str, node: str, victims: list[str]) -> list[str]:
        """Whom kube-scheduler ends on ``node`` for the pod, having asked; nobody where that is of no use."""
        pods = self.api.pods
        uids = {pods[self.api.key(victim)]["metadata"]["uid"]: victim for victim in victims}
        already = len(self._against(uids))
        body = {
            "Pod": pods[self.api.key(name)],
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": already}
            },
        }
        answer = preempt_pods(
            self.world.view,
            read_preemption(msgspec.json.encode(body)),
            self.world.preemptor.left_to_scheduler,
            self.world.policies,
            protected=self._against,
        )
        name_of = {pod["metadata"]["uid"]: key.partition("/")[2] for key, pod in pods.items()}
        told = msgspec.json.decode(answer)["NodeNameToMetaVictims"].get(node)
        if told is None:
            return []
        found = [one["UID"] for one in told["Pods"]]
        assert set(uids) <= set(found), "whom kube-scheduler chose it ends"
        assert told["NumPDBViolations"] == len(self._against(found)), "whom budgets protect is counted"
        return [name_of[uid] for uid in found if uid in name_of]

    def _against(self, uids: Collection[str]) -> set[str]:
        """Those of them whose budgets do not let them go together, in this order."""
        by_uid = {pod["metadata"]["uid"]: pod for pod in self.api.pods.values()}
        there = [decode_pod(by_uid[uid]) for uid in uids if uid in by_uid]
        return violating(there, self.api.budgets)

    # --- what is true ---------------------------------------------------------------------------

    def running(self) -> dict[str, dict[str, Any]]:
        """Pods with a node that have not ended, by name."""
        return {
            key.partition("/")[2]: pod
            for key, pod in self.api.pods.items()
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        }

    def waiting(self) -> list[str]:
        """Names of pods without a node that have not ended."""
        return [
            key.partition("/")[2]
            for key, pod in self.api.pods.items()
            if not pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def caught_up(self) -> bool:
        """Whether the scheduler knows everything, and nothing is under way."""
        late = (self.api.told, self.api.told_policies, self.told, self.told_trees, self.told_policies)
        return not any(late) and self.known_pools == self.pools and not self.world.reservations.deadlines


def given(pod: dict[str, Any]) -> Allocation:
    """What a bound pod's record says that it holds."""
    allocation = read_allocation(pod["metadata"].get("annotations") or {}, None)
    assert allocation is not None
    return allocation
