"""Keeps the ledger in sync with the API server: informer events become nodes, allocations and pending pods.

Events of pods and nodes arrive over two watches, in any order between them. The ledger accepts an allocation
before its node. The annotations of another scheduler can be read only with the node's devices, so they are
stored here until the node is known.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.errors import MalformedAllocation, MalformedDevices
from gpushare.api.node.device import ISOLATED_POD_CAP, NodeDevices, Placement, label_problems, node_devices
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.shared_event_texts import (
    REASON_MALFORMED_ALLOCATION,
    REASON_UNKNOWN_MODE,
    is_of_mode,
    unknown_mode_note,
)
from gpushare.api.objects import Node, decode_node, node_reference
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import MOST_UNITS, Request, milli_of
from gpushare.api.taints import CORDON_TAINT, REPELLING_EFFECTS, Taint, read_taints
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.ledger import Ledger
from gpushare.ledger.preemption.victims import Rank
from gpushare.ledger.priorities import ANY, LEAVING
from gpushare.process.event import Event
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cpu import CpuUsage
from gpushare.scheduler.cache.kubelet_capacity import KubeletCapacity, Sums, offered_by
from gpushare.scheduler.cache.pod_records import PodRecord

logger = logging.getLogger(__name__)

REASON_INVALID_REQUEST: Final = "InvalidGPURequest"
REASON_MALFORMED_DEVICES: Final = "MalformedGPUDevices"
#: For labels and annotations that users write on nodes.
REASON_INVALID_LABEL: Final = "InvalidGPULabel"
REASON_INVALID_CORDON: Final = "InvalidGPUCordon"

#: A pod that is being deleted counts as leaving from this many seconds before the end of its grace period until as many after it: about
#: as long as room is reserved for a pod (180 s), and some seconds for clocks that differ. Whoever may delete a pod chooses its grace period.
_NEAR_S: Final = 195.0
#: The same before the end of pods that were evicted for others, which have the grace period of their manifest.
_NEAR_IF_EVICTED_S: Final = 3600.0


class NodeRecord(msgspec.Struct, frozen=True):
    """A node, decoded for the ledger.

    ``problem``: what is wrong with it, empty if nothing is. ``cpu_milli``: allocatable CPU in thousandths; ``None`` if CPU is not counted
    or not in the node's status. ``offered``: its kubelet's allocatable GPU resources.
    """

    devices: NodeDevices
    problem: str
    cpu_milli: int | None = None
    offered: Sums | None = None
    problems: tuple[str, ...] = ()
    """The single problems that ``problem`` joins."""
    labels: dict[str, str] | None = None
    """Set only if the node requirements of pods are tracked."""
    cordoned: dict[str, str] | None = None
    """The labels of a node that is cordoned (``kubectl cordon``); ``None`` if it is not."""
    taints: tuple[Taint, ...] = ()
    """Of a cordoned node: the other taints, which would keep pods off it even after an uncordon."""


class _Foreign(NamedTuple):
    """A pod of another scheduler, and the memory unit with which its annotations were first read (``None``: not read yet)."""

    record: PodRecord
    unit: MemoryUnit | None


class NodeReader:
    """Decodes a ``Node`` for the ledger, with this scheduler's settings.

    ``node_policy`` is also the GPU policy of nodes that set none. With the fragmentation policy CPU is counted as well.
    """

    def __init__(
        self, *, unit: MemoryUnit, isolated_cap: int, node_policy: Placement = Placement.BINPACK
    ) -> None:
        self._unit = unit
        self._isolated_cap = isolated_cap
        self._node_policy = node_policy

    def decode(self, raw: bytes) -> tuple[str, NodeRecord]:
        """Decode a node's JSON; an informer's decoder."""
        record = self.read(decode_node(raw))
        return record.devices.name, record

    def read(self, node: Node) -> NodeRecord:
        """The record of a node. It has no devices if the node has no GPUs or cannot be parsed."""
        name = node.metadata.name
        cordoned: dict[str, str] | None = None
        taints: tuple[Taint, ...] = ()
        if node.spec.unschedulable:
            cordoned, taints = dict(node.metadata.labels or {}), _other_taints(node)
        try:
            devices = node_devices(
                node,
                isolated_cap=self._isolated_cap,
                unit=self._unit,
                placement=self._node_policy,
            )
        except MalformedDevices as error:
            bare = NodeDevices(name, NodeMode.DEFAULT, self._unit, (), refusal=error.problem)
            return NodeRecord(
                bare, error.problem, problems=(error.problem,), cordoned=cordoned, taints=taints
            )
        offered = offered_by(node)
        if devices is None:
            devices = NodeDevices(name, NodeMode.DEFAULT, self._unit, ())
        by_fragments = self._node_policy is Placement.FRAGMENTATION
        cpu = (node.status.allocatable or {}).get("cpu") if by_fragments else None
        problems = label_problems(node) if devices.problem else ()
        milli = None if cpu is None else milli_of(cpu)
        return NodeRecord(
            devices, devices.problem, milli, offered, problems, cordoned=cordoned, taints=taints
        )


def _other_taints(node: Node) -> tuple[Taint, ...]:
    return tuple(
        taint
        for taint in read_taints(node.spec.taints)
        if taint.effect in REPELLING_EFFECTS and taint.key != CORDON_TAINT
    )


class ClusterCache:
    """The ledger, pending and bound pods, and the objects that could not be parsed."""

    def __init__(
        self,
        ledger: Ledger,
        events: Recorder,
        on_confirmed: Callable[[str], None],
        *,
        isolated_cap: int = ISOLATED_POD_CAP,
        clock: Clock | None = None,
    ) -> None:
        """Without a ``clock`` every pod that is being deleted counts as leaving."""
        self.ledger = ledger
        self.waiting: dict[str, PodRecord] = {}
        """Pods without a node that request a GPU, by UID."""
        self.bound: dict[str, PodRecord] = {}
        """Pods with a node that hold a part of a GPU or request one, by UID."""
        self.bound_non_gpu: dict[str, PodRecord] = {}
        """Tracked pods with a node that have nothing to do with GPUs, by UID."""
        self.waiting_non_gpu: dict[str, PodRecord] = {}
        """Tracked pods without a node that have nothing to do with GPUs, by UID."""
        self.malformed: dict[str, str] = {}
        """Problems of pods and nodes, by ``pod NAMESPACE/NAME`` or ``node NAME``."""
        self.capacity_freed: Event[[]] = Event()
        """Called when capacity was freed or a node changed."""
        self.reservation_released: Event[[]] = Event()
        """Called when the reservation of a pod without a node was released: this causes no event in the cluster."""
        self.pod_changing: Event[PodRecord] = Event()
        """Called with an added or changed pod that has not ended, before the cache is updated."""
        self.pod_ended: Event[PodRecord, bool] = Event()
        """Called with a pod that has ended, and whether it was deleted. Its allocation is released right after."""
        self.pod_stored: Event[PodRecord] = Event()
        """Called with an added or changed pod that has not ended, after the cache was updated."""
        self.pod_forgotten: Event[PodRecord] = Event()
        """Called with a pod that has ended, after it was removed from the cache."""
        self.pod_arrived: Event[Request] = Event()
        """Called with the request of a new pod, mostly before kube-scheduler filters the pod."""
        self.isolated_cap = isolated_cap
        """The maximum number of pods per GPU on nodes that isolate, whatever their labels say; as in ``NodeReader``."""
        self.offers = KubeletCapacity(ledger)
        """Nodes whose kubelet has less capacity than the ledger assumes."""
        self._events = events
        self._on_confirmed = on_confirmed
        self._clock = clock
        self._ends: dict[str, bool] = {}
        """Bound pods that are being deleted, by UID, and whether they count as leaving."""
        self._evicted: set[str] = set()
        self._problems: dict[str, tuple[str, ...]] = {}
        self._foreign: dict[str, dict[str, _Foreign]] = {}
        self._cpu_usage = CpuUsage(ledger.set_free_cpu)
        self.cordoned: dict[str, dict[str, str]] = {}
        """Cordoned nodes, which kube-scheduler does not offer, and their labels."""
        self.tainted: dict[str, tuple[Taint, ...]] = {}
        """Cordoned nodes with other taints, which keep pods off them even after an uncordon."""

    # --- pods ---------------------------------------------------------------------------------

    def upsert_pod(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        if record.finished:
            self._free(record, gone=False)
            return
        self._store_pod(record)
        if record.node and not record.bystander:
            self.offers.take(record)
        self.pod_stored(record)

    def _store_pod(self, record: PodRecord) -> None:
        self.pod_changing(record)
        if record.node and record.leaving:
            self._ends[record.uid] = self._ends_soon(record)
        else:
            self._ends.pop(record.uid, None)
        self.bound_non_gpu.pop(record.uid, None)
        self.waiting_non_gpu.pop(record.uid, None)
        if record.bystander:
            if not record.node:
                self.waiting_non_gpu[record.uid] = record
                return
            self.bound_non_gpu[record.uid] = record
            self._cpu_usage.take(record.uid, record.node, record.cpu_milli)
            self._on_confirmed(record.uid)
            return
        if not record.node:
            if record.uid not in self.waiting and record.request is not None:
                self.ledger.arrived(record.request)
                self.pod_arrived(record.request)
            # A late event of a pod that was bound meanwhile must not undo the bind in the ledger.
            self.waiting[record.uid] = record
            self.bound.pop(record.uid, None)
            if record.problem:
                self._report_problem(record, REASON_INVALID_REQUEST, "Scheduling")
            else:
                self.malformed.pop(f"pod {record.pod}", None)
            return
        is_new = self.waiting.pop(record.uid, None) is None and self.ledger.held(record.uid) is None
        self._cpu_usage.take(record.uid, record.node, record.cpu_milli)
        self.bound[record.uid] = record
        self.ledger.nominations.remove(record.uid)
        allocation = record.allocation
        if record.foreign is not None:
            allocation = self._resolve(record)
        else:
            self._forget_foreign(record)
            if record.problem:
                self._report_problem(record, REASON_MALFORMED_ALLOCATION, "Counting")
        self._on_confirmed(record.uid)
        if allocation is not None:
            if is_new and allocation.gpus and not self._allocates_whole(record.node):
                self.ledger.arrived(_request_from(record, allocation))
            self.malformed.pop(f"pod {record.pod}", None)
        elif (held := self.ledger.held(record.uid)) is not None and held.node == record.node:
            # The pod's allocation cannot be read (any more), but the pod still holds what was allocated to it on this
            # node: breaking or removing its annotations must not make its share available to other pods.
            allocation = held.allocation
        if allocation is None:
            self.ledger.release(record.uid)
        else:
            # No eviction would end a pod that lingers, as if its priority were the highest.
            soon = self._ends.get(record.uid)
            priority = record.priority if soon is None else LEAVING if soon else ANY
            self.ledger.hold(record.uid, record.pod, record.node, allocation, priority=priority)

    def _allocates_whole(self, node: str) -> bool:
        """Whether the node allocates whole GPUs: its pods then say nothing about the sizes of shares to expect."""
        devices = self.ledger.node(node)
        return devices is not None and devices.mode.gives_whole

    def count_read_pod(self, record: PodRecord) -> None:
        """A direct read shows a bound pod: its allocation counts unless the watch has already reported the pod.

        The read may be older than the watch, so it neither confirms the allocation, nor stores the pod, nor reports problems.
        """
        allocation = record.allocation
        if record.foreign is not None and (node := self.ledger.node(record.node)) is not None:
            with suppress(MalformedAllocation):
                allocation = read_allocation(record.foreign, node)
        if allocation is not None:
            self.ledger.hold(record.uid, record.pod, record.node, allocation, confirmed=False)

    def remove_pod(self, record: PodRecord) -> None:
        """A pod was deleted: its allocation is released at once."""
        self._free(record, gone=True)

    def _free(self, record: PodRecord, *, gone: bool) -> None:
        """Release everything that a finished or deleted pod held."""
        was_reserved = False
        if self.waiting.pop(record.uid, None) is not None:
            was_reserved = self.ledger.held(record.uid) is not None or bool(
                self.ledger.nominations.node_of(record.uid)
            )
        self.bound.pop(record.uid, None)
        self.waiting_non_gpu.pop(record.uid, None)
        self.bound_non_gpu.pop(record.uid, None)
        self._ends.pop(record.uid, None)
        self._evicted.discard(record.uid)
        self.ledger.nominations.remove(record.uid)
        self._cpu_usage.release(record.uid)
        freed = self.offers.release(record.uid)
        self.malformed.pop(f"pod {record.pod}", None)
        self._forget_foreign(record)
        self._on_confirmed(record.uid)
        self.pod_ended(record, gone)
        if self.ledger.release(record.uid) or freed:
            self.capacity_freed()
        if was_reserved:
            self.reservation_released()
        self.pod_forgotten(record)

    def _resolve(self, record: PodRecord) -> Allocation | None:
        assert record.foreign is not None
        node = self.ledger.node(record.node)
        foreign_pods = self._foreign.setdefault(record.node, {})
        known = foreign_pods.get(record.uid)
        unit = known.unit if known is not None and known.record.foreign == record.foreign else None
        if node is None or not node.devices:
            # The node is not known (yet), or has no GPUs for a while: the record cannot be checked.
            foreign_pods[record.uid] = _Foreign(record, unit)
            return None
        # Stored even if it can be read: the node's devices may change, and with them what the record means. But an
        # amount without a total is in the unit in force when it was written, so a later change of unit does not apply.
        unit = unit or node.unit
        foreign_pods[record.uid] = _Foreign(record, unit)
        try:
            return read_allocation(record.foreign, msgspec.structs.replace(node, unit=unit))
        except MalformedAllocation as error:
            self._report_problem(record, REASON_MALFORMED_ALLOCATION, "Counting", error.problem)
            return None

    def _forget_foreign(self, record: PodRecord) -> None:
        foreign_pods = self._foreign.get(record.node)
        if foreign_pods is not None and foreign_pods.pop(record.uid, None) is not None and not foreign_pods:
            del self._foreign[record.node]

    def _report_problem(self, record: PodRecord, reason: str, action: str, problem: str = "") -> None:
        problem = problem or record.problem
        subject = f"pod {record.pod}"
        if self.malformed.get(subject) == problem:
            return
        self.malformed[subject] = problem
        logger.warning(
            "pod %s cannot be %s: %s",
            record.pod,
            "counted" if record.node else "placed",
            problem,
            extra=about(pod=record.pod, uid=record.uid, node=record.node),
        )
        self._events.record(
            record.reference(),
            kind="Warning",
            reason=reason,
            action=action,
            note=problem,
            occurrence="lasting",
        )

    def knows(self, uid: str) -> bool:
        """Whether the watch has shown the pod and not its end: kube-scheduler's watch may be ahead of ours."""
        return uid in self.waiting or uid in self.waiting_non_gpu or self.with_node(uid) is not None

    def with_node(self, uid: str) -> PodRecord | None:
        """The record of a pod that has a node, with or without a GPU."""
        return self.bound.get(uid) or self.bound_non_gpu.get(uid)

    def leaving(self, uid: str) -> Rank | None:
        """The rank of a bound pod that leaves soon; ``None`` for any other pod, as only these will certainly end."""
        record = self.bound.get(uid)
        return Rank(record.priority, leaving=True) if record is not None and self.leaves_soon(uid) else None

    def leaves_soon(self, uid: str) -> bool:
        """Whether the bound pod is being deleted and will soon be gone."""
        return self._ends.get(uid, False)

    def lingers(self, uid: str) -> bool:
        """Whether the bound pod is being deleted, but with a long grace period or in vain. An eviction would not end it sooner."""
        return not self._ends.get(uid, True)

    def evicted(self, uid: str) -> None:
        """This scheduler has evicted the pod."""
        if self.with_node(uid) is not None:
            self._evicted.add(uid)

    def recount_leaving(self) -> None:
        """Find which pods leave soon: the end of a grace period comes near, or passes without effect, without an event."""
        for uid, counted in list(self._ends.items()):
            record = self.with_node(uid)
            if record is not None and self._ends_soon(record) is not counted:
                self.upsert_pod(record)

    def _ends_soon(self, record: PodRecord) -> bool:
        if self._clock is None or not record.gone_at:
            return True
        now_s = self._clock.time_ns() / 1e9
        is_evicted = record.preempted or record.uid in self._evicted
        near_s = _NEAR_IF_EVICTED_S if is_evicted else _NEAR_S
        # Such texts sort by time.
        return _time_text(now_s - _NEAR_S) <= record.gone_at <= _time_text(now_s + near_s)

    # --- nodes --------------------------------------------------------------------------------

    def upsert_node(self, record: NodeRecord) -> None:
        """A node was added or changed."""
        devices, problem = record.devices, record.problem
        subject = f"node {devices.name}"
        if record.cordoned is None:
            self.cordoned.pop(devices.name, None)
        else:
            self.cordoned[devices.name] = record.cordoned
        if record.taints:
            self.tainted[devices.name] = record.taints
        else:
            self.tainted.pop(devices.name, None)
        if not problem:
            self._forget_problems(devices.name)
        elif self.malformed.get(subject) != problem:
            self.malformed[subject] = problem
            logger.warning(
                "node %s cannot be used: %s", devices.name, problem, extra=about(node=devices.name)
            )
            self._report_node_problems(record)
        if devices == self.ledger.node(devices.name):
            self._count_cpu(record)
            if self.offers.set_node(devices.name, record.offered):
                self.capacity_freed()
            return  # mostly heartbeats, which change nothing for us
        self.ledger.set_node(devices)
        self._count_cpu(record)
        self.offers.set_node(devices.name, record.offered)
        self.capacity_freed()
        for foreign in list(self._foreign.get(devices.name, {}).values()):
            self.upsert_pod(foreign.record)

    def remove_node(self, name: str) -> None:
        """A node was deleted. Its pods' allocations stay known until the pods are deleted too."""
        self._forget_problems(name)
        self.cordoned.pop(name, None)
        self.tainted.pop(name, None)
        self._cpu_usage.remove_node(name)
        self.offers.remove_node(name)
        self.ledger.remove_node(name)

    def _report_node_problems(self, record: NodeRecord) -> None:
        """Record an event for each problem of the node that was not reported yet."""
        name = record.devices.name
        reported, self._problems[name] = self._problems.get(name, ()), record.problems
        for problem in record.problems:
            if problem in reported:
                continue
            of_mode = is_of_mode(problem)
            self._events.record(
                node_reference(name),
                kind="Warning",
                reason=_reason_of(problem),
                action="Reading",
                note=unknown_mode_note(problem) if of_mode else problem,
                # The node's agent and every replica see the problem, but only one of them should report it.
                cause=problem,
                occurrence="lasting" if self.ledger.node(name) is None else "began",
            )

    def _forget_problems(self, name: str) -> None:
        self.malformed.pop(f"node {name}", None)
        self._problems.pop(name, None)

    def _count_cpu(self, record: NodeRecord) -> None:
        if record.cpu_milli is not None:
            self._cpu_usage.set_node(record.devices.name, record.cpu_milli)


def _time_text(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def _reason_of(problem: str) -> str:
    """The event reason for a node's problem: it depends on which label or annotation is wrong, and so on who wrote it."""
    if is_of_mode(problem):
        return REASON_UNKNOWN_MODE
    if problem.startswith("label "):
        return REASON_INVALID_LABEL
    if problem.startswith(f"annotation {names.ANN_CORDONED} "):
        return REASON_INVALID_CORDON
    return REASON_MALFORMED_DEVICES


def _request_from(record: PodRecord, allocation: Allocation) -> Request:
    """Reconstruct the request of a pod that holds ``allocation``, as an example of requests to expect."""
    gpus = allocation.gpus
    share = max(gpus, key=lambda share: share.units)
    units = share.units
    holds_whole_gpus = record.whole_device and all(gpu.units == gpu.device_units for gpu in gpus)
    if holds_whole_gpus:
        # The allocation may be larger than the minimum that the pod requested.
        # Nobody checked the amounts of a pod that was bound by somebody else.
        units = min(record.amounts.get(names.GPU_MEM, 0) // 1000 // len(gpus), MOST_UNITS) or units
    return Request(units, share.core_percent, (), len(gpus), holds_whole_gpus, cpu_milli=record.cpu_milli)
