"""A cluster with two replicas of a scheduler, each of which learns late of changes, and may be killed."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.crd.elastic_quota_tree import QuotaTreeRecord
from gpushare.api.crd.resource_policy import ResourcePolicy
from gpushare.api.disruption import violating
from gpushare.api.node.device import NodeDevices
from gpushare.api.objects import decode_pod
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes, prioritize_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.server.protocol import BindingArgs, read_preemption
from tests.unit.scheduler.machine.replicas import Governed, Replica, list_pods
from tests.unit.scheduler.machine.watched_api import WatchedApi
from tests.unit.scheduler.world import TurnedClock

#: Seconds that a kube-scheduler needs at least to win the lease, having lost it or not.
TAKES_S = 2


class Cluster:
    """The API server, its nodes, and two replicas of the scheduler; the kube-scheduler that leads calls its own."""

    def __init__(self) -> None:
        self.api = WatchedApi()
        self.clock = TurnedClock()
        self.nodes = self.api.nodes
        self.pools = self.api.pools
        self.tree: QuotaTreeRecord | None = None
        self.on_tree: Callable[[], None] = lambda: None
        """Called when the scheduler that is asked counts by another tree."""
        self.on_switch: Callable[[], None] = lambda: None
        """Called when another replica is asked than before."""
        self.policy: ResourcePolicy | None = None
        self.replicas = [Replica(number, self.api, self.clock) for number in range(2)]
        self._holder = self.api.lease.holder
        self.leader = self.replicas[0]
        """Whom kube-scheduler asked last."""
        self._rebuilt: tuple[tuple[int, dict[str, str]], Governed] | None = None
        self.switches = 0
        """How often that was another than before."""
        for replica in self.replicas:
            replica.on_tree = lambda one=replica: self.on_tree() if one is self.leader else None  # type: ignore[misc]

    @property
    def world(self) -> Governed:
        """Of the replica that was called last."""
        return self.leader.world

    @property
    def known_pools(self) -> dict[str, str]:
        return self.leader.feed.pools

    # --- the scheduler's life -------------------------------------------------------------------

    def rebuilt(self, replica: Replica | None = None) -> Governed:
        """A scheduler that has just read the API server, and does nothing yet."""
        world = Governed(self.api, self.clock, (replica or self.leader).face)
        if self.tree is not None:
            world.quotas.upsert(self.tree)
        for devices in self.nodes.values():
            world.add_node(devices)
        for key in self.api.pods:
            world.see(key.partition("/")[2])
        for node, pool in self.pools.items():
            world.policies.census.set_node(node, {"pool": pool})
        if self.policy is not None:
            world.policies.upsert_policy(self.policy)
            list_pods(self.api, world.policies)
        return world

    def rebuilt_lately(self) -> Governed:
        """The same, or the last one if nothing that it read has changed since; only for inspection."""
        seen = self.api.changes, dict(self.pools)
        if self._rebuilt is None or self._rebuilt[0] != seen:
            self._rebuilt = seen, self.rebuilt()
        return self._rebuilt[1]

    async def start(self, *numbers: int) -> None:
        """Kill these replicas; others begin in their places."""
        for replica in [self.replicas[number] for number in numbers]:
            await replica.begin(self.rebuilt(replica))
            replica.feed.pools = dict(self.pools)
            replica.on_tree()
        await self.settle()

    async def taken_over(self) -> None:
        """Let the leading kube-scheduler call its extender, which reads everything first if it is new."""
        lease = self.api.lease
        while lease.replica is None or lease.holder != self._holder:
            if lease.replica is None:
                lease.passes_to(1 - self.leader.number)
            self._holder = lease.holder
            await self.turn(TAKES_S)
        now = self.replicas[lease.replica]
        if not now.takeover.at_once():
            assert await now.takeover.wait(), "what is there to be read is read"
        if now is not self.leader:
            self.leader.may_bind, now.may_bind = False, True
            self.leader = now
            self.switches += 1
            self.on_tree()
            self.on_switch()

    async def stop(self) -> None:
        for replica in self.replicas:
            await replica.stop()

    async def settle(self) -> None:
        """Let everything possible progress: with a turn for others between the plans for the pods of a few gangs."""
        for _ in range(48):
            await asyncio.sleep(0)
        assert all(replica.runs() for replica in self.replicas)

    async def turn(self, seconds: float) -> None:
        """Let time pass, a second at a time if it is short: loops run once a second."""
        for _ in range(min(int(seconds), 4)):
            await self.clock.turn(seconds / min(int(seconds), 4))
            await self.settle()

    # --- what changes, and is delivered ---------------------------------------------------------

    def set_policy(self, policy: ResourcePolicy | None) -> None:
        """Another policy, or with ``None`` none any more."""
        self.api.changes += 1
        changed = policy or self.policy
        for replica in self.replicas if changed is not None else ():
            assert changed is not None
            replica.feed.policies.append((changed, policy is None))
        self.policy = policy

    def set_tree(self, tree: QuotaTreeRecord | None) -> None:
        """Another tree, or with ``None`` none any more."""
        self.api.changes += 1
        changed = tree or self.tree
        for replica in self.replicas if changed is not None else ():
            assert changed is not None
            replica.feed.trees.append((f"{names.QUOTA_NAMESPACE}/{changed.name}", changed, tree is None))
        self.tree = tree

    def set_node(self, devices: NodeDevices) -> None:
        self.api.changes += 1
        self.nodes[devices.name] = devices
        for replica in self.replicas:
            replica.feed.nodes.append((devices.name, devices))

    def remove_node(self, name: str) -> None:
        self.api.changes += 1
        del self.nodes[name]
        for replica in self.replicas:
            replica.feed.nodes.append((name, None))

    # --- kube-scheduler -------------------------------------------------------------------------

    def ask(self, name: str, nodes: list[str]) -> str:
        """The node that kube-scheduler would choose for the pod, empty if there is none."""
        body = msgspec.json.encode({"Pod": self.api.pods[self.api.key(name)], "NodeNames": nodes})
        bodies = Bodies()
        fits = msgspec.json.decode(
            filter_nodes(
                self.world.view, bodies.read(body), self.world.framework(refused=self.leader.refused)
            )
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
        """Whether the extender reported that the pod is bound."""
        uid = self.api.pods[self.api.key(name)]["metadata"]["uid"]
        try:
            await self.world.binder.bind(BindingArgs(self.api.key(name).partition("/")[0], name, uid, node))
        except BindRefused:
            return False
        return True

    async def schedule(self, pods: list[str], *, lost_after: int | None = None) -> None:
        """A cycle for each of the pods: all are filtered, then bound concurrently.

        ``lost_after``: the lease is lost between the two, and this many Bindings are on their way by then, and arrive.
        """
        await self.taken_over()
        chosen = {name: node for name in pods if (node := self.ask(name, sorted(self.nodes)))}
        if lost_after is not None:
            self.api.lease.passes_to(1 - self.leader.number)
            chosen = dict(list(chosen.items())[:lost_after])
        await asyncio.gather(*(self.bind(name, node) for name, node in chosen.items()))
        await self.settle()

    def preempt(self, name: str, node: str, victims: list[str]) -> list[str]:
        """The pods that kube-scheduler evicts on ``node`` for the pod, after the verb; none where that is of no use."""
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
            quotas=self.world.quotas,
        )
        name_of = {pod["metadata"]["uid"]: key.partition("/")[2] for key, pod in pods.items()}
        answered = msgspec.json.decode(answer)["NodeNameToMetaVictims"].get(node)
        if answered is None:
            return []
        found = [one["UID"] for one in answered["Pods"]]
        assert set(uids) <= set(found), "whom kube-scheduler chose it ends"
        assert answered["NumPDBViolations"] == len(self._against(found)), "whom budgets protect is counted"
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


def allocation_of(pod: dict[str, Any]) -> Allocation:
    """What a bound pod holds according to its record."""
    allocation = read_allocation(pod["metadata"].get("annotations") or {}, None)
    assert allocation is not None
    return allocation
