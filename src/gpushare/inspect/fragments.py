"""``kubectl inspect cgpu --fragmentation``: who waits although there is room in all, and what would have to move."""

from collections.abc import Iterable

from gpushare.inspect.columns import aligned
from gpushare.inspect.hosts import hosts_of
from gpushare.inspect.usage import ClusterUsage
from gpushare.model.errors import ModelError
from gpushare.model.objects import Pod
from gpushare.model.request import Request, request_of
from gpushare.moves import MOST_MOVES, Outlook, outlook

_HEAD = ("NAMESPACE", "NAME", "ASKS", "GOES TO", "ONCE THESE HAVE MOVED")


def fragments(cluster: ClusterUsage, waiting: Iterable[Pod], *, namespace: str | None = None) -> str:
    """The report. Pods that ask for something else than a share of one GPU are named and not looked at."""
    hosts = list(hosts_of(cluster))
    lines = [_HEAD]
    counts = {"now": 0, "moves": 0, "nothing": 0}
    for pod in sorted(waiting, key=lambda one: one.key):
        if namespace is not None and pod.metadata.namespace != namespace:
            continue
        try:
            request = request_of(pod)
        except ModelError as error:
            lines.append((pod.metadata.namespace, pod.metadata.name, "?", "-", error.problem))
            continue
        if request is None or request.by_gpu:
            continue
        if not request.is_ordinary:
            what = f"{request.gpu_count} × {request.memory_units}" + (
                " whole" if request.whole_device else ""
            )
            lines.append(
                (
                    pod.metadata.namespace,
                    pod.metadata.name,
                    what,
                    "-",
                    "not looked at: not a share of one GPU",
                )
            )
            continue
        found = outlook(hosts, request)
        counts["nothing" if found.spot is None else "moves" if found.moves else "now"] += 1
        lines.append((pod.metadata.namespace, pod.metadata.name, _asks(request), *_way(found)))
    free = [
        (gpu.total_units - gpu.used_units) * node.unit.mib
        for node in cluster.nodes
        for gpu in node.gpus
        if not node.closed and gpu.device.in_service
    ]
    summary = [
        f"{sum(free) / 1024:.0f} GiB are free on {sum(one > 0 for one in free)} GPUs, "
        f"{max(free, default=0) / 1024:.0f} GiB of them together.",
        f"Of the pods that wait {counts['moves']} would fit if others moved, {counts['now']} fit as it is, "
        f"{counts['nothing']} fit in no way that moves {MOST_MOVES} pods at most.",
    ]
    table = aligned(lines) if len(lines) > 1 else ["No pod that asks for GPU memory waits."]
    return "\n".join([*table, "", *summary]) + "\n"


def _asks(request: Request) -> str:
    return f"{request.memory_units}" + (f", {request.core_percent}%" if request.wants_core else "")


def _way(found: Outlook) -> tuple[str, str]:
    if found.spot is None:
        return "-", "-"
    if not found.moves:
        return str(found.spot), "nothing: the scheduler's message says what else keeps it"
    moves = (f"{move.pod} ({move.units}) from {move.source} to {move.target}" for move in found.moves)
    return str(found.spot), ", ".join(moves)
