"""What kubelets offer, held against what the ledger gives: a node's sum, which kube-scheduler leaves to us to count.

A kubelet refuses, for good, a pod for which it has not enough free devices. Where every pod on a node has a record, and the
kubelet offers all healthy GPUs that the node is described with, the ledger never gives more than it has. Here are the
other nodes. On those on which pods hold more than a record says (bound by hand, or by another scheduler) no pod is placed that their
sum does not take. On those of which the kubelet offers less (its own restart, a node agent that is away, a unit that has just
changed, a GPU that has just come back) none is placed at all: which GPU it lacks is not known, and with devices of another one
in its hands it would fail the pod, however large the sum. Nobody is ended on either for one: what would come of it is not known.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity
from gpushare.api.node.device import NodeDevices
from gpushare.api.objects import Node
from gpushare.api.quantity import Quantity
from gpushare.api.request.amounts import thousandths_of
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.results import NodeUsage
from gpushare.scheduler.cache.pod_records import PodRecord

#: What kube-scheduler leaves to us, in the order of ``Sums``.
COUNTED: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)


class Sums(NamedTuple):
    """Units of memory, percent of compute, and whole GPUs: of a node, or of a pod, all GPUs together."""

    units: int
    core: int
    whole: int


_NONE: Final = Sums(0, 0, 0)


class _Short(NamedTuple):
    """What the kubelet of a node does not offer of its GPUs, and what pods hold there without a record."""

    not_offered: Sums
    unrecorded: Sums


def offered_by(node: Node) -> Sums | None:
    """What the node's kubelet offers in all; ``None`` where its status says nothing at all.

    What is no quantity counts as nothing: the API server takes no such status.
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
    """What a kubelet offers of a node with these GPUs when all is well."""
    healthy_mib = [device.total_mib for device in devices.devices if device.healthy]
    capacity = devices.mode.capacity(healthy_mib, devices.unit)
    return Sums(*(capacity.get(resource, 0) for resource in COUNTED))


def asked_by(request: Request) -> Sums:
    """What a pod with this request takes of the sums."""
    count = request.gpu_count
    if request.by_gpu:
        return Sums(0, 0, count)
    return Sums(request.memory_units * count, request.core_percent * count, 0)


class KubeletCapacity:
    """Which nodes have less to give than the ledger says. Not for several threads."""

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

    # --- what the informers tell ------------------------------------------------------------------

    def set_node(self, name: str, offered: Sums | None) -> bool:
        """The ledger's node offers this in all; ``None``: what it is described with. Whether it has more to give now."""
        before = self._short.get(name)
        if offered is None:
            self._offered.pop(name, None)
        else:
            self._offered[name] = offered
        self._weigh(name)
        return before is not None and self._short.get(name) != before

    def remove_node(self, name: str) -> None:
        """A node is gone; what its pods hold stays known."""
        self._offered.pop(name, None)
        self._short.pop(name, None)

    def take(self, record: PodRecord) -> None:
        """A bound pod is new or changed, and the ledger knows what its record says."""
        held = self._ledger.held(record.uid)
        gpus = () if held is None else held.allocation.gpus
        units, core, whole = (record.amounts.get(resource, 0) for resource in COUNTED)
        # Whole GPUs are asked for by their number, and recorded with all of their units.
        more = Sums(
            max(units // 1000 - sum(share.units for share in gpus), 0),
            max(core // 1000 - sum(share.core_percent for share in gpus), 0) if core else 0,
            max(whole // 1000 - len(gpus), 0) if whole else 0,
        )
        if more == _NONE:
            self.release(record.uid)
            return
        before = self._node_of.get(record.uid)
        if before not in (None, record.node):
            self.release(record.uid)
        self._node_of[record.uid] = record.node
        self._unrecorded.setdefault(record.node, {})[record.uid] = more
        self._weigh(record.node)

    def release(self, uid: str) -> bool:
        """A pod has a record for all that it holds, or is gone; whether it had held more."""
        node = self._node_of.pop(uid, None)
        if node is None:
            return False
        pods = self._unrecorded[node]
        del pods[uid]
        if not pods:
            del self._unrecorded[node]
        self._weigh(node)
        return True

    # --- decisions ----------------------------------------------------------------------------------

    def refusals(self, request: Request, nodes: Iterable[str]) -> Mapping[str, str]:
        """Why those of ``nodes`` do not take ``request`` whose sums are too small for it."""
        asked = asked_by(request)
        found: dict[str, str] = {}
        for node in self._short.keys() & set(nodes):
            if why := self._refusal(asked, node):
                found[node] = why
        return found

    def refusal(self, request: Request, node: str) -> str:
        """Why one node does not; empty where it does."""
        return self._refusal(asked_by(request), node) if node in self._short else ""

    def _refusal(self, asked: Sums, node: str) -> str:
        short = self._short[node]
        for resource, wanted, left, lacking, unrecorded in zip(
            COUNTED, asked, _free(self._ledger.usage(node)), short.not_offered, short.unrecorded, strict=True
        ):
            if wanted and lacking:
                return (
                    f"the kubelet offers {lacking} {resource} less than the node's GPUs have "
                    "(just started, a GPU has just come back, or its node agent is away)"
                )
            if wanted and unrecorded and wanted > left - unrecorded:
                return (
                    f"the kubelet has {max(left - unrecorded, 0)} {resource} left to give: "
                    f"pods without a record hold {unrecorded}"
                )
        return ""

    def _weigh(self, name: str) -> None:
        devices = self._ledger.node(name)
        if devices is None:
            return
        described = described_by(devices)
        offered = self._offered.get(name, described)
        unrecorded = _NONE
        for one in self._unrecorded.get(name, {}).values():
            unrecorded = Sums(*map(sum, zip(unrecorded, one, strict=True)))
        lacking = Sums(*(max(has - told, 0) for has, told in zip(described, offered, strict=True)))
        if lacking == unrecorded == _NONE:
            self._short.pop(name, None)
        else:
            self._short[name] = _Short(lacking, unrecorded)


def _free(usage: NodeUsage) -> Sums:
    """What the ledger has given nobody of a node's healthy GPUs."""
    healthy = [gpu for gpu in usage.gpus if gpu.healthy]
    return Sums(
        sum(max(gpu.total_units - gpu.used_units, 0) for gpu in healthy),
        sum(max(100 - gpu.used_core, 0) for gpu in healthy),
        sum(not gpu.pods for gpu in healthy),
    )
