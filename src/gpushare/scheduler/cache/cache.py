"""Keeps the ledger true to the API server: what the informers see becomes nodes, holdings and waiting pods.

Events of pods and nodes come over two watches, in any order between them. The ledger takes a holding
before its node; what another scheduler wrote needs the node's devices to be understood, so it waits
here until the node is known.
"""

import logging
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
from gpushare.api.request.request import Request, milli_of
from gpushare.api.taints import CORDON_TAINT, REPELLING_EFFECTS, Taint, read_taints
from gpushare.kube.event_recorder import Recorder
from gpushare.ledger import Ledger
from gpushare.ledger.preemption.victims import Rank
from gpushare.ledger.priorities import LEAVING
from gpushare.process.event import Event
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cpu import CpuUsage
from gpushare.scheduler.cache.kubelet_capacity import KubeletCapacity, Sums, offered_by
from gpushare.scheduler.cache.pod_records import PodRecord

logger = logging.getLogger(__name__)

REASON_INVALID_REQUEST: Final = "InvalidGPURequest"
REASON_MALFORMED_DEVICES: Final = "MalformedGPUDevices"
#: What people write on nodes.
REASON_INVALID_LABEL: Final = "InvalidGPULabel"
REASON_INVALID_CORDON: Final = "InvalidGPUCordon"


class NodeRecord(msgspec.Struct, frozen=True):
    """A node as the ledger takes it, what is wrong with it (empty: nothing), and thousandths of processors for pods.

    ``cpu_milli`` is ``None`` where they are not counted, or the node does not say; ``offered`` is what its kubelet offers.
    """

    devices: NodeDevices
    problem: str
    cpu_milli: int | None = None
    offered: Sums | None = None
    problems: tuple[str, ...] = ()
    """What ``problem`` is made of, one by one."""
    labels: dict[str, str] | None = None
    """Where pods are followed with what they want of nodes."""
    cordoned: dict[str, str] | None = None
    """Its labels where Kubernetes itself places nothing new there (``kubectl cordon``); ``None`` where it does."""
    taints: tuple[Taint, ...] = ()
    """Those that would keep pods off one that is cordoned, were it not."""


class _Foreign(NamedTuple):
    """A pod of another scheduler, and the unit in which its record was first read (``None``: not yet)."""

    record: PodRecord
    unit: MemoryUnit | None


class NodeReader:
    """Turns a ``Node`` into what the ledger takes, with this scheduler's settings.

    As nodes are chosen, so are the GPUs of nodes that say nothing else; by fragmentation processors are counted, too.
    """

    def __init__(
        self, *, unit: MemoryUnit, isolated_cap: int, node_policy: Placement = Placement.BINPACK
    ) -> None:
        self._unit = unit
        self._isolated_cap = isolated_cap
        self._node_policy = node_policy

    def decode(self, raw: bytes) -> tuple[str, NodeRecord]:
        """A node's JSON as an informer takes it."""
        record = self.read(decode_node(raw))
        return record.devices.name, record

    def read(self, node: Node) -> NodeRecord:
        """The node for the ledger. One without GPUs, or that cannot be understood, has no devices."""
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
        one
        for one in read_taints(node.spec.taints)
        if one.effect in REPELLING_EFFECTS and one.key != CORDON_TAINT
    )


class ClusterCache:
    """The ledger, the pods that wait, and what could not be understood."""

    def __init__(
        self,
        ledger: Ledger,
        events: Recorder,
        on_confirmed: Callable[[str], None],
        *,
        isolated_cap: int = ISOLATED_POD_CAP,
    ) -> None:
        self.ledger = ledger
        self.waiting: dict[str, PodRecord] = {}
        """Pods without a node that ask for a GPU, by UID."""
        self.bound: dict[str, PodRecord] = {}
        """Pods with a node that hold a part of a GPU or asked for one, by UID."""
        self.besides: dict[str, PodRecord] = {}
        """Pods with a node that have nothing to do with GPUs, but are followed all the same, by UID."""
        self.waiting_besides: dict[str, PodRecord] = {}
        """The same without a node."""
        self.malformed: dict[str, str] = {}
        """Problems of pods and nodes, by ``pod NAMESPACE/NAME`` or ``node NAME``."""
        self.capacity_freed: Event[[]] = Event()
        """Called when room came free or a node changed."""
        self.reservation_released: Event[[]] = Event()
        """Called when room is free that was set aside for a pod without a node: by that nothing happens in the cluster."""
        self.pod_changing: Event[PodRecord] = Event()
        """Called with a pod that was added or changed, and has not ended, before anything else is done with it."""
        self.pod_ended: Event[PodRecord, bool] = Event()
        """Called with a pod that has ended, and whether it is gone; what it held in the ledger is released right after."""
        self.pod_stored: Event[PodRecord] = Event()
        """Called with a pod that was added or changed, and has not ended, once it is where it belongs."""
        self.pod_forgotten: Event[PodRecord] = Event()
        """Called with a pod that has ended, once nothing of it is left here."""
        self.pod_arrived: Event[Request] = Event()
        """Called with what a new pod asks for, before it was ever asked about."""
        self.isolated_cap = isolated_cap
        """The most pods on a GPU of a node that isolates, whatever its labels say: as its ``NodeReader`` has it."""
        self.offers = KubeletCapacity(ledger)
        """Nodes that have less to give than the ledger says."""
        self._events = events
        self._on_confirmed = on_confirmed
        self._problems: dict[str, tuple[str, ...]] = {}
        self._foreign: dict[str, dict[str, _Foreign]] = {}
        self._processors = CpuUsage(ledger.set_free_cpu)
        self.cordoned: dict[str, dict[str, str]] = {}
        """Nodes about which kube-scheduler does not ask until somebody uncordons them, and their labels."""
        self.tainted: dict[str, tuple[Taint, ...]] = {}
        """Those of them that have other taints, which keep pods off even then."""

    # --- pods ---------------------------------------------------------------------------------

    def upsert_pod(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        if record.finished:
            self._free(record, gone=False)
            return
        self._take_pod(record)
        if record.node and not record.bystander:
            self.offers.take(record)
        self.pod_stored(record)

    def _take_pod(self, record: PodRecord) -> None:
        self.pod_changing(record)
        self.besides.pop(record.uid, None)
        self.waiting_besides.pop(record.uid, None)
        if record.bystander:
            if not record.node:
                self.waiting_besides[record.uid] = record
                return
            self.besides[record.uid] = record
            self._processors.take(record.uid, record.node, record.cpu_milli)
            self._on_confirmed(record.uid)
            return
        if not record.node:
            if record.uid not in self.waiting and record.request is not None:
                self.ledger.arrived(record.request)
                self.pod_arrived(record.request)
            # A late event of a pod that we have bound meanwhile must not undo that.
            self.waiting[record.uid] = record
            self.bound.pop(record.uid, None)
            if record.problem:
                self._complain(record, REASON_INVALID_REQUEST, "Scheduling")
            else:
                self.malformed.pop(f"pod {record.pod}", None)
            return
        is_new = self.waiting.pop(record.uid, None) is None and self.ledger.held(record.uid) is None
        self._processors.take(record.uid, record.node, record.cpu_milli)
        self.bound[record.uid] = record
        self.ledger.nominations.remove(record.uid)
        allocation = record.allocation
        if record.foreign is not None:
            allocation = self._resolve(record)
        else:
            self._forget_foreign(record)
            if record.problem:
                self._complain(record, REASON_MALFORMED_ALLOCATION, "Counting")
        self._on_confirmed(record.uid)
        if allocation is not None:
            if is_new and allocation.gpus and not self._gives_whole(record.node):
                self.ledger.arrived(_asked_for(record, allocation))
            self.malformed.pop(f"pod {record.pod}", None)
            self.ledger.hold(record.uid, record.pod, record.node, allocation, priority=_counts_as(record))
            return
        # What the pod holds cannot be read (any more). What it was given on this node it has for all
        # that: breaking or removing its annotations must not hand its share to another.
        held = self.ledger.held(record.uid)
        if held is not None and held.node == record.node:
            self.ledger.hold(
                record.uid, record.pod, record.node, held.allocation, priority=_counts_as(record)
            )
        else:
            self.ledger.release(record.uid)

    def _gives_whole(self, node: str) -> bool:
        """Whether its pods count GPUs, which says nothing of the shares that are to be expected."""
        devices = self.ledger.node(node)
        return devices is not None and devices.mode.gives_whole

    def learn_pod(self, record: PodRecord) -> None:
        """A pod was read, and is bound: it counts, unless the watch has told of it already.

        The read may be older than the watch, which alone confirms, complains and keeps.
        """
        allocation = record.allocation
        if record.foreign is not None and (node := self.ledger.node(record.node)) is not None:
            with suppress(MalformedAllocation):
                allocation = read_allocation(record.foreign, node)
        if allocation is not None:
            self.ledger.hold(record.uid, record.pod, record.node, allocation, confirmed=False)

    def remove_pod(self, record: PodRecord) -> None:
        """A pod is gone: what it held is free at once."""
        self._free(record, gone=True)

    def _free(self, record: PodRecord, *, gone: bool) -> None:
        """What a pod held that finished, or is gone."""
        aside = False
        if self.waiting.pop(record.uid, None) is not None:
            aside = self.ledger.held(record.uid) is not None or bool(
                self.ledger.nominations.node_of(record.uid)
            )
        self.bound.pop(record.uid, None)
        self.waiting_besides.pop(record.uid, None)
        self.besides.pop(record.uid, None)
        self.ledger.nominations.remove(record.uid)
        self._processors.release(record.uid)
        freed = self.offers.release(record.uid)
        self.malformed.pop(f"pod {record.pod}", None)
        self._forget_foreign(record)
        self._on_confirmed(record.uid)
        self.pod_ended(record, gone)
        if self.ledger.release(record.uid) or freed:
            self.capacity_freed()
        if aside:
            self.reservation_released()
        self.pod_forgotten(record)

    def _resolve(self, record: PodRecord) -> Allocation | None:
        assert record.foreign is not None
        node = self.ledger.node(record.node)
        on_node = self._foreign.setdefault(record.node, {})
        known = on_node.get(record.uid)
        unit = known.unit if known is not None and known.record.foreign == record.foreign else None
        if node is None or not node.devices:
            # Not there (yet), or without its GPUs for a while: nothing can be said against the record.
            on_node[record.uid] = _Foreign(record, unit)
            return None
        # Kept also when it could be read: the node's devices may change, and with them the meaning. But
        # units that name no total are of the time when they were written: a change of unit leaves them.
        unit = unit or node.unit
        on_node[record.uid] = _Foreign(record, unit)
        try:
            return read_allocation(record.foreign, msgspec.structs.replace(node, unit=unit))
        except MalformedAllocation as error:
            self._complain(record, REASON_MALFORMED_ALLOCATION, "Counting", error.problem)
            return None

    def _forget_foreign(self, record: PodRecord) -> None:
        on_node = self._foreign.get(record.node)
        if on_node is not None and on_node.pop(record.uid, None) is not None and not on_node:
            del self._foreign[record.node]

    def _complain(self, record: PodRecord, reason: str, action: str, problem: str = "") -> None:
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
            record.reference(), kind="Warning", reason=reason, action=action, note=problem, telling="standing"
        )

    def knows(self, uid: str) -> bool:
        """Whether the watch has told of the pod, and not of its end: kube-scheduler's may be ahead of ours."""
        return uid in self.waiting or uid in self.waiting_besides or self.with_node(uid) is not None

    def with_node(self, uid: str) -> PodRecord | None:
        """The pod if it has a node, with GPUs or without."""
        return self.bound.get(uid) or self.besides.get(uid)

    def leaving(self, uid: str) -> Rank | None:
        """The rank of a bound pod whose end was asked for; nobody else's end is counted on."""
        record = self.bound.get(uid)
        return Rank(record.priority, leaving=True) if record is not None and record.leaving else None

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
            self._complain_of_node(record)
        if devices == self.ledger.node(devices.name):
            self._count_processors(record)
            if self.offers.set_node(devices.name, record.offered):
                self.capacity_freed()
            return  # heartbeats: most events of nodes change nothing for us
        self.ledger.set_node(devices)
        self._count_processors(record)
        self.offers.set_node(devices.name, record.offered)
        self.capacity_freed()
        for foreign in list(self._foreign.get(devices.name, {}).values()):
            self.upsert_pod(foreign.record)

    def remove_node(self, name: str) -> None:
        """A node is gone. Its pods' holdings stay known until they are gone too."""
        self._forget_problems(name)
        self.cordoned.pop(name, None)
        self.tainted.pop(name, None)
        self._processors.remove_node(name)
        self.offers.remove_node(name)
        self.ledger.remove_node(name)

    def _complain_of_node(self, record: NodeRecord) -> None:
        """What is wrong with it and was not told yet, an event each."""
        name = record.devices.name
        before, self._problems[name] = self._problems.get(name, ()), record.problems
        for problem in record.problems:
            if problem in before:
                continue
            of_mode = is_of_mode(problem)
            self._events.record(
                node_reference(name),
                kind="Warning",
                reason=_reason_of(problem),
                action="Reading",
                note=unknown_mode_note(problem) if of_mode else problem,
                # The node's agent sees it too, and so does every replica: one of us tells.
                cause=problem,
                telling="standing" if self.ledger.node(name) is None else "come",
            )

    def _forget_problems(self, name: str) -> None:
        self.malformed.pop(f"node {name}", None)
        self._problems.pop(name, None)

    def _count_processors(self, record: NodeRecord) -> None:
        if record.cpu_milli is not None:
            self._processors.set_node(record.devices.name, record.cpu_milli)


def _reason_of(problem: str) -> str:
    """The event that tells of a node's problem: by what is written wrong, and so by whom."""
    if is_of_mode(problem):
        return REASON_UNKNOWN_MODE
    if problem.startswith("label "):
        return REASON_INVALID_LABEL
    if problem.startswith(f"annotation {names.ANN_CORDONED} "):
        return REASON_INVALID_CORDON
    return REASON_MALFORMED_DEVICES


def _counts_as(record: PodRecord) -> int:
    """The priority with which a bound pod's share counts where others need room."""
    return LEAVING if record.leaving else record.priority


def _asked_for(record: PodRecord, allocation: Allocation) -> Request:
    """What a pod that holds ``allocation`` must have asked for, as far as that tells what is to be expected next."""
    gpus = allocation.gpus
    share = max(gpus, key=lambda share: share.units)
    units = share.units
    whole = record.whole_device and all(one.units == one.device_units for one in gpus)
    if whole:
        # What it was given may be more than the least that it asked for.
        units = record.amounts.get(names.GPU_MEM, 0) // 1000 // len(gpus) or units
    return Request(units, share.core_percent, (), len(gpus), whole, cpu_milli=record.cpu_milli)
