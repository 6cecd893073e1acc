"""What the page asks for one by one: a node with its GPUs and pods, one pod, and what a search finds."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.request.describe import asks_text, units_text
from gpushare.dashboard.data.cluster import Cluster
from gpushare.dashboard.data.heatmap import UNKNOWN, Real
from gpushare.dashboard.data.metrics_parser import Figures
from gpushare.ledger.results import Held
from gpushare.scheduler.cache.pod_records import PodRecord

MOST_FOUND: Final = 50
_LEAST_OF_UUID: Final = 4


class UseDetail(msgspec.Struct, frozen=True):
    """What a container really uses of a GPU; -1 where nobody says. ``container`` is empty where only the pod is known."""

    container: str
    used_mib: int
    busy_percent: int


class ShareDetail(msgspec.Struct, frozen=True):
    """What a pod was given of a GPU, and its containers' use of it; ``reason`` says why that GPU is out of service, if it is not healthy."""

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


class GpuDetail(msgspec.Struct, frozen=True):
    """A GPU with its pods."""

    uuid: str
    index: int
    model: str
    pci: str
    numa: int
    healthy: bool
    cordoned: bool
    reason: str
    total_mib: int
    allocated_mib: int
    foreign_mib: int
    total_units: int
    used_units: int
    allocated_core: int
    used_mib: int
    busy_percent: int
    pods: tuple[ShareDetail, ...]


class NodeDetail(msgspec.Struct, frozen=True):
    """A node; ``usage_unknown`` says why nobody knows what is really used, empty when somebody does."""

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
    """A pod that holds something or waits (then ``node`` is empty).

    One that waits has the scheduler's ``reason`` and ``suggestion``, or ``reason_unknown`` says why nobody can tell; all three are empty where
    the scheduler has no word on it yet. ``not_held`` says why its node does not hold containers to what it gives now; empty where it does, or
    nobody says.
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
    """One finding of a search: ``kind`` is node, gpu or pod; ``node`` and ``gpu`` lead there."""

    kind: str
    name: str
    node: str = ""
    gpu: int = -1
    note: str = ""


def node_detail(
    cluster: Cluster, name: str, figures: Figures | None, usage_unknown: str
) -> NodeDetail | None:
    """The node; ``None`` where there is none of that name with GPUs."""
    devices = cluster.ledger.node(name)
    if devices is None:
        return None
    usage = cluster.ledger.usage(name)
    gpus = []
    for gpu, device in zip(usage.gpus, devices.devices, strict=True):
        real = None if figures is None else figures.of_gpu(gpu.uuid)
        held = (one for uid in gpu.pods if (one := cluster.held(uid)) is not None)
        gpus.append(
            GpuDetail(
                uuid=gpu.uuid,
                index=gpu.index,
                model=device.model,
                pci=device.pci_bus_id,
                numa=device.numa_node,
                healthy=not device.ails,
                cordoned=device.cordoned,
                reason=device.reason,
                total_mib=gpu.total_mib,
                allocated_mib=gpu.used_mib,
                foreign_mib=gpu.foreign_mib,
                total_units=gpu.total_units,
                used_units=gpu.used_units,
                allocated_core=gpu.used_core,
                used_mib=UNKNOWN if real is None else real.used_mib,
                busy_percent=UNKNOWN if real is None else real.busy_percent,
                pods=tuple(_told_health(cluster, name, _shares(held, figures, gpu.uuid))),
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
        gives_core=devices.mode.gives_core,
        gpus=tuple(gpus),
        pending=tuple(
            _share(one, pending.share, figures)
            for pending in usage.pending
            if (one := cluster.held(pending.uid)) is not None
        ),
        usage_unknown=usage_unknown,
        troubles=() if figures is None else figures.troubles,
    )


def pod_detail(cluster: Cluster, key: str, figures: Figures | None, usage_unknown: str) -> PodDetail | None:
    """The pod ``NAMESPACE/NAME``; ``None`` where there is none that holds something or waits."""
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
        shares=() if held is None else tuple(_told_health(cluster, record.node, _shares([held], figures))),
        usage_unknown=usage_unknown if record.node else "",
        not_held="" if node is None or held is None else not_held(node, held.allocation.gpus),
    )


def _told_health(cluster: Cluster, name: str, shares: Iterable[ShareDetail]) -> Iterator[ShareDetail]:
    node = cluster.ledger.node(name)
    for share in shares:
        device = None if node is None else node.device_of(share.uuid, share.index)
        if device is None or not device.ails:
            yield share
        else:
            yield msgspec.structs.replace(share, healthy=False, reason=device.reason)


def asks_of(cluster: Cluster, record: PodRecord) -> str:
    """What the pod asks for by resource, units in GiB or MiB, too, where it is known what they are; empty where it cannot be read.

    Of a placed pod the sums of its manifest are kept.
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
    """Nodes, pods and GPUs whose name holds ``text``, in this order, at most ``MOST_FOUND``; exact and early matches first."""
    wanted = text.strip().lower()
    if not wanted:
        return []

    def matching(names: Iterable[str]) -> list[str]:
        hits = [(name.lower().find(wanted), name) for name in names if wanted in name.lower()]
        return [name for _, name in sorted(hits)[:MOST_FOUND]]

    nodes = (Found("node", name, name) for name in matching(cluster.nodes))
    pods = (_found_pod(cluster, key) for key in matching(cluster.uids))
    gpus = _found_gpus(cluster, wanted) if len(wanted) >= _LEAST_OF_UUID else iter(())
    # Each kind has its part even where another has very many.
    few = MOST_FOUND // 3
    return [*islice(nodes, few), *islice(pods, MOST_FOUND - 2 * few), *islice(gpus, few)]


def _found_pod(cluster: Cluster, key: str) -> Found:
    uid = cluster.uids[key]
    record = cluster.view.bound.get(uid)
    if record is None:
        return Found("pod", key, note="waits")
    held = cluster.held(uid)
    gpu = held.allocation.gpus[0].index if held is not None and held.allocation.gpus else -1
    return Found("pod", key, record.node, gpu, note=f"on {record.node}")


def _found_gpus(cluster: Cluster, wanted: str) -> Iterator[Found]:
    for name in sorted(cluster.nodes):
        node = cluster.ledger.node(name)
        for device in () if node is None else node.devices:
            if wanted in device.uuid.lower():
                yield Found("gpu", device.uuid, name, device.index, f"GPU {device.index} of {name}")


def _shares(held: Iterable[Held], figures: Figures | None, uuid: str | None = None) -> Iterator[ShareDetail]:
    for one in sorted(held, key=lambda one: one.pod):
        for share in one.allocation.gpus:
            if uuid is None or share.uuid == uuid:
                yield _share(one, share, figures)


def _share(held: Held, share: GpuShare, figures: Figures | None) -> ShareDetail:
    return ShareDetail(
        pod=held.pod,
        uuid=share.uuid,
        index=share.index,
        mib=share.mib,
        units=share.units,
        device_units=share.device_units,
        core_percent=share.core_percent,
        containers=() if figures is None else tuple(_uses(held.pod, share.uuid, figures)),
    )


def _uses(pod: str, uuid: str, figures: Figures) -> Iterator[UseDetail]:
    its = [one for one in figures.containers if one.pod == pod and one.gpu == uuid]
    if its:
        yield from (UseDetail(one.container, one.used_mib, one.busy_percent) for one in its)
    else:
        # Agents of earlier versions name containers that have processes on the GPU alone. Where the driver says that all of it is idle, so is each part.
        whole = figures.gpus.get(uuid, Real())
        if whole.used_mib == 0:
            yield UseDetail("", 0, 0 if whole.busy_percent == 0 else UNKNOWN)
