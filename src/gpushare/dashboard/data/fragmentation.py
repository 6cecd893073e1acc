"""Fragmentation: sizes of free pieces of memory, and the moves of pods that would admit pending pods."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from gpushare.api.request.request import Request
from gpushare.dashboard.data.cluster import Cluster
from gpushare.dashboard.data.details import asks_of
from gpushare.dashboard.data.heatmap import State
from gpushare.kubescheduler.required_nodes import WantedNodes, Wishes
from gpushare.ledger.preemption.vacating import WantedGpus
from gpushare.planning.defragmentation import Host, Outlook, cheaper_way, room_now, roomiest
from gpushare.reasons.phrases import NOT_A_SHARE, other_obstacle_note
from gpushare.scheduler.cache.pod_records import PodRecord

#: Pending pods that are examined; each may take some ten milliseconds, with yields in between.
MAX_EXAMINED: Final = 20
_NODES_PER_TURN: Final = 16
#: Nodes whose labels are matched before yielding to the event loop: some milliseconds.
_LABELS_PER_TURN: Final = 512
_GIB: Final = 1024


class Piece(msgspec.Struct, frozen=True):
    """Free memory by size: ``gpus`` GPUs have at least ``mib`` free, and fit ``pods`` pods of that size together."""

    mib: int
    gpus: int
    pods: int


class Way(msgspec.Struct, frozen=True):
    """How a pending pod can be admitted: on ``goes_to``, after ``moves`` (``POD from … to …``), or now if there are none.

    ``note`` says why it was not examined, or what other than lack of capacity keeps it pending.
    """

    pod: str
    asks: str
    goes_to: str
    moves: tuple[str, ...]
    note: str


class Report(msgspec.Struct, frozen=True):
    """The report, in MiB. ``fragments_mib``: free memory that the mix of arriving requests cannot use."""

    free_mib: int
    free_gpus: int
    largest_mib: int
    fragments_mib: int
    pieces: tuple[Piece, ...]
    ways: tuple[Way, ...]
    not_looked_at: int


def free_mib(cluster: Cluster) -> int:
    """Free MiB on GPUs in service."""
    return int(_free(cluster).sum())


async def report(cluster: Cluster, reasons: Mapping[str, str]) -> Report:
    """The report; yields to the event loop. ``reasons``: why pods (``namespace/name``) are pending for other reasons than capacity."""
    free = _free(cluster)
    largest = int(free.max(initial=0))
    pieces = []
    size = _GIB
    while size <= max(largest, _GIB):
        pieces.append(Piece(size, int((free >= size).sum()), int((free // size).sum())))
        size *= 2
    waiting = sorted(
        (record for record in cluster.waiting() if record.request is not None and not record.request.by_gpu),
        key=lambda record: (record.created, record.pod),
    )
    wishes = Wishes(cluster.labels)
    ways = [
        await _way(cluster, wishes, record, reasons.get(record.pod, "")) for record in waiting[:MAX_EXAMINED]
    ]
    return Report(
        free_mib=int(free.sum()),
        free_gpus=int((free > 0).sum()),
        largest_mib=largest,
        fragments_mib=cluster.ledger.fragments_mib(),
        pieces=tuple(pieces),
        ways=tuple(ways),
        not_looked_at=max(len(waiting) - MAX_EXAMINED, 0),
    )


def _free(cluster: Cluster) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    board = cluster.board
    free = (
        board.plane("total_mib").astype(np.int64) - board.plane("allocated_mib") - board.plane("foreign_mib")
    )
    return np.where(board.plane("state") == State.IN_SERVICE, np.maximum(free, 0), 0)


async def _way(cluster: Cluster, wishes: Wishes, record: PodRecord, reason: str) -> Way:
    request = record.request
    assert request is not None
    request_text = asks_of(cluster, record)
    if not request.is_ordinary:
        return Way(record.pod, request_text, "", (), NOT_A_SHARE)
    outlook = await _outlook(cluster, wishes, record, request)
    if outlook.spot is None:
        return Way(record.pod, request_text, "", (), "no move of one or two pods would admit it")
    moves = tuple(
        f"{_name(cluster, move.pod)} ({round(move.mib / 1024, 1):g} GiB) from {move.source} to {move.target}"
        for move in outlook.moves
    )
    note = other_obstacle_note(reason, moves=bool(moves)) if reason or not moves else ""
    return Way(record.pod, request_text, str(outlook.spot), moves, note)


async def _outlook(cluster: Cluster, wishes: Wishes, record: PodRecord, request: Request) -> Outlook:
    ledger, bound, cordoned = cluster.ledger, cluster.view.bound, cluster.view.cordoned

    def host_of(name: str) -> Host | None:
        return None if name in cordoned else ledger.evictions.host(name, movable, goes_to)

    def movable(uid: str) -> bool:
        return cluster.claims.of_uid(uid) is None

    def goes_to(uid: str) -> WantedGpus:
        return WantedGpus(wishes.of(bound[uid].wish), bound[uid].selection) if uid in bound else WantedGpus()

    names = await _eligible(sorted(cluster.nodes.difference(cordoned)), wishes.of(record.wish))
    if fits := ledger.filter(request, names).fits:
        host = host_of(fits[0])
        spot = None if host is None else room_now(host, request)
        if spot is not None:
            return Outlook(spot)
    roomy: list[Host] = [host for name in ledger.evictions.roomiest() if (host := host_of(name)) is not None]
    elsewhere = roomiest(roomy)
    best = Outlook(None)
    for turn, name in enumerate(ledger.evictions.scattered(request, names)):
        host = host_of(name)
        if host is not None:
            best = cheaper_way(host, elsewhere, request, best)
        if turn % _NODES_PER_TURN == 0:
            await asyncio.sleep(0)
    return best


async def _eligible(names: list[str], wanted: WantedNodes | None) -> list[str]:
    """The nodes in ``names`` that the pod's node selection allows."""
    if wanted is None:
        return names
    eligible: list[str] = []
    for start in range(0, len(names), _LABELS_PER_TURN):
        eligible += [name for name in names[start : start + _LABELS_PER_TURN] if name in wanted]
        await asyncio.sleep(0)
    return eligible


def _name(cluster: Cluster, uid: str) -> str:
    held = cluster.held(uid)
    return uid if held is None else held.pod
