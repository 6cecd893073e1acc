"""The figures as a document for programs: ``-o json`` and ``-o yaml``.

docs/guide/inspect.md describes the schema. ``version`` increases with incompatible changes; new fields do not change it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpushare.inspect.views.allocation_model import (
    ClusterUsage,
    GpuUsage,
    NodeUsage,
    PodShare,
    PodUsage,
    percent,
)
from gpushare.inspect.views.other_nodes import OtherNode

if TYPE_CHECKING:
    from gpushare.inspect.sources.gang_reservations import GangReservation

SCHEMA_VERSION: Final = 1


class _Out(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class _Memory(_Out, frozen=True):
    allocated_units: int
    total_units: int
    allocated_mib: int = msgspec.field(name="allocatedMiB")
    total_mib: int = msgspec.field(name="totalMiB")


class _Pending(_Out, frozen=True):
    units: int
    core_percent: int


class _Core(_Out, frozen=True):
    allocated_percent: int
    total_percent: int


class _Gpu(_Out, frozen=True):
    index: int
    uuid: str
    model: str
    healthy: bool
    reason: str
    memory: _Memory
    core: _Core | None
    foreign_mib: int | msgspec.UnsetType = msgspec.field(name="foreignMiB", default=msgspec.UNSET)
    """MiB used without an allocation of ours, and therefore not free; omitted if 0."""
    foreign_by: str | msgspec.UnsetType = msgspec.UNSET
    """What uses them, as text; omitted if there are none, or the node agent does not say."""
    cordoned: bool | msgspec.UnsetType = msgspec.UNSET
    """True if cordoned by annotation; omitted otherwise."""
    parent: int | msgspec.UnsetType = msgspec.UNSET
    """NVML's index of the GPU of which it is a MIG instance; omitted for a GPU."""


class _Share(_Out, frozen=True):
    gpu: int
    uuid: str
    units: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int
    containers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Those with a part of the share; omitted unless containers of the pod have different GPUs."""
    limit_mib: int | msgspec.UnsetType = msgspec.field(name="limitMiB", default=msgspec.UNSET)
    """What the pod may use while the GPU has it free; omitted where that is its share."""


class _Pod(_Out, frozen=True):
    namespace: str
    name: str
    uid: str
    phase: str
    shares: tuple[_Share, ...]
    pending: _Pending | None
    claim: str | msgspec.UnsetType = msgspec.UNSET
    """The ResourceClaim that holds the shares, for the pods in ``name``; omitted for shares of pods themselves."""


class _Node(_Out, frozen=True):
    name: str
    address: str
    mode: str
    unit: str
    closed: str
    memory: _Memory
    pending: _Pending
    core: _Core | None
    gpus: tuple[_Gpu, ...]
    pods: tuple[_Pod, ...]
    cordoned: bool | msgspec.UnsetType = msgspec.UNSET
    """True after ``kubectl cordon``; omitted otherwise."""


class _Sum(_Out, frozen=True):
    unit: str
    allocated_units: int
    total_units: int
    percent: int


class _Cluster(_Out, frozen=True):
    memory: tuple[_Sum, ...]
    core: _Core | None


class _KeptShare(_Out, frozen=True):
    node: str
    gpu: int
    uuid: str
    units: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int


class _Kept(_Out, frozen=True):
    namespace: str
    name: str
    come: int
    least: int
    until: int
    shares: tuple[_KeptShare, ...]


class Document(_Out, frozen=True):
    """The whole document."""

    version: int
    nodes: tuple[_Node, ...]
    cluster: _Cluster
    warnings: tuple[str, ...]
    kept: tuple[_Kept, ...] | msgspec.UnsetType = msgspec.UNSET
    """Capacity reserved for gangs; omitted without reservations."""
    other_nodes: tuple[OtherNode, ...] | msgspec.UnsetType = msgspec.UNSET
    """With ``--all``: nodes whose GPUs another device plugin serves; omitted otherwise."""


def document(
    cluster: ClusterUsage,
    reservations: Sequence["GangReservation"] = (),
    *,
    namespace: str | None = None,
    others: Sequence[OtherNode] | None = None,
) -> Document:
    """``cluster`` and the reservations of gangs in the published schema; ``namespace`` limits the listed pods."""
    return Document(
        version=SCHEMA_VERSION,
        nodes=tuple(_node(node, namespace) for node in cluster.nodes),
        cluster=_cluster(cluster),
        warnings=cluster.remarks,
        kept=tuple(map(_kept, reservations)) or msgspec.UNSET,
        other_nodes=msgspec.UNSET if others is None else tuple(others),
    )


def encoded(
    cluster: ClusterUsage,
    form: Literal["json", "yaml"],
    reservations: Sequence["GangReservation"] = (),
    *,
    namespace: str | None = None,
    others: Sequence[OtherNode] | None = None,
) -> str:
    """``cluster`` and the reservations of gangs as JSON or YAML text, with a final line end."""
    written = document(cluster, reservations, namespace=namespace, others=others)
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(written), indent=2).decode() + "\n"
    from gpushare.inspect.views.documents import written as as_yaml  # imported for -o yaml only

    return as_yaml(msgspec.to_builtins(written), form)


def _node(node: NodeUsage, namespace: str | None) -> _Node:
    return _Node(
        name=node.name,
        address=node.address,
        mode=node.devices.mode.value,
        unit=node.unit.setting,
        closed=node.closed,
        memory=_Memory(
            allocated_units=node.used_units,
            total_units=node.total_units,
            allocated_mib=sum(gpu.used_mib for gpu in node.gpus),
            total_mib=sum(gpu.device.total_mib for gpu in node.gpus),
        ),
        pending=_Pending(node.pending_units, node.pending_core_percent),
        core=_Core(node.used_core_percent, node.total_core_percent) if node.total_core_percent else None,
        gpus=tuple(_gpu(gpu, has_core=node.total_core_percent > 0) for gpu in node.gpus),
        pods=tuple(_pod(pod) for pod in node.pods if namespace in (None, pod.namespace)),
        cordoned=node.cordoned or msgspec.UNSET,
    )


def _gpu(gpu: GpuUsage, *, has_core: bool) -> _Gpu:
    device = gpu.device
    return _Gpu(
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        healthy=not device.is_faulty,
        reason=device.reason,
        memory=_Memory(gpu.used_units, gpu.total_units, gpu.used_mib, device.total_mib),
        core=_Core(gpu.used_core_percent, 100) if has_core else None,
        foreign_mib=device.foreign_mib or msgspec.UNSET,
        foreign_by=device.foreign_by or msgspec.UNSET,
        cordoned=device.cordoned or msgspec.UNSET,
        parent=device.place[0] if device.is_instance else msgspec.UNSET,
    )


def _pod(pod: PodUsage) -> _Pod:
    return _Pod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        phase=pod.phase,
        shares=tuple(map(_share, pod.shares)),
        pending=None if pod.shares else _Pending(pod.pending_units, pod.pending_core_percent),
        claim=pod.claim or msgspec.UNSET,
    )


def _share(share: PodShare) -> _Share:
    containers = msgspec.UNSET if share.containers is None else share.containers
    return _Share(
        share.device.index,
        share.device.uuid,
        share.units,
        share.mib,
        share.core_percent,
        containers,
        share.limit_mib or msgspec.UNSET,
    )


def _kept(reservation: "GangReservation") -> _Kept:
    return _Kept(
        reservation.namespace,
        reservation.name,
        reservation.come,
        reservation.least,
        reservation.until,
        tuple(_KeptShare(*share) for share in reservation.shares),
    )


def _cluster(cluster: ClusterUsage) -> _Cluster:
    sums = []
    for unit in cluster.units:
        nodes = [node for node in cluster.nodes if node.unit is unit]
        used, total = sum(node.used_units for node in nodes), sum(node.total_units for node in nodes)
        sums.append(_Sum(unit.setting, used, total, percent(used, total)))
    total_core = sum(node.total_core_percent for node in cluster.nodes)
    used_core = sum(node.used_core_percent for node in cluster.nodes)
    return _Cluster(tuple(sums), _Core(used_core, total_core) if total_core else None)
