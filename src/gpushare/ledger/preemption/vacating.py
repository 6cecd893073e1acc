"""What the planner of moves (``gpushare.planning.defragmentation``) needs of nodes: their pods, what is free, and which to examine.

Nodes are selected over the arrays; only selected nodes are read pod by pod.
"""

from collections.abc import Callable, Container
from typing import Final, NamedTuple

import numpy as np

from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Mask, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.node_book import GpuBook, NodeBook
from gpushare.ledger.results import Held
from gpushare.planning.defragmentation import MOST_ELSEWHERE, MOST_HOSTS, NO_CAP, Gpu, Host, Occupant

MayMoveFn = Callable[[str], bool]
"""Whether the pod with that UID may be moved."""


class WantedGpus(NamedTuple):
    """To which nodes (names) a pod may go, and which GPUs it may have; ``None``: any, as far as is known."""

    nodes: Container[str] | None = None
    selection: GpuSelection | None = None


WantedGpusFn = Callable[[str], WantedGpus]
"""Where the pod with that UID may go."""
_ANY_GPU: Final = WantedGpus()


def everywhere(uid: str) -> WantedGpus:
    """Nothing is known of what pods may have."""
    return _ANY_GPU


def host_of(
    book: NodeBook,
    held: Callable[[str], Held],
    may_move: MayMoveFn,
    wanted: WantedGpusFn = everywhere,
) -> Host | None:
    """The node with the pods on its GPUs, by UID; ``None`` if it takes nothing new."""
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
        share = next(share for share in map(book.counted, gpus) if share.uuid == device.uuid)
        # A share that was allocated in another unit would be requested in other units, of which the number is unknown.
        as_requested = len(gpus) == 1 and share.device_units == gpu.units
        moves = as_requested and may_move(uid)
        targets = wanted(uid) if moves else _ANY_GPU
        pods.append(Occupant(uid, share.units, share.mib, share.core_percent, moves, *targets))
    free_mib = device.total_mib - gpu.taken_mib
    # Negative if more is held than the GPU has: at least so many units have to become free first.
    free_units = ((free_mib + 1) * gpu.units - 1) // device.total_mib
    return Gpu(
        device_index=device.index,
        free_units=free_units,
        free_core=100 - gpu.used_core - gpu.nominated_core,
        spare_pods=NO_CAP if cap is None else cap - len(gpu.pods) - gpu.nominated_pods,
        pods=tuple(pods),
        device=device,
    )


def scattered(columns: Columns, request: Request, at: Places) -> Places:
    """Positions in ``at`` of columns that have room for ``request`` in total, the one that lacks least on one GPU first."""
    free = np.maximum(columns.room_units[:, at], 0)
    if request.selection is not None:
        free *= columns.allowed(request.selection, at)
    of_kind: Mask = (columns.memory_pods if request.wants_core else columns.core_pods).take(at) == 0
    enough = (free.sum(axis=0) >= request.memory_units) & of_kind & (columns.no_memory.take(at) == 0)
    if request.unit_mib:
        enough &= columns.unit_mib.take(at) == request.unit_mib
    if request.wants_core:
        enough &= columns.no_core.take(at) == 0
    (places,) = enough.nonzero()
    most = free.max(axis=0)[places]
    selected: Places = places[np.argsort(-most, kind="stable")[:MOST_HOSTS]]
    return selected


def roomiest(columns: Columns, at: Places) -> Places:
    """Positions in ``at`` of the nodes with the most free on one GPU, as many as moves can use."""
    most = columns.fit_units[:, at].max(axis=0)
    (places,) = (most > 0).nonzero()
    selected: Places = places[np.argsort(-most[places], kind="stable")[:MOST_ELSEWHERE]]
    return selected
