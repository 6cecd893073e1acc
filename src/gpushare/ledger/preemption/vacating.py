"""What the planner of moves (``gpushare.planning.defragmentation``) has to know of nodes: who is where, what is free, and which nodes to look at.

Nodes are picked over the arrays; only those that are looked at are read pod by pod.
"""

from collections.abc import Callable, Container

import numpy as np

from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Mask, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.node_book import GpuBook, NodeBook
from gpushare.ledger.results import Held
from gpushare.planning.defragmentation import MOST_ELSEWHERE, MOST_HOSTS, NO_CAP, Gpu, Host, Occupant

MayMoveFn = Callable[[str], bool]
"""Whether the pod of that UID may be moved."""
WantedGpusFn = Callable[[str], Container[str] | None]
"""The nodes (names) that the pod of that UID may go to; ``None``: to any, as far as is known."""


def everywhere(uid: str) -> None:
    """Nothing is known of where pods may go."""


def host_of(
    book: NodeBook,
    held: Callable[[str], Held],
    may_move: MayMoveFn,
    wanted: WantedGpusFn = everywhere,
) -> Host | None:
    """The node with the pods on its GPUs, by UID; ``None`` where it takes nothing new."""
    devices = book.devices
    if devices is None or book.standing[0]:
        return None
    cap = devices.max_node_pods
    return Host(
        name=book.name,
        unit_mib=devices.unit.mib,
        gpus=tuple(
            _gpu_of(book, gpu, held, may_move, wanted, devices.max_pods)
            for gpu in book.present
            if gpu.device is not None and gpu.device.in_service
        ),
        gives_core=devices.mode.gives_core,
        memory_pods=book.of_kind(core=False),
        core_pods=book.of_kind(core=True),
        spare_pods=NO_CAP if cap is None else cap - book.of_kind(core=False) - book.of_kind(core=True),
    )


def _gpu_of(
    book: NodeBook,
    gpu: GpuBook,
    held: Callable[[str], Held],
    may_move: MayMoveFn,
    wanted: WantedGpusFn,
    cap: int | None,
) -> Gpu:
    device = gpu.device
    assert device is not None
    pods = []
    for uid in gpu.pods:
        gpus = held(uid).allocation.gpus
        share = next(one for one in map(book.counted, gpus) if one.uuid == device.uuid)
        # What was given in another unit is asked for in other units again: nobody knows how many.
        as_asked = len(gpus) == 1 and share.device_units == gpu.units
        moves = as_asked and may_move(uid)
        goes_to = wanted(uid) if moves else None
        pods.append(Occupant(uid, share.units, share.mib, share.core_percent, moves, goes_to))
    free_mib = device.total_mib - gpu.taken_mib
    # Below 0 where more is held than there is: the units that would have to come free first, at the least.
    free_units = ((free_mib + 1) * gpu.units - 1) // device.total_mib
    return Gpu(
        device_index=device.index,
        free_units=free_units,
        free_core=100 - gpu.used_core - gpu.kept_core,
        spare_pods=NO_CAP if cap is None else cap - len(gpu.pods) - gpu.kept_pods,
        pods=tuple(pods),
    )


def scattered(columns: Columns, request: Request, at: Places) -> Places:
    """Which of the columns ``at`` (places in it) have room for ``request`` in all, those that lack least on one GPU first."""
    free = np.maximum(columns.room_units[:, at], 0)
    of_kind: Mask = (columns.memory_pods if request.wants_core else columns.core_pods).take(at) == 0
    enough = (free.sum(axis=0) >= request.memory_units) & of_kind & (columns.no_memory.take(at) == 0)
    if request.unit_mib:
        enough &= columns.unit_mib.take(at) == request.unit_mib
    if request.wants_core:
        enough &= columns.no_core.take(at) == 0
    (places,) = enough.nonzero()
    most = free.max(axis=0)[places]
    found: Places = places[np.argsort(-most, kind="stable")[:MOST_HOSTS]]
    return found


def roomiest(columns: Columns, at: Places) -> Places:
    """Places in ``at`` of the nodes whose GPUs have the most free; as many as can be of use elsewhere."""
    most = columns.fit_units[:, at].max(axis=0)
    (places,) = (most > 0).nonzero()
    found: Places = places[np.argsort(-most[places], kind="stable")[:MOST_ELSEWHERE]]
    return found
