"""``kubectl inspect cgpu --fragmentation``: pods that are pending because of fragmentation, and the moves that would admit them."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from gpushare.api.errors import ModelError
from gpushare.api.objects import Node, Pod
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import Request, request_of
from gpushare.inspect.sources.defrag_hosts import hosts_of
from gpushare.inspect.tabwriter import aligned, printable
from gpushare.inspect.views.allocation_model import ClusterUsage
from gpushare.kubescheduler.required_nodes import Wishes, labels_of_each, wanted_by_each, wish_of
from gpushare.planning.defragmentation import MOST_MOVES, Host, Move, Spot, outlook
from gpushare.reasons.categories import NOT_ROOM
from gpushare.reasons.phrases import NOT_A_SHARE, other_obstacle_note

VERSION: Final = 1

_HEAD = ("NAMESPACE", "NAME", "REQUESTS", "TARGET", "AFTER THESE MOVES")


Fits = Literal["now", "once moved", "not", "not looked at"]
PendingPodsFn = Callable[[], Iterable[dict[str, Any]]]
"""Returns the pending pods as the scheduler reports them (``scheduler.plugins.explain.decision_log.PendingPod``); none if it does not answer."""


class Plan(NamedTuple):
    """A pending pod: whether it ``fits``, on which GPU (``spot``), and after which ``moves``.

    ``note`` says why it was not examined, or that something other than lack of capacity keeps it pending.
    """

    pod: Pod
    request: "Request | None"
    fits: Fits
    spot: "Spot | None" = None
    moves: "tuple[Move, ...]" = ()
    note: str = ""


def fragments(
    cluster: ClusterUsage,
    nodes: Sequence[Node],
    held: Iterable[Pod],
    waiting: Iterable[Pod],
    scheduler: PendingPodsFn = tuple,
    *,
    namespace: "str | None" = None,
) -> str:
    """The report as text. Pods that request anything but a share of one GPU are listed and not examined.

    ``nodes`` and ``held`` are the nodes and pods of ``cluster``; they determine the eligible nodes of pods that select nodes.
    ``scheduler`` is called only if a pending pod fits, or would after moves.
    """
    plans = _noted(list(_plans(cluster, nodes, held, waiting, namespace)), scheduler)
    free_mib = _free_mib(cluster)
    lines = [
        _HEAD,
        *(
            (plan.pod.metadata.namespace, plan.pod.metadata.name, _asks(plan.request), *_cells(plan))
            for plan in plans
        ),
    ]
    room = (
        f"{sum(free_mib) / 1024:.0f} GiB are free on {counted(len(free_mib), 'GPU')}; "
        f"the most on one GPU is {max(free_mib, default=0) / 1024:.0f} GiB."
    )
    if not plans:
        where = "" if namespace is None else f" in namespace {namespace}"
        return "\n".join([f"No pod that requests GPU memory is pending{where}.", "", room, ""])
    fit = Counter("kept" if plan.spot is not None and plan.note else plan.fits for plan in plans)
    summary = [
        room,
        f"Of the pending pods, {fit['once moved']} would fit after moves, {fit['kept']} {_are(fit['kept'])} blocked by "
        f"something other than capacity, {fit['not']} would not fit even after {MOST_MOVES} moves.",
    ]
    return "\n".join([*aligned(lines), "", *summary]) + "\n"


def fragments_document(
    cluster: ClusterUsage,
    nodes: Sequence[Node],
    held: Iterable[Pod],
    waiting: Iterable[Pod],
    scheduler: PendingPodsFn = tuple,
    *,
    namespace: "str | None" = None,
) -> "dict[str, Any]":
    """The report as a document for programs."""
    free_mib = _free_mib(cluster)
    return {
        "version": VERSION,
        "kind": "Fragmentation",
        "freeMiB": sum(free_mib),
        "freeGPUs": len(free_mib),
        "largestMiB": max(free_mib, default=0),
        "mostMoves": MOST_MOVES,
        "waiting": [
            _structured(plan)
            for plan in _noted(list(_plans(cluster, nodes, held, waiting, namespace)), scheduler)
        ],
    }


def _plans(
    cluster: ClusterUsage,
    nodes: Sequence[Node],
    held: Iterable[Pod],
    waiting: Iterable[Pod],
    namespace: "str | None",
) -> Iterator[Plan]:
    wishes = Wishes(labels_of_each(nodes))
    hosts = list(hosts_of(cluster, wanted_by_each(held, wishes)))
    for pod in sorted(waiting, key=lambda pod: pod.key):
        if namespace is not None and pod.metadata.namespace != namespace:
            continue
        try:
            request = request_of(pod)
        except ModelError as error:
            yield Plan(pod, None, "not looked at", note=error.problem)
            continue
        if request is not None and not request.by_gpu:
            yield _plan(hosts, wishes.of(wish_of(pod)), pod, request)


def _plan(hosts: Sequence[Host], wanted: "Container[str] | None", pod: Pod, request: Request) -> Plan:
    if not request.is_ordinary:
        return Plan(pod, request, "not looked at", note=NOT_A_SHARE)
    best = outlook(hosts, request, wanted)
    if best.spot is None:
        return Plan(pod, request, "not")
    return Plan(pod, request, "once moved" if best.moves else "now", best.spot, best.moves)


def _noted(plans: "list[Plan]", scheduler: PendingPodsFn) -> "list[Plan]":
    """``plans`` with notes on what else keeps pods pending that fit, or would after moves."""
    if all(plan.spot is None for plan in plans):
        return plans
    reasons = {pod["uid"]: str(pod["reason"]) for pod in scheduler() if pod["category"] in NOT_ROOM}
    return [plan if plan.spot is None else plan._replace(note=_note(plan, reasons)) for plan in plans]


def _note(plan: Plan, reasons: "dict[str, str]") -> str:
    reason = printable(reasons.get(plan.pod.metadata.uid, ""))
    return other_obstacle_note(reason, moves=bool(plan.moves)) if reason or not plan.moves else ""


def _free_mib(cluster: ClusterUsage) -> "list[int]":
    """Free MiB of each GPU that has free memory."""
    free = (
        gpu.free_units * node.unit.mib
        for node in cluster.nodes
        for gpu in node.gpus
        if not node.closed and not node.cordoned and gpu.device.in_service
    )
    return [mib for mib in free if mib > 0]


def _asks(request: "Request | None") -> str:
    if request is None:
        return "?"
    count = "" if request.is_ordinary else f"{request.gpu_count} × "
    compute = f", {request.core_percent}%" if request.wants_core else ""
    return f"{count}{request.memory_units}{compute}" + (" whole" if request.whole_device else "")


def _cells(plan: Plan) -> "tuple[str, str]":
    if plan.spot is None:
        return "-", plan.note or "-"
    if not plan.moves:
        return str(plan.spot), plan.note
    moves = ", ".join(f"{move.pod} ({move.units}) from {move.source} to {move.target}" for move in plan.moves)
    return str(plan.spot), f"{moves}; {plan.note}" if plan.note else moves


def _structured(plan: Plan) -> "dict[str, Any]":
    request = plan.request
    return {
        "namespace": plan.pod.metadata.namespace,
        "name": plan.pod.metadata.name,
        "asks": None
        if request is None
        else {
            "units": request.memory_units,
            "corePercent": request.core_percent,
            "gpus": request.gpu_count,
            "wholeDevice": request.whole_device,
        },
        "fits": plan.fits,
        "goesTo": _place(plan.spot),
        "moves": [
            {
                "pod": move.pod,
                "units": move.units,
                "mib": move.mib,
                "from": _place(move.source),
                "to": _place(move.target),
            }
            for move in plan.moves
        ],
        "note": plan.note,
    }


def _place(spot: "Spot | None") -> "dict[str, Any] | None":
    return None if spot is None else {"node": spot.node, "gpu": spot.gpu}


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
