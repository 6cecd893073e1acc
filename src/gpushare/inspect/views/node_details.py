"""The output of ``-d``: a section per node with a line per pod, in the documented layout, and its wide form."""

from collections.abc import Sequence
from typing import Final

from gpushare.api.node.device import Device
from gpushare.inspect.tabwriter import aligned, raw_length
from gpushare.inspect.views.allocation_model import ClusterUsage, GpuUsage, NodeUsage, PodUsage, percent
from gpushare.inspect.views.nodes import CORE_SUM_HEADING, core_sum, memory_sum, sum_heading

#: The documented separator is longer by this than the first node's pod lines together, before alignment. With many pods that would be
#: pages of dashes, so it is limited to this length or the table's width.
_RULE_BEYOND_PODS: Final = 10
_LONGEST_RULE: Final = 120


def details(cluster: ClusterUsage, *, wide: bool = False, namespace: str | None = None) -> str:
    """The sections, each line with a line end; empty when no node shares GPU memory.

    ``namespace`` limits the listed pods; sums count all pods.
    """
    several = len(cluster.units) > 1
    text: list[str] = []
    rule = ""
    for node in cluster.nodes:
        pods = [pod for pod in node.pods if namespace in (None, pod.namespace)]
        table = _pod_table(node, pods)
        pod_lines = table[1 : 1 + len(pods)]
        gpus = _gpu_table(node) if wide else []
        section = aligned([*_title(node, several=several, wide=wide), [""], *gpus, *table])
        if not rule:
            width = max(map(len, section))
            wanted = sum(map(raw_length, pod_lines)) + _RULE_BEYOND_PODS
            rule = "-" * min(wanted, max(width, _LONGEST_RULE))
        text += [*section, rule, ""]
    for unit in cluster.units:
        sharing = [node for node in cluster.nodes if node.unit is unit]
        text += aligned([[sum_heading(unit, unit_in_sum=several), memory_sum(sharing)]])
    if any(node.total_core_percent for node in cluster.nodes):
        text += aligned([[CORE_SUM_HEADING, core_sum(cluster.nodes)]])
    return "".join(f"{line}\n" for line in text)


def _title(node: NodeUsage, *, several: bool, wide: bool) -> list[list[str]]:
    title = [["NAME:", node.name], ["IPADDRESS:", node.address]]
    if several:
        title.append(["UNIT:", node.unit.heading])
    if wide:
        title.append(["MODE:", node.devices.mode.value])
    if wide and node.closed:
        title.append(["CLOSED:", node.closed])
    return title


def _pod_table(node: NodeUsage, pods: Sequence[PodUsage]) -> list[list[str]]:
    """Heading, a line per pod, and the sums. The empty last cell makes every other cell end a column."""
    core = node.total_core_percent > 0
    heading = ["NAME", "NAMESPACE"]
    heading += [f"GPU{gpu.device.label}(Allocated)" for gpu in _by_place(node)]
    heading += ["Pending(Allocated)"] if node.has_pending else []
    if core:
        heading += [f"GPU{gpu.device.label} Core(%)" for gpu in _by_place(node)]
        heading += ["Pending Core(%)"] if node.has_pending else []
    divided = any(_containers_by_gpu(pod) for pod in pods)
    heading += ["CONTAINERS"] if divided else []
    claimed = any(pod.claim for pod in pods)
    heading += ["CLAIM"] if claimed else []
    bursting = any(_limits(pod) for pod in pods)
    heading += ["LIMIT(MiB)"] if bursting else []
    used, total = node.used_units, node.total_units
    sums = [["Allocated :", f"{used} ({percent(used, total)}%)", ""], ["Total :", str(total), ""]]
    if core:
        used, total = node.used_core_percent, node.total_core_percent
        sums += [
            ["Allocated Core :", f"{used} ({percent(used, total)}%)", ""],
            ["Total Core :", str(total), ""],
        ]
    lines = [
        [
            *_pod_line(pod, node, core=core),
            *([_containers_by_gpu(pod)] if divided else []),
            *([pod.claim] if claimed else []),
            *([_limits(pod) or "-"] if bursting else []),
            "",
        ]
        for pod in pods
    ]
    return [[*heading, ""], *lines, *sums]


def _by_place(node: NodeUsage) -> list[GpuUsage]:
    """The node's GPUs, MIG instances in the place of theirs."""
    return sorted(node.gpus, key=lambda gpu: gpu.device.place)


def _pod_line(pod: PodUsage, node: NodeUsage, *, core: bool) -> list[str]:
    line = [pod.name, pod.namespace]
    line += [str(pod.units_on(gpu.device)) for gpu in _by_place(node)]
    line += [str(pod.pending_units)] if node.has_pending else []
    if core:
        line += [str(pod.core_percent_on(gpu.device)) for gpu in _by_place(node)]
        line += [str(pod.pending_core_percent)] if node.has_pending else []
    return line


def _containers_by_gpu(pod: PodUsage) -> str:
    """``GPU0 actor; GPU1 learner`` for a pod whose containers have different GPUs; else empty."""
    return "; ".join(
        f"GPU{share.device.label} {', '.join(share.containers) or '-'}"
        for share in pod.shares
        if share.containers is not None
    )


def _limits(pod: PodUsage) -> str:
    """What it may use of its GPUs while they have it free, if that is more than its share of one: MiB, by GPU if it has several."""
    return "; ".join(
        f"GPU{share.device.label} {share.limit_mib}" if len(pod.shares) > 1 else str(share.limit_mib)
        for share in pod.shares
        if share.limit_mib
    )


def _health(device: Device) -> str:
    health = f"unhealthy: {device.reason or 'no reason given'}" if device.is_faulty else "healthy"
    if device.kept_back:
        health += f", {device.reason}"
    return f"{health}, cordoned" if device.cordoned else health


def _gpu_table(node: NodeUsage) -> list[list[str]]:
    """``-o wide``: a line per GPU of the node, and an empty line."""
    foreign = any(gpu.device.foreign_mib for gpu in node.gpus)
    lines = [
        ["GPU", "UUID", "MODEL", "Memory(MiB)", *(["Foreign(MiB)"] if foreign else []), "Core(%)", "HEALTH"]
    ]
    for gpu in _by_place(node):
        device = gpu.device
        lines.append(
            [
                device.label,
                device.uuid,
                device.model or "unknown",
                f"{gpu.used_mib}/{device.total_mib}",
                *([str(device.foreign_mib)] if foreign else []),
                f"{gpu.used_core_percent}/100" if node.total_core_percent else "-",
                _health(device),
            ]
        )
    return [*lines, [""]]
