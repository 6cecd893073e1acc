"""Compares the kubelets' allocatable GPU resources with the ledger. kube-scheduler leaves counting these resources to the extender.

A kubelet rejects a pod for good if it has too few free devices. The ledger never allocates more than a kubelet has if every pod on the
node has a record and the kubelet offers all healthy GPUs of the node's description. This module tracks the other nodes:

* Pods hold more than their records say (they were bound by hand, or by another scheduler): a pod is placed there only if the node's
  sum still has room for it. Pods that request more than all GPUs of the node have hold nothing: the kubelet rejects them.
* The kubelet offers less than described (it has just restarted, its node agent is down, the unit has just changed, a GPU has just
  recovered): no pod is placed there. It is unknown which GPU is missing, and the kubelet fails a pod if it has only devices of another
  GPU, however large the sum.

No pod is evicted on such nodes to make room, as the result cannot be predicted.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.objects import Node
from gpushare.api.quantity import Quantity
from gpushare.api.request.amounts import thousandths_of
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.results import NodeUsage
from gpushare.scheduler.cache.pod_records import PodRecord

#: The resources that kube-scheduler leaves to the extender, in the order of ``Sums``.
COUNTED: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)


class Sums(NamedTuple):
    """Units of memory, percent of compute, and whole GPUs: the sum over all GPUs of a node or pod."""

    units: int
    core: int
    whole: int


_NONE: Final = Sums(0, 0, 0)


class _Short(NamedTuple):
    """Of one node: what its kubelet does not offer, and what pods hold there without a record."""

    not_offered: Sums
    unrecorded: Sums


def offered_by(node: Node) -> Sums | None:
    """The allocatable sums of the node's kubelet; ``None`` if its status has no ``allocatable``.

    An invalid quantity counts as 0: the API server accepts no such status.
    """
    allocatable = node.status.allocatable
    if allocatable is None:
        return None
    return Sums(*(_whole_number(allocatable.get(resource, 0)) for resource in COUNTED))


@lru_cache(maxsize=1024)
def _whole_number(amount: Quantity) -> int:
    try:
        return thousandths_of(amount) // 1000
    except InvalidQuantity:
        return 0


def described_by(devices: NodeDevices) -> Sums:
    """The sums that the kubelet of a node with these GPUs normally offers."""
    return _capacity(devices, [device for device in devices.devices if device.healthy])


def _capacity(node: NodeDevices, gpus: Sequence[Device]) -> Sums:
    capacity = node.mode.capacity([gpu.total_mib for gpu in gpus], node.unit)
    return Sums(*(capacity.get(resource, 0) for resource in COUNTED))


def requested_by(request: Request) -> Sums:
    """The sums that a pod with this request takes."""
    count = request.gpu_count
    if request.by_gpu:
        return Sums(0, 0, count)
    return Sums(request.memory_units * count, request.core_percent * count, 0)


class KubeletCapacity:
    """The nodes whose kubelet has less capacity than the ledger assumes. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._offered: dict[str, Sums] = {}
        self._unrecorded: dict[str, dict[str, Sums]] = {}
        self._node_of: dict[str, str] = {}
        self._short: dict[str, _Short] = {}

    @property
    def any_short(self) -> bool:
        """Whether there is any such node."""
        return bool(self._short)

    # --- informer events --------------------------------------------------------------------------

    def set_node(self, name: str, offered: Sums | None) -> bool:
        """Set the sums that the kubelet offers (``None``: as described). Returns whether a shortage has changed, so there may be more room."""
        previous = self._short.get(name)
        if offered is None:
            self._offered.pop(name, None)
        else:
            self._offered[name] = offered
        self._update_shortage(name)
        return previous is not None and self._short.get(name) != previous

    def remove_node(self, name: str) -> None:
        """A node was deleted. What its pods hold stays known."""
        self._offered.pop(name, None)
        self._short.pop(name, None)

    def take(self, record: PodRecord) -> None:
        """A bound pod was added or changed, and its recorded allocation is in the ledger already."""
        held = self._ledger.held(record.uid)
        gpus = () if held is None else held.allocation.gpus
        units, core, whole_gpus = (record.amounts.get(resource, 0) for resource in COUNTED)
        # Whole GPUs are requested by number and recorded with all of their units.
        unrecorded = Sums(
            max(units // 1000 - sum(share.units for share in gpus), 0),
            max(core // 1000 - sum(share.core_percent for share in gpus), 0) if core else 0,
            max(whole_gpus // 1000 - len(gpus), 0) if whole_gpus else 0,
        )
        if unrecorded == _NONE:
            self.release(record.uid)
            return
        previous_node = self._node_of.get(record.uid)
        if previous_node not in (None, record.node):
            self.release(record.uid)
        self._node_of[record.uid] = record.node
        self._unrecorded.setdefault(record.node, {})[record.uid] = unrecorded
        self._update_shortage(record.node)

    def release(self, uid: str) -> bool:
        """A pod's record covers all that it holds, or it was deleted. Returns whether it had held more."""
        node = self._node_of.pop(uid, None)
        if node is None:
            return False
        pods = self._unrecorded[node]
        del pods[uid]
        if not pods:
            del self._unrecorded[node]
        self._update_shortage(node)
        return True

    # --- decisions ----------------------------------------------------------------------------------

    def refusals(self, request: Request, nodes: Iterable[str]) -> Mapping[str, str]:
        """The nodes of ``nodes`` whose sums are too small for ``request``, with reasons."""
        requested = requested_by(request)
        reasons: dict[str, str] = {}
        for node in self._short.keys() & set(nodes):
            if reason := self._refusal(requested, node):
                reasons[node] = reason
        return reasons

    def refusal(self, request: Request, node: str) -> str:
        """Why the sums of ``node`` are too small for ``request``; empty if they are not."""
        return self._refusal(requested_by(request), node) if node in self._short else ""

    def _refusal(self, requested: Sums, node: str) -> str:
        short = self._short[node]
        for resource, amount, free, lacking, unrecorded in zip(
            COUNTED,
            requested,
            _free(self._ledger.usage(node)),
            short.not_offered,
            short.unrecorded,
            strict=True,
        ):
            if amount and lacking:
                return (
                    f"the kubelet offers {lacking} {resource} less than the node's GPUs have "
                    "(the node has just started, a GPU has just recovered, or the node agent is not running)"
                )
            if amount and unrecorded and amount > free - unrecorded:
                return (
                    f"the kubelet has {max(free - unrecorded, 0)} {resource} left: "
                    f"pods without an allocation record hold {unrecorded}"
                )
        return ""

    def _update_shortage(self, name: str) -> None:
        devices = self._ledger.node(name)
        if devices is None:
            return
        described = described_by(devices)
        offered = self._offered.get(name, described)
        # Of unhealthy GPUs, too: pods may have held them before.
        at_most = _capacity(devices, devices.devices)
        unrecorded = _NONE
        for pod_sums in self._unrecorded.get(name, {}).values():
            if any(most and amount > most for amount, most in zip(pod_sums, at_most, strict=True)):
                continue
            unrecorded = Sums(*map(sum, zip(unrecorded, pod_sums, strict=True)))
        lacking = Sums(
            *(max(capacity - reported, 0) for capacity, reported in zip(described, offered, strict=True))
        )
        if lacking == unrecorded == _NONE:
            self._short.pop(name, None)
        else:
            self._short[name] = _Short(lacking, unrecorded)


def _free(usage: NodeUsage) -> Sums:
    """What the ledger has not allocated of a node's healthy GPUs."""
    healthy = [gpu for gpu in usage.gpus if gpu.healthy]
    return Sums(
        sum(max(gpu.total_units - gpu.used_units, 0) for gpu in healthy),
        sum(max(100 - gpu.used_core, 0) for gpu in healthy),
        sum(not gpu.pods for gpu in healthy),
    )
