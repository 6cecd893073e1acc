"""A view over a real ledger, an API server in a few lines, a clock that tests turn, and makers of objects."""

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gpushare.api.disruption import DisruptionBudget
from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.hosting import Guest, HostingNode, decode_guest, decode_hosting
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import ObjectReference, Pod, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.client.errors import ApiError
from gpushare.ledger import Ledger
from gpushare.scheduler.cache.cache import ClusterCache, NodeRecord
from gpushare.scheduler.framework.binder import Binder, Reservations
from gpushare.scheduler.framework.runtime import Enabled, Framework
from gpushare.scheduler.framework.services import Decisions, NodePolicies
from gpushare.scheduler.leader.lease import always_leads
from gpushare.scheduler.plugins.elastic_quota.counted_pods import quota_record_of
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.gangs.plugin import Gangs
from gpushare.scheduler.plugins.preemption.extender_preempt import PreemptVerb
from gpushare.scheduler.plugins.preemption.nominations import Nominations
from gpushare.scheduler.plugins.preemption.plugin import Preemptor
from gpushare.scheduler.requeue.requeuer import Requeuer

if TYPE_CHECKING:
    from gpushare.scheduler.cache.pod_records import PodRecord

RefusedFn = Callable[[str, Collection[str]], None]


class TurnedClock:
    """Time that stands until a test turns it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_off_s = 0.0
        """By how much the wall clock is wrong, as after it was set."""
        self.turned = asyncio.Condition()

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int((self.now_s + self.wall_off_s) * 1e9)

    async def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        async with self.turned:
            await self.turned.wait_for(lambda: self.now_s >= until_s)

    async def turn(self, seconds: float) -> None:
        async with self.turned:
            self.now_s += seconds
            self.turned.notify_all()


class Api:
    """Pods by key; bindings behave as in the real API server. ``before`` and ``after`` script failures."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.spaces: dict[str, str] = {}
        """Namespaces of pods by their names, other than ``default``."""
        self.counted_in: Collection[str] = ()
        """Namespaces of which the watch delivers every pod, whatever a tree says."""
        self.bindings: list[tuple[str, str]] = []
        self.annotated: list[tuple[str, dict[str, str | None]]] = []
        self.evicted: list[str] = []
        self.nominated: list[tuple[str, str]] = []
        self.budgets: list[DisruptionBudget] = []
        self.hosts: dict[str, dict[str, Any]] = {}
        """Nodes by their names, with what they have apart from GPUs."""
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []
        self.reading: list[Callable[[], None]] = []
        self.gate: asyncio.Event | None = None

    def create(self, pod: dict[str, Any]) -> Pod:
        made = decode_pod(pod)
        self.pods[made.key] = pod
        if made.metadata.namespace != "default":
            self.spaces[made.metadata.name] = made.metadata.namespace
        return made

    def key(self, name: str) -> str:
        """``namespace/name`` of the pod of that name; for tests in which names are unique in all namespaces."""
        return f"{self.spaces.get(name, 'default')}/{name}"

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        if self.before:
            self.before.pop(0)()
        assert self.pods[f"{namespace}/{name}"]["metadata"]["uid"] == uid
        self.annotated.append((name, dict(annotations)))

    async def get_pod(self, namespace: str, name: str) -> Pod:
        if self.reading:
            self.reading.pop(0)()
        try:
            return decode_pod(self.pods[f"{namespace}/{name}"])
        except KeyError:
            raise ApiError(404, "NotFound", f'pods "{name}" not found', "") from None

    async def get_guest(self, namespace: str, name: str) -> Guest:
        if self.reading:
            self.reading.pop(0)()
        try:
            return decode_guest(msgspec.json.encode(self.pods[f"{namespace}/{name}"]))
        except KeyError:
            raise ApiError(404, "NotFound", f'pods "{name}" not found', "") from None

    async def list_guests(self, node: str) -> list[Guest]:
        there = (pod for pod in self.pods.values() if pod["spec"]["nodeName"] == node)
        return [decode_guest(msgspec.json.encode(pod)) for pod in there]

    async def list_hosting(self, node: str) -> list[HostingNode]:
        return [decode_hosting(msgspec.json.encode(self.hosts[node]))] if node in self.hosts else []

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        if self.before:
            self.before.pop(0)()
        pod = self.pods.get(f"{namespace}/{name}")
        if pod is None:
            raise ApiError(404, "NotFound", f'pods "{name}" not found', "")
        assert pod["metadata"]["uid"] == uid
        self.evicted.append(name)
        pod["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        self.nominated.append((name, node))

    async def list_budgets(self) -> list[DisruptionBudget]:
        if self.reading:
            self.reading.pop(0)()
        return self.budgets

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.before:
            self.before.pop(0)()
        self.bindings.append((f"{namespace}/{name}", node))
        pod = self.pods.get(f"{namespace}/{name}")
        if pod is None:
            raise ApiError(404, "NotFound", f'pods "{name}" not found', "")
        if pod["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "Precondition failed: UID", "")
        if pod["spec"].get("nodeName"):
            raise ApiError(
                409, "Conflict", f"pod {name} is already assigned to node {pod['spec']['nodeName']}", ""
            )
        pod["spec"]["nodeName"] = node
        pod["metadata"].setdefault("annotations", {}).update(annotations)
        if self.after:
            self.after.pop(0)()


class Recorded:
    """Events as they were recorded."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, str]] = []
        self.recorded: list[tuple[str, str, str]] = []
        """Reason, cause and occurrence of each."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: str,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: str = "each",
    ) -> None:
        assert kind in ("Warning", "Normal")
        assert action
        self.notes.append((regarding.name, reason, note))
        self.recorded.append((reason, cause, occurrence))


def pod_object(
    name: str,
    mem: Any = None,
    *,
    core: Any = None,
    uid: str | None = None,
    node: str = "",
    phase: str = "Pending",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    priority: int = 0,
    never: bool = False,
    namespace: str = "default",
) -> dict[str, Any]:
    limits = {"aliyun.com/gpu-mem": mem, "aliyun.com/gpu-core.percentage": core}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "spec": {
            "nodeName": node,
            "priority": priority,
            "preemptionPolicy": "Never" if never else "PreemptLowerPriority",
            "containers": [
                {
                    "name": "c",
                    "resources": {
                        "limits": {key: value for key, value in limits.items() if value is not None}
                    },
                }
            ],
        },
        "status": {"phase": phase},
    }


def gpu_node(name: str, *sizes_mib: int, mode: NodeMode = NodeMode.SHARE) -> NodeDevices:
    devices = tuple(Device(index, f"GPU-{name}-{index}", mib) for index, mib in enumerate(sizes_mib))
    return NodeDevices(name, mode, MemoryUnit.GIB, devices)


class Refusing:
    """Calls ``refused`` when no node takes a pod."""

    def __init__(self, refused: RefusedFn) -> None:
        self._refused = refused

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        self._refused(uid, nodes)


def framework_of(*plugins: object) -> Framework:
    return Framework([Enabled(type(one).__name__, one) for one in plugins])


class World:
    """Everything of one scheduler but its sockets."""

    def __init__(
        self,
        api: Api | None = None,
        clock: TurnedClock | None = None,
        *,
        policy: Placement = Placement.BINPACK,
        counts_grace: bool = False,
    ) -> None:
        """``counts_grace``: pods that are being deleted leave at their deletionTimestamp, as in a cluster; otherwise soon."""
        # Answers of other parts of a scheduler; tests replace them.
        self.leads: Callable[[], bool | None] = lambda: None
        self.in_turn: Callable[[str, list[str]], list[list[str]]] = lambda uid, nodes: [nodes]
        self.governs: Callable[[str], bool] = lambda namespace: False
        self.without_gpu: Callable[[str], PodRecord | None] = lambda uid: self.view.waiting_non_gpu.get(uid)
        self.must_lead: Callable[[], Awaitable[None]] = always_leads
        self.api = api or Api()
        self.clock = clock or TurnedClock()
        self.events = Recorded()
        self.ledger = Ledger(node_policy=policy)
        self.reservations = Reservations(15.0)
        self.view = ClusterCache(
            self.ledger,
            self.events,
            self.reservations.end,
            clock=self.clock if counts_grace else None,
        )
        self.retries = Requeuer(ChainMap(self.view.waiting_non_gpu, self.view.waiting), self.api, self.clock)
        self.quotas = Quotas(self.view, self.events)
        self.gangs = Gangs(
            self.view,
            self.clock,
            quotas=self.quotas,
            governs=lambda namespace: self.governs(namespace),
            retry=self.retries.hurry,
            placed=self.retries.placed,
        )
        self.plugins: list[object] = [self.gangs, self.quotas]
        self._frameworks: dict[tuple[object, ...], Framework] = {}
        self.decisions = DecisionLog(
            self.view,
            self.clock,
            leads=lambda: self.leads(),
            in_turn=lambda uid, nodes: self.in_turn(uid, nodes),
            without_gpu=lambda uid: self.without_gpu(uid),
            gangs=self.gangs,
            quotas=self.quotas,
        )
        self.binder = Binder(self.view, self.api, self.reservations, self.clock, self.framework())
        self.view.capacity_freed.subscribe(self.retries.freed)
        self.view.reservation_released.subscribe(self.retries.reservation_released)
        self.preemptor = Preemptor(
            self.view,
            self.api,
            self.events,
            self.clock,
            in_turn=lambda uid, nodes: self.in_turn(uid, nodes),
            must_lead=lambda: self.must_lead(),
            gangs=self.gangs,
            quotas=self.quotas,
        )
        self.preemptor.decided.subscribe(self.decisions.preempted)
        self.nominated = Nominations(self.view, self.preemptor.room_reserved, self.quotas)

    def verb(self, policies: NodePolicies | None = None, decisions: Decisions | None = None) -> PreemptVerb:
        return PreemptVerb(
            self.view, self.api, self.preemptor.left_to_scheduler, policies, decisions, self.quotas
        )

    def framework(self, *more: object, refused: RefusedFn | None = None) -> Framework:
        """The plugins of this scheduler and ``more``; ``refused`` is called in place of the method of that name."""
        key = (*self.plugins, *more, refused)
        if key not in self._frameworks:
            refusing = Refusing(refused or (lambda uid, nodes: self.refused(uid, nodes)))
            self._frameworks[key] = framework_of(*self.plugins, *more, refusing)
        return self._frameworks[key]

    def refused(self, uid: str, nodes: Collection[str]) -> None:
        """Filter has refused a pod on all nodes."""
        self.retries.refused(uid)
        self.preemptor.post_filter(uid, nodes)

    def add_node(self, node: NodeDevices) -> None:
        self.view.upsert_node(NodeRecord(node, ""))

    def create(self, *args: Any, **settings: Any) -> Pod:
        """Create a pod that the informer has seen."""
        pod = self.api.create(pod_object(*args, **settings))
        self.see(pod.metadata.name)
        return pod

    def see(self, name: str) -> None:
        """Let the informer see a pod's present state."""
        pod = decode_pod(self.api.pods[self.api.key(name)])
        record = quota_record_of(pod, self.quotas.followed.union(self.api.counted_in))
        if record is not None:
            self.view.upsert_pod(record)
            self.nominated.pod_updated(record)

    def api_pod(self, namespace: str, name: str) -> Pod:
        """A pod as the API server has it."""
        return decode_pod(self.api.pods[f"{namespace}/{name}"])

    def used_mib(self, node: str) -> list[int]:
        return [gpu.used_mib for gpu in self.ledger.usage(node).gpus]
