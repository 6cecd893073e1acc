"""Which of many nodes one request fits, and what would be left over on each."""

from typing import Final

import numpy as np

from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Mask, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.placement.policies import with_wishes

#: Stands for what is left over on a node that does not take the request.
FAR: Final = 1 << 56


def left_over(columns: Columns, request: Request, at: Places | None = None) -> Ints:
    """For each of the columns ``at`` (``None``: all) the MiB left over on the GPU that its node would choose.

    ``FAR`` if none of its GPUs takes the request.
    """
    gpus = _fits(columns, request, at)
    free_mib, asked_mib = _free_and_asked_mib(columns, request, at)
    left_mib = free_mib - asked_mib
    left_mib[~gpus] = FAR
    left: Ints = left_mib.min(axis=0)
    for of_policy, wish in with_wishes(columns.placements(request, at)):
        # argmin takes the lower index of equals, as placement.choose does. (The ranks of GPUs that do not fit are meaningless.)
        rows = np.where(gpus, wish(left_mib, _pick(columns.pods, at)), FAR).argmin(axis=0)
        left = np.where(of_policy, left_mib[rows, np.arange(left.size)], left)
    return left


def most_pods(columns: Columns, request: Request, at: Places) -> int:
    """How many more pods with ``request`` the columns ``at`` take together, or more: only the pod caps of nodes are not considered."""
    gpus = _fits(columns, request, at)
    if request.unit_mib:
        gpus &= columns.unit_mib.take(at) == request.unit_mib
    free_mib, asked_mib = _free_and_asked_mib(columns, request, at)
    pods = free_mib // np.maximum(asked_mib, 1)
    if request.wants_core:
        pods = np.minimum(pods, columns.free_core.take(at, axis=1) // request.core_percent)
    caps = columns.max_pods.take(at)
    pods = np.where(caps, np.minimum(pods, caps - columns.pods.take(at, axis=1)), pods)
    return int(pods[gpus].sum())


def _fits(columns: Columns, request: Request, at: Places | None) -> Mask:
    """The GPUs of the columns ``at`` that take ``request``, whatever its unit."""
    gpus: Mask = _pick(columns.fit_units, at) >= request.memory_units
    if request.selection is not None:
        gpus &= columns.allowed(request.selection, at)
    others = columns.core_pods
    if request.wants_core:
        gpus &= _pick(columns.free_core, at) >= request.core_percent
        others = columns.memory_pods
    gpus &= _pick(others, at) == 0
    return gpus


def _free_and_asked_mib(columns: Columns, request: Request, at: Places | None) -> tuple[Ints, Ints]:
    """The free MiB of each GPU of the columns ``at``, and the MiB that ``request`` would get there."""
    total_mib = _pick(columns.total_mib, at)
    units = np.maximum(_pick(columns.units, at), 1)
    return total_mib - _pick(columns.taken_mib, at), total_mib * request.memory_units // units


def _pick(figures: Ints, at: Places | None) -> Ints:
    return figures if at is None else figures.take(at, axis=-1)
