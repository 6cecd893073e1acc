"""An API server in memory, whose watches notify each replica of a scheduler late and in any order between them."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gpushare.api import names
from gpushare.api.crd.resource_policy import PolicyPod, ResourcePolicy, policy_pod_of
from gpushare.api.disruption import DisruptionBudget
from gpushare.api.node.hosting import Guest, HostingNode, decode_hosting
from gpushare.api.objects import Pod, decode_pod
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.plugins.defragmentation.mobility import with_mobility
from gpushare.scheduler.plugins.elastic_quota.counted_pods import quota_record_of
from tests.unit.scheduler.world import Api

if TYPE_CHECKING:
    from gpushare.api.crd.elastic_quota_tree import QuotaTreeRecord
    from gpushare.api.node.device import NodeDevices
    from gpushare.api.request.amounts import Amounts

#: What each node has apart from GPUs: enough for all.
_AMOUNTS = {"cpu": "999", "pods": "999", names.GPU_MEM: "999", names.GPU_CORE: "9999", names.GPU_WHOLE: "99"}


def covers(budget: DisruptionBudget, pod: dict[str, Any]) -> bool:
    return budget.covers(pod["metadata"]["namespace"], pod["metadata"]["labels"])


class Feed:
    """What the watches of one replica have still to deliver."""

    def __init__(self) -> None:
        self.pods: deque[tuple[PodRecord, bool]] = deque()
        """A record, and whether it is the last of its pod."""
        self.policy_pods: deque[tuple[PolicyPod, bool]] = deque()
        """Of the pods of namespaces with ResourcePolicies."""
        self.nodes: deque[tuple[str, NodeDevices | None]] = deque()
        self.trees: deque[tuple[str, QuotaTreeRecord, bool]] = deque()
        """Key, tree, and whether it is gone."""
        self.policies: deque[tuple[ResourcePolicy, bool]] = deque()
        self.pools: dict[str, str] = {}
        """The delivered ``pool`` labels of nodes."""

    @property
    def late(self) -> bool:
        """Whether anything but a label is still to be delivered."""
        return any((self.pods, self.policy_pods, self.nodes, self.trees, self.policies))

    def clear(self) -> None:
        for queue in (self.pods, self.policy_pods, self.nodes, self.trees, self.policies):
            queue.clear()


class Lease:
    """The leader by the Lease of the kube-schedulers: a replica's number, ``None`` if it has no holder."""

    def __init__(self) -> None:
        self.replica: int | None = 0
        self._times = 0
        self.lost_after = 0
        """After how many writes of the leader the other replica takes over; 0: it stays."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        """A kube-scheduler that has lost it ends, and comes back under a new name."""
        return self.holder

    @property
    def holder(self) -> str:
        return "" if self.replica is None else f"r{self.replica}_{self._times}"

    def passes_to(self, replica: int | None) -> None:
        self.replica = replica
        self._times += 1

    def was_written(self) -> None:
        if self.lost_after:
            self.lost_after -= 1
            if not self.lost_after and self.replica is not None:
                self.passes_to(1 - self.replica)


class WatchedApi(Api):
    """As its base, and delivers every change of a pod."""

    def __init__(self) -> None:
        super().__init__()
        self.feeds: list[Feed] = []
        self.changes = 0
        """How often something has changed of what schedulers read."""
        self.lease = Lease()
        self._known: dict[str, PodRecord] = {}
        self.amounts: dict[str, tuple[str, Amounts]] = {}
        """Namespace of each pod that ever had a node, and what it asks for, by UID."""
        self.nodes: dict[str, NodeDevices] = {}
        self.pools: dict[str, str] = {}
        """The label ``pool`` of each node, by which units choose."""
        self.answers: deque[str] = deque()
        """What becomes of the next Bindings: ``lost before`` and ``lost after`` they were written, ``failed``."""
        self.on_bound: Callable[[str], None] = lambda name: None
        self.on_evicted: Callable[[str], None] = lambda name: None
        self.forbidden: list[str] = []
        """Pods whose eviction was asked for and that budgets did not let go."""
        self.informed = False
        """Whether the scheduler knew of everything when it last had pods ended for another."""

    def record(self, name: str) -> PodRecord | None:
        pod = self.pods[self.key(name)]
        record = quota_record_of(decode_pod(pod), self.counted_in)
        meta = pod["metadata"]
        if record is None or not (meta.get("ownerReferences") or names.ANN_ROOM_MADE in meta["annotations"]):
            return record
        found = with_mobility(lambda raw: (name, record))(msgspec.json.encode({"metadata": meta}))
        return None if found is None else found[1]

    def changed(self, name: str) -> None:
        self._tell(name, last=False)

    def _tell(self, name: str, *, last: bool) -> None:
        self.changes += 1
        record = self.record(name)
        change: tuple[PodRecord, bool] | None = None
        if record is not None:
            change = record, last
            self._known[name] = record
            if record.node:
                self.amounts[record.uid] = record.pod.partition("/")[0], record.amounts
        elif name in self._known:
            change = self._known.pop(name), True
        pod = decode_pod(self.pods[self.key(name)])
        update = policy_pod_of(pod), last or pod.finished
        for feed in self.feeds:
            if change is not None:
                feed.pods.append(change)
            feed.policy_pods.append(update)

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
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        if f"{namespace}/{name}" not in self.pods:
            raise ApiError(404, "NotFound", f'pods "{name}" not found', "")
        await super().annotate_pod(namespace, name, annotations, uid=uid)
        stamp = annotations.get(names.ANN_ROOM_MADE)
        if stamp is not None:
            self.pods[f"{namespace}/{name}"]["metadata"]["annotations"][names.ANN_ROOM_MADE] = stamp
            self.changed(name)

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

    # --- what nodes have apart from GPUs ----------------------------------------------------------

    async def list_hosting(self, node: str) -> list[HostingNode]:
        if node not in self.nodes:
            return []
        found = {"metadata": {"name": node}, "spec": {}, "status": {"allocatable": _AMOUNTS}}
        return [decode_hosting(msgspec.json.encode(found))]


class Caller(Protocol):
    """A replica, as its face of the API server sees it."""

    number: int
    feed: Feed

    may_bind: bool
    """Whether no other replica has been asked since it was."""

    @property
    def has_read(self) -> bool:
        """Whether it has read everything since its kube-scheduler has led."""


class Face:
    """The API server as one replica sees it, which knows its caller: leader-only actions are refused to others."""

    def __init__(self, api: WatchedApi, caller: Caller) -> None:
        self._api = api
        self._caller = caller

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._api.get_pod(namespace, name)

    async def list_budgets(self) -> list[DisruptionBudget]:
        return await self._api.list_budgets()

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        assert self._caller.may_bind, f"{name} is bound by a replica that leads no more"
        await self._api.bind(namespace=namespace, name=name, uid=uid, node=node, annotations=annotations)
        self._api.lease.was_written()

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        await self._api.annotate_pod(namespace, name, annotations, uid=uid, labels=labels)

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        self._must_lead(name)
        await self._api.evict_pod(namespace, name, uid=uid)
        self._api.on_evicted(name)
        self._api.lease.was_written()

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        self._must_lead(name)
        self._api.informed = not self._caller.feed.pods
        await self._api.nominate(namespace, name, node, uid=uid)

    def claims(self, name: str) -> None:
        """Others are about to be evicted for a pod that is nominated nowhere."""
        self._api.informed = not self._caller.feed.pods
        self._api.nominated.append((name, ""))

    def _must_lead(self, name: str) -> None:
        assert self._api.lease.replica == self._caller.number, f"{name}: another replica leads"
        assert self._caller.has_read, f"{name}: the replica has not read anything since it leads"


class MoverFace(Face):
    """The same for its defragmenter; ``on_room_made`` and ``on_moved`` see its acts before they are done."""

    def __init__(
        self,
        api: WatchedApi,
        caller: Caller,
        on_room_made: Callable[[str], None],
        on_moved: Callable[[str], None],
    ) -> None:
        super().__init__(api, caller)
        self._on_room_made = on_room_made
        self._on_moved = on_moved

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        self._must_lead(name)
        if f"{namespace}/{name}" in self._api.pods:
            self._on_room_made(name)
        await self._api.annotate_pod(namespace, name, annotations, uid=uid)
        self._api.lease.was_written()

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        self._must_lead(name)
        if f"{namespace}/{name}" in self._api.pods:
            self._on_moved(name)
        await self._api.evict_pod(namespace, name, uid=uid)
        self._api.lease.was_written()

    async def get_guest(self, namespace: str, name: str) -> Guest:
        return await self._api.get_guest(namespace, name)

    async def list_guests(self, node: str) -> list[Guest]:
        return await self._api.list_guests(node)

    async def list_hosting(self, node: str) -> list[HostingNode]:
        return await self._api.list_hosting(node)
