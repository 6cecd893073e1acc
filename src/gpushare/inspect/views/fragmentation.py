"""``kubectl inspect cgpu --fragmentation``: who waits although there is room in all, and what would have to move."""

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
from gpushare.reasons.phrases import NOT_A_SHARE, kept_besides

VERSION: Final = 1

_HEAD = ("NAMESPACE", "NAME", "ASKS", "GOES TO", "ONCE THESE HAVE MOVED")


Fits = Literal["now", "once moved", "not", "not looked at"]
PendingPodsFn = Callable[[], Iterable[dict[str, Any]]]
"""Gives the pods that wait as the scheduler tells them (``scheduler.plugins.explain.decision_log.PendingPod``); none where it does not answer."""


class Way(NamedTuple):
    """A pod that waits: whether it ``fits`` on which GPU (``spot``), once which ``moves`` are made.

    ``note`` says why it was not looked at, or that something else than room keeps it.
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
    """The report, for people. Pods that ask for something else than a share of one GPU are named and not looked at.

    ``nodes`` and ``held`` are the nodes and pods of ``cluster``, by which it is told where pods that select some may go; ``scheduler``
    is asked only where there is room for one, or could be.
    """
    ways = _noted(list(_ways(cluster, nodes, held, waiting, namespace)), scheduler)
    free_mib = _free_mib(cluster)
    lines = [
        _HEAD,
        *(
            (one.pod.metadata.namespace, one.pod.metadata.name, _asks(one.request), *_told(one))
            for one in ways
        ),
    ]
    room = (
        f"{sum(free_mib) / 1024:.0f} GiB are free on {counted(len(free_mib), 'GPU')}, "
        f"{max(free_mib, default=0) / 1024:.0f} GiB of them together."
    )
    if not ways:
        where = "" if namespace is None else f" in namespace {namespace}"
        return "\n".join([f"No pod that asks for GPU memory waits{where}.", "", room, ""])
    fit = Counter("kept" if one.spot is not None and one.note else one.fits for one in ways)
    summary = [
        room,
        f"Of the pods that wait {fit['once moved']} would fit if others moved, something else than room "
        f"keeps {fit['kept']}, {fit['not']} {_fit(fit['not'])} in no way that moves {MOST_MOVES} pods at most.",
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
    """The same for programs."""
    free_mib = _free_mib(cluster)
    return {
        "version": VERSION,
        "kind": "Fragmentation",
        "freeMiB": sum(free_mib),
        "freeGPUs": len(free_mib),
        "largestMiB": max(free_mib, default=0),
        "mostMoves": MOST_MOVES,
        "waiting": [
            _structured(one)
            for one in _noted(list(_ways(cluster, nodes, held, waiting, namespace)), scheduler)
        ],
    }


def _ways(
    cluster: ClusterUsage,
    nodes: Sequence[Node],
    held: Iterable[Pod],
    waiting: Iterable[Pod],
    namespace: "str | None",
) -> Iterator[Way]:
    wishes = Wishes(labels_of_each(nodes))
    hosts = list(hosts_of(cluster, wanted_by_each(held, wishes)))
    for pod in sorted(waiting, key=lambda one: one.key):
        if namespace is not None and pod.metadata.namespace != namespace:
            continue
        try:
            request = request_of(pod)
        except ModelError as error:
            yield Way(pod, None, "not looked at", note=error.problem)
            continue
        if request is not None and not request.by_gpu:
            yield _way(hosts, wishes.of(wish_of(pod)), pod, request)


def _way(hosts: Sequence[Host], wanted: "Container[str] | None", pod: Pod, request: Request) -> Way:
    if not request.is_ordinary:
        return Way(pod, request, "not looked at", note=NOT_A_SHARE)
    found = outlook(hosts, request, wanted)
    if found.spot is None:
        return Way(pod, request, "not")
    return Way(pod, request, "once moved" if found.moves else "now", found.spot, found.moves)


def _noted(ways: "list[Way]", scheduler: PendingPodsFn) -> "list[Way]":
    """With what else keeps those for which there is room, or could be."""
    if all(one.spot is None for one in ways):
        return ways
    keeps = {one["uid"]: str(one["reason"]) for one in scheduler() if one["category"] in NOT_ROOM}
    return [one if one.spot is None else one._replace(note=_note(one, keeps)) for one in ways]


def _note(way: Way, keeps: "dict[str, str]") -> str:
    reason = printable(keeps.get(way.pod.metadata.uid, ""))
    return kept_besides(reason, moves=bool(way.moves)) if reason or not way.moves else ""


def _free_mib(cluster: ClusterUsage) -> "list[int]":
    """What is free on each GPU that has something free."""
    free = (
        (gpu.total_units - gpu.used_units) * node.unit.mib
        for node in cluster.nodes
        for gpu in node.gpus
        if not node.closed and gpu.device.in_service
    )
    return [one for one in free if one > 0]


def _asks(request: "Request | None") -> str:
    if request is None:
        return "?"
    count = "" if request.is_ordinary else f"{request.gpu_count} × "
    compute = f", {request.core_percent}%" if request.wants_core else ""
    return f"{count}{request.memory_units}{compute}" + (" whole" if request.whole_device else "")


def _told(way: Way) -> "tuple[str, str]":
    if way.spot is None:
        return "-", way.note or "-"
    if not way.moves:
        return str(way.spot), way.note
    moves = ", ".join(f"{move.pod} ({move.units}) from {move.source} to {move.target}" for move in way.moves)
    return str(way.spot), f"{moves}; {way.note}" if way.note else moves


def _structured(way: Way) -> "dict[str, Any]":
    request = way.request
    return {
        "namespace": way.pod.metadata.namespace,
        "name": way.pod.metadata.name,
        "asks": None
        if request is None
        else {
            "units": request.memory_units,
            "corePercent": request.core_percent,
            "gpus": request.gpu_count,
            "wholeDevice": request.whole_device,
        },
        "fits": way.fits,
        "goesTo": _place(way.spot),
        "moves": [
            {
                "pod": move.pod,
                "units": move.units,
                "mib": move.mib,
                "from": _place(move.source),
                "to": _place(move.target),
            }
            for move in way.moves
        ],
        "note": way.note,
    }


def _place(spot: "Spot | None") -> "dict[str, Any] | None":
    return None if spot is None else {"node": spot.node, "gpu": spot.gpu}


def _fit(count: int) -> str:
    return "fits" if count == 1 else "fit"
