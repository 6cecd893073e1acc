"""Fit of requests for several GPUs of a node, or for whole GPUs, over many nodes at once.

These are rare compared with requests for a share of one GPU. They have their own code path so that the latter stays fast.
"""

import numpy as np

from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Mask, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.placement.policies import with_wishes
from gpushare.ledger.placement.topology_sets import Nearness


def untouched(columns: Columns, at: Places) -> Mask:
    """GPUs of the columns ``at`` of which no pod and no other process uses anything."""
    free: Mask = (columns.pods.take(at, axis=-1) == 0) & (columns.taken_mib.take(at, axis=-1) == 0)
    return free


def suitable(columns: Columns, request: Request, at: Places) -> Mask:
    """GPUs of the columns ``at`` that are of a kind that the request takes: not MIG instances, unless it takes them."""
    present: Mask = columns.total_mib.take(at, axis=-1) > 0
    return present if request.takes_instances else present & (columns.instance.take(at, axis=-1) == 0)


def left_over(columns: Columns, request: Request, near: Nearness, at: Places | None = None) -> Ints:
    """As ``single_gpu.left_over``: MiB left over on the GPUs that a node would choose, on average.

    A GPU that is allocated whole has left over what it has beyond the request, so a GPU of just the requested size comes
    first. Where GPUs are counted, it is the number of free GPUs left, so that pods with one GPU gather on nodes in use.
    """
    if at is None:
        at = np.arange(columns.fit_units.shape[1], dtype=np.intp)
    count = request.gpu_count
    if count > columns.fit_units.shape[0]:
        return np.full(at.size, FAR)
    asked = request.memory_units
    mask = fits(columns, request, asked, at)
    if request.by_gpu:
        fitting: Ints = mask.sum(axis=0)
        return np.where(fitting < count, FAR, fitting - count)
    total_mib = columns.total_mib.take(at, axis=-1)
    free_mib = total_mib - columns.taken_mib.take(at, axis=-1)
    left_mib = free_mib - total_mib * asked // np.maximum(columns.units.take(at, axis=-1), 1)
    wish = wishes(columns, request, at, mask, left_mib)
    chosen = near.chosen(columns.near.take(at), mask, wish, count)
    left: Ints = np.take_along_axis(left_mib, chosen, axis=0).sum(axis=0) // count
    left[mask.sum(axis=0) < count] = FAR
    return left


def wishes(columns: Columns, request: Request, at: Places, mask: Mask, left_mib: Ints) -> Ints:
    """Rank the GPUs of the columns ``at`` by their placement policy, most preferred (least) first; ``FAR`` where not in ``mask``."""
    ranked = np.where(mask, left_mib, FAR)
    for of_policy, wish in with_wishes(columns.placements(request, at)):
        ranked = np.where(of_policy & mask, wish(left_mib, columns.pods.take(at, axis=-1)), ranked)
    return ranked


def fits(columns: Columns, request: Request, asked: int, at: Places) -> Mask:
    """GPUs of the columns ``at`` that take the request's share of ``asked`` units, alone or as one of several."""
    if request.by_gpu:
        closed = columns.no_whole.take(at) + columns.full.take(at) > 0
        free = (columns.room_units.take(at, axis=-1) >= asked) & untouched(columns, at)
        return _allowed(columns, request, free & suitable(columns, request, at) & ~closed, at)
    mask: Mask = (columns.fit_units.take(at, axis=-1) >= asked) & suitable(columns, request, at)
    others = columns.core_pods
    if request.wants_core:
        mask &= columns.free_core.take(at, axis=-1) >= request.core_percent
        others = columns.memory_pods
    mask &= others.take(at) == 0
    if request.gpu_count > 1:
        mask &= columns.one_gpu.take(at) == 0
    if request.whole_device:
        mask &= untouched(columns, at)
    return _allowed(columns, request, mask, at)


def _allowed(columns: Columns, request: Request, gpus: Mask, at: Places) -> Mask:
    return gpus if request.selection is None else gpus & columns.allowed(request.selection, at)
