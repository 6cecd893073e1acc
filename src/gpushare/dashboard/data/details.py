"""Details that the page requests: a node with its GPUs and pods, a pod, and search results."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.request.describe import asks_text, units_text
from gpushare.dashboard.data.claims import ClaimPod
from gpushare.dashboard.data.cluster import Cluster
from gpushare.dashboard.data.heatmap import UNKNOWN, Real
from gpushare.dashboard.data.metrics_parser import Figures
from gpushare.ledger.results import Held
from gpushare.scheduler.cache.pod_records import PodRecord

MAX_FOUND: Final = 50
_MIN_UUID_LENGTH: Final = 4


class UseDetail(msgspec.Struct, frozen=True):
    """Usage of a GPU by a container; -1 where it is not reported. ``container`` is empty if only the pod is known.

    ``limit_mib``: what it may use at most, where that is more than is allocated to it; else 0.
    """

    container: str
    used_mib: int
    busy_percent: int
    limit_mib: int = 0


class ShareDetail(msgspec.Struct, frozen=True):
    """A pod's share of a GPU, and its containers' usage; ``reason`` says why the GPU is out of service, if it is not ``healthy``.

    With a ``claim``, the share is that ResourceClaim's: ``pod`` is empty, and ``users`` are the pods that may use it.
    """

    pod: str
    uuid: str
    index: int
    mib: int
    units: int
    device_units: int
    core_percent: int
    containers: tuple[UseDetail, ...]
    healthy: bool = True
    reason: str = ""
    claim: str = ""
    users: tuple[str, ...] = ()
    label: str = ""
    """What the GPU is called: its index, or ``0/4`` for a MIG instance."""


class GpuDetail(msgspec.Struct, frozen=True):
    """A GPU with its pods; ``label`` as in ``ShareDetail``."""

    uuid: str
    index: int
    label: str
    model: str
    pci: str
    numa: int
    healthy: bool
    cordoned: bool
    reason: str
    total_mib: int
    allocated_mib: int
    foreign_mib: int
    foreign_by: str
    total_units: int
    used_units: int
    allocated_core: int
    used_mib: int
    busy_percent: int
    pods: tuple[ShareDetail, ...]


class NodeDetail(msgspec.Struct, frozen=True):
    """A node; ``usage_unknown`` says why its usage is unknown, else it is empty."""

    name: str
    mode: str
    unit: str
    unit_mib: int
    placement: str
    refusal: str
    problem: str
    gives_core: bool
    gpus: tuple[GpuDetail, ...]
    pending: tuple[ShareDetail, ...]
    usage_unknown: str
    troubles: tuple[str, ...]


class PodDetail(msgspec.Struct, frozen=True):
    """A pod that holds a share or is pending (then ``node`` is empty).

    A pending pod has the scheduler's ``reason`` and ``suggestion``, or ``reason_unknown`` says why they are unknown; all three are empty if
    the scheduler has no record of it yet. ``not_held`` says why its node does not enforce shares; empty where it does, or that is unknown.
    """

    pod: str
    uid: str
    node: str
    asks: str
    priority: int
    created: str
    leaving: bool
    gang: str
    problem: str
    shares: tuple[ShareDetail, ...]
    usage_unknown: str
    reason: str = ""
    suggestion: str = ""
    reason_unknown: str = ""
    not_held: str = ""


class Found(msgspec.Struct, frozen=True):
    """A search result: ``kind`` is node, gpu or pod; ``node`` and ``gpu`` are its location."""

    kind: str
    name: str
    node: str = ""
    gpu: int = -1
    note: str = ""


def node_detail(
    cluster: Cluster, name: str, figures: Figures | None, usage_unknown: str
) -> NodeDetail | None:
    """The node; ``None`` without a node of that name with GPUs."""
    devices = cluster.ledger.node(name)
    if devices is None:
        return None
    usage = cluster.ledger.usage(name)
    gpus = []
    for gpu, device in zip(usage.gpus, devices.devices, strict=True):
        gpu_usage = None if figures is None else figures.of_gpu(gpu.uuid)
        holders = (held for uid in gpu.pods if (held := cluster.held(uid)) is not None)
        gpus.append(
            GpuDetail(
                uuid=gpu.uuid,
                index=gpu.index,
                label=device.label,
                model=device.model,
                pci=device.pci_bus_id,
                numa=device.numa_node,
                healthy=not device.is_faulty,
                cordoned=device.cordoned or name in cluster.view.cordoned,
                reason=device.reason,
                total_mib=gpu.total_mib,
                allocated_mib=gpu.used_mib,
                foreign_mib=gpu.foreign_mib,
                foreign_by=device.foreign_by,
                total_units=gpu.total_units,
                used_units=gpu.used_units,
                allocated_core=gpu.used_core,
                used_mib=UNKNOWN if gpu_usage is None else gpu_usage.used_mib,
                busy_percent=UNKNOWN if gpu_usage is None else gpu_usage.busy_percent,
                pods=tuple(_with_health(cluster, name, _shares(cluster, holders, figures, gpu.uuid))),
            )
        )
    return NodeDetail(
        name=name,
        mode=devices.mode.value,
        unit=devices.unit.setting,
        unit_mib=devices.unit.mib,
        placement=devices.placement.value,
        refusal=devices.refusal,
        problem=devices.problem,
        gives_core=devices.mode.limits_compute,
        gpus=tuple(gpus),
        pending=tuple(
            _share(cluster, held, pending.share, figures)
            for pending in usage.pending
            if (held := cluster.held(pending.uid)) is not None
        ),
        usage_unknown=usage_unknown,
        troubles=() if figures is None else figures.troubles,
    )


def pod_detail(cluster: Cluster, key: str, figures: Figures | None, usage_unknown: str) -> PodDetail | None:
    """The pod ``NAMESPACE/NAME``; ``None`` if no such pod holds a share or is pending."""
    claiming = cluster.claims.pods.get(key)
    if claiming is not None:
        return _claim_pod_detail(cluster, claiming, figures, usage_unknown)
    uid = cluster.uids.get(key)
    record = None if uid is None else cluster.view.waiting.get(uid) or cluster.view.bound.get(uid)
    if uid is None or record is None:
        return None
    held = cluster.held(uid)
    node = cluster.ledger.node(record.node)
    return PodDetail(
        pod=record.pod,
        uid=uid,
        node=record.node,
        asks=asks_of(cluster, record),
        priority=record.priority,
        created=record.created,
        leaving=record.leaving,
        gang="" if record.gang is None else record.gang.key,
        problem=record.problem,
        shares=()
        if held is None
        else tuple(_with_health(cluster, record.node, _shares(cluster, [held], figures))),
        usage_unknown=usage_unknown if record.node else "",
        not_held="" if node is None or held is None else not_held(node, held.allocation.gpus),
    )


def _claim_pod_detail(
    cluster: Cluster, pod: ClaimPod, figures: Figures | None, usage_unknown: str
) -> PodDetail | None:
    if not cluster.claims.concern(pod):
        return None
    claims = cluster.claims.of_pod(pod)
    held = [held for claim in claims if (held := cluster.held(claim.metadata.uid)) is not None]
    return PodDetail(
        pod=pod.pod,
        uid=pod.uid,
        node=pod.node,
        asks=cluster.claims.asks_of(pod),
        priority=pod.priority,
        created=pod.created,
        leaving=pod.leaving,
        gang="",
        problem="",
        shares=tuple(_with_health(cluster, pod.node, _shares(cluster, held, figures))) if pod.node else (),
        usage_unknown=usage_unknown if pod.node else "",
        reason=pod.condition_message,
    )


def _with_health(cluster: Cluster, name: str, shares: Iterable[ShareDetail]) -> Iterator[ShareDetail]:
    node = cluster.ledger.node(name)
    for share in shares:
        device = None if node is None else node.device_of(share.uuid, share.index)
        if device is None or not device.is_faulty:
            yield share
        else:
            yield msgspec.structs.replace(share, healthy=False, reason=device.reason)


def asks_of(cluster: Cluster, record: PodRecord) -> str:
    """The pod's request by resource, with units also in GiB or MiB if their size is known; empty if it is malformed.

    Of a placed pod only the sums of its manifest are stored.
    """
    if not record.node:
        return asks_text(record.request, cluster.unit_mib())
    whole, memory, core = (
        record.amounts.get(name, 0) // 1000 for name in (names.GPU_WHOLE, names.GPU_MEM, names.GPU_CORE)
    )
    if whole:
        return f"{names.GPU_WHOLE}: {whole}"
    if not memory:
        return ""
    held, node = cluster.held(record.uid), cluster.ledger.node(record.node)
    parts = [units_text(memory, 0 if node is None else node.unit.mib)]
    if core:
        parts.append(f"{names.GPU_CORE}: {core}")
    if held is not None and len(held.allocation.gpus) > 1:
        parts.append(f"of {len(held.allocation.gpus)} GPUs together")
    if record.whole_device:
        parts.append(f"{names.LABEL_POD_PLACEMENT}: {names.POD_PLACEMENT_WHOLE_DEVICE}")
    return ", ".join(parts)


def found(cluster: Cluster, text: str) -> list[Found]:
    """Nodes, pods and GPUs whose name contains ``text``, in this order, at most ``MAX_FOUND``; early matches first."""
    wanted = text.strip().lower()
    if not wanted:
        return []

    def matching(names: Iterable[str]) -> list[str]:
        matches = [(name.lower().find(wanted), name) for name in names if wanted in name.lower()]
        return [name for _, name in sorted(matches)[:MAX_FOUND]]

    nodes = (Found("node", name, name) for name in matching(cluster.nodes))
    claiming = (
        key
        for key, pod in cluster.claims.pods.items()
        if wanted in key.lower() and cluster.claims.concern(pod)
    )
    pods = (_found_pod(cluster, key) for key in matching([*cluster.uids, *claiming]))
    gpus = _found_gpus(cluster, wanted) if len(wanted) >= _MIN_UUID_LENGTH else iter(())
    # Each kind has its quota, however many matches another has.
    quota = MAX_FOUND // 3
    return [*islice(nodes, quota), *islice(pods, MAX_FOUND - 2 * quota), *islice(gpus, quota)]


def _found_pod(cluster: Cluster, key: str) -> Found:
    claiming = cluster.claims.pods.get(key)
    if claiming is not None:
        note = f"on {claiming.node}, uses a claim" if claiming.node else "pending"
        return Found("pod", key, claiming.node, note=note)
    uid = cluster.uids[key]
    record = cluster.view.bound.get(uid)
    if record is None:
        return Found("pod", key, note="pending")
    held = cluster.held(uid)
    gpu = held.allocation.gpus[0].index if held is not None and held.allocation.gpus else -1
    return Found("pod", key, record.node, gpu, note=f"on {record.node}")


def _found_gpus(cluster: Cluster, wanted: str) -> Iterator[Found]:
    for name in sorted(cluster.nodes):
        node = cluster.ledger.node(name)
        for device in () if node is None else node.devices:
            if wanted in device.uuid.lower():
                yield Found("gpu", device.uuid, name, device.index, f"GPU {device.label} of {name}")


def _shares(
    cluster: Cluster, held: Iterable[Held], figures: Figures | None, uuid: str | None = None
) -> Iterator[ShareDetail]:
    for holder in sorted(held, key=lambda holder: holder.pod):
        for share in holder.allocation.gpus:
            if uuid is None or share.uuid == uuid:
                yield _share(cluster, holder, share, figures)


def _share(cluster: Cluster, held: Held, share: GpuShare, figures: Figures | None) -> ShareDetail:
    claim = cluster.claims.of_uid(held.uid)
    users = () if claim is None else tuple(f"{claim.metadata.namespace}/{pod}" for pod in claim.pods)
    pods = (held.pod,) if claim is None else users
    return ShareDetail(
        pod=held.pod if claim is None else "",
        uuid=share.uuid,
        index=share.index,
        mib=share.mib,
        units=share.units,
        device_units=share.device_units,
        core_percent=share.core_percent,
        containers=()
        if figures is None
        else tuple(use for pod in pods for use in _uses(pod, share.uuid, figures)),
        claim="" if claim is None else claim.key,
        users=users,
        label=share.label,
    )


def _uses(pod: str, uuid: str, figures: Figures) -> Iterator[UseDetail]:
    uses = [use for use in figures.containers if use.pod == pod and use.gpu == uuid]
    if uses:
        yield from (UseDetail(use.container, use.used_mib, use.busy_percent, use.limit_mib) for use in uses)
    else:
        # Agents of earlier versions list only containers with processes on the GPU. If the driver reports an idle GPU, each share is idle.
        whole = figures.gpus.get(uuid, Real())
        if whole.used_mib == 0:
            yield UseDetail("", 0, 0 if whole.busy_percent == 0 else UNKNOWN)
