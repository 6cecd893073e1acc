"""What is free and yet of no use: how large the pieces are, and which pods would have to move for those that wait."""

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
from gpushare.planning.defragmentation import Host, Outlook, cheaper_way, room_now, roomiest
from gpushare.reasons.phrases import NOT_A_SHARE, kept_besides
from gpushare.scheduler.cache.pod_records import PodRecord

#: Requests that wait and are looked at; each may take some ten milliseconds, in turns.
MOST_LOOKED_AT: Final = 20
_TURN: Final = 16
#: Nodes whose labels are looked at before others get their turn: some milliseconds.
_LABELS_TURN: Final = 512
_GIB: Final = 1024


class Piece(msgspec.Struct, frozen=True):
    """Of free memory: ``gpus`` have at least ``mib`` free in one piece, and take ``pods`` pods of that size together."""

    mib: int
    gpus: int
    pods: int


class Way(msgspec.Struct, frozen=True):
    """What would let a pod in: ``goes_to`` once ``moves`` are made (``POD from … to …``), now if there are none.

    ``note`` says why it was not looked at, or that something else than room keeps it, with what as far as is known.
    """

    pod: str
    asks: str
    goes_to: str
    moves: tuple[str, ...]
    note: str


class Report(msgspec.Struct, frozen=True):
    """The whole. MiB; ``fragments_mib`` is what the mix of arrivals could not use."""

    free_mib: int
    free_gpus: int
    largest_mib: int
    fragments_mib: int
    pieces: tuple[Piece, ...]
    ways: tuple[Way, ...]
    not_looked_at: int


def free_mib(cluster: Cluster) -> int:
    """MiB that could be given away."""
    return int(_free(cluster).sum())


async def report(cluster: Cluster, kept: Mapping[str, str]) -> Report:
    """The report; others get their turn while it is made. ``kept``: what else than room keeps pods (``namespace/name``)."""
    free = _free(cluster)
    largest = int(free.max(initial=0))
    pieces = []
    size = _GIB
    while size <= max(largest, _GIB):
        pieces.append(Piece(size, int((free >= size).sum()), int((free // size).sum())))
        size *= 2
    waiting = sorted(
        (one for one in cluster.waiting() if one.request is not None and not one.request.by_gpu),
        key=lambda one: (one.created, one.pod),
    )
    wishes = Wishes(cluster.labels)
    ways = [await _way(cluster, wishes, one, kept.get(one.pod, "")) for one in waiting[:MOST_LOOKED_AT]]
    return Report(
        free_mib=int(free.sum()),
        free_gpus=int((free > 0).sum()),
        largest_mib=largest,
        fragments_mib=cluster.ledger.fragments_mib(),
        pieces=tuple(pieces),
        ways=tuple(ways),
        not_looked_at=max(len(waiting) - MOST_LOOKED_AT, 0),
    )


def _free(cluster: Cluster) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    board = cluster.board
    free = (
        board.plane("total_mib").astype(np.int64) - board.plane("allocated_mib") - board.plane("foreign_mib")
    )
    return np.where(board.plane("state") == State.IN_SERVICE, np.maximum(free, 0), 0)


async def _way(cluster: Cluster, wishes: Wishes, record: PodRecord, kept: str) -> Way:
    request = record.request
    assert request is not None
    asks = asks_of(cluster, record)
    if not request.is_ordinary:
        return Way(record.pod, asks, "", (), NOT_A_SHARE)
    found = await _outlook(cluster, wishes, record, request)
    if found.spot is None:
        return Way(record.pod, asks, "", (), "no move of one or two pods would let it in")
    moves = tuple(
        f"{_name(cluster, move.pod)} ({round(move.mib / 1024, 1):g} GiB) from {move.source} to {move.target}"
        for move in found.moves
    )
    note = kept_besides(kept, moves=bool(moves)) if kept or not moves else ""
    return Way(record.pod, asks, str(found.spot), moves, note)


async def _outlook(cluster: Cluster, wishes: Wishes, record: PodRecord, request: Request) -> Outlook:
    ledger, bound = cluster.ledger, cluster.view.bound

    def host_of(name: str) -> Host | None:
        return ledger.evictions.host(name, _anybody, goes_to)

    def goes_to(uid: str) -> WantedNodes | None:
        return wishes.of(bound[uid].wish) if uid in bound else None

    names = await _wanted(sorted(cluster.nodes), wishes.of(record.wish))
    if fits := ledger.filter(request, names).fits:
        host = host_of(fits[0])
        now = None if host is None else room_now(host, request)
        if now is not None:
            return Outlook(now)
    roomy: list[Host] = [host for name in ledger.evictions.roomiest() if (host := host_of(name)) is not None]
    elsewhere = roomiest(roomy)
    best = Outlook(None)
    for turn, name in enumerate(ledger.evictions.scattered(request, names)):
        host = host_of(name)
        if host is not None:
            best = cheaper_way(host, elsewhere, request, best)
        if turn % _TURN == 0:
            await asyncio.sleep(0)
    return best


async def _wanted(names: list[str], wanted: WantedNodes | None) -> list[str]:
    """Those of the nodes that the pod wants."""
    if wanted is None:
        return names
    found: list[str] = []
    for at in range(0, len(names), _LABELS_TURN):
        found += [name for name in names[at : at + _LABELS_TURN] if name in wanted]
        await asyncio.sleep(0)
    return found


def _anybody(uid: str) -> bool:
    return True


def _name(cluster: Cluster, uid: str) -> str:
    held = cluster.held(uid)
    return uid if held is None else held.pod
