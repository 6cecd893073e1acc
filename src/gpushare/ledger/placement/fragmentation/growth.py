"""By how much a request makes the free memory of nodes less usable, on the GPUs that each node would choose.

Computed for all columns at first, then cached and computed again only for columns that changed, until the mix of requests is
renewed. The cache holds ``score_cache.MOST_KEPT`` requests: two numbers per column, 20 MB with 5,000 nodes.
"""

from typing import Final, NamedTuple

import numpy as np

from gpushare.api.node.device import Placement
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Ints, Mask, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit import multi_gpu
from gpushare.ledger.fit.single_gpu import FAR, MOST_UNITS
from gpushare.ledger.node_book import SHUT, UNKNOWN_CPU_MILLI
from gpushare.ledger.placement.fragmentation.measure import State, Weighed
from gpushare.ledger.placement.fragmentation.served import OPEN_TO_CORE, OPEN_TO_MEMORY
from gpushare.ledger.placement.fragmentation.workload_mix import Kind, Mix
from gpushare.ledger.placement.policies import number_of
from gpushare.ledger.placement.score_cache import MOST_KEPT, PICKED_OF
from gpushare.ledger.placement.topology_sets import Nearness

_FRAGMENTATION: Final = number_of(Placement.FRAGMENTATION)
#: Columns that are computed together: intermediate results stay in the processor's cache.
_BLOCK: Final = 2048


class _Cached:
    """As of the change number ``seen``: ``grown`` and ``left`` in MiB for each column, ``FAR`` if the request does not fit."""

    __slots__ = ("grown", "left", "seen")

    def __init__(self, grown: Ints, left: Ints, seen: int) -> None:
        self.grown = grown
        self.left = left
        self.seen = seen


class _Placed(NamedTuple):
    """A request put on GPUs, on each one separately: (GPUs, nodes). Values are meaningless except for ``gpus``."""

    gpus: Mask
    before: State
    after: State
    left_mib: Ints


_Key = tuple[Kind, GpuSelection | None, Placement | None]
"""Requests with the same key fragment GPUs equally."""


class _ByGpu(NamedTuple):
    """As of the change number ``seen``: how much fragments grow if a request with ``key`` is put on each GPU of the columns ``at``."""

    key: _Key
    seen: int
    at: Places
    grown: Ints


class Growth:
    """How requests fragment the current free memory, by the mix of arrivals."""

    def __init__(self, columns: Columns, near: Nearness) -> None:
        self._columns = columns
        self._near = near
        self._mix = Mix()
        self._weights = self._mix.weights
        self._weighed = Weighed(self._weights)
        self._cache: dict[_Key, _Cached] = {}
        # The last result: when identical pods follow each other, many get GPUs of the node that the last one changed.
        self._last: _ByGpu | None = None

    def arrived(self, request: Request) -> None:
        """Count a request in the mix."""
        self._mix.arrived(_kind(request))

    def of(self, request: Request) -> _Cached:
        """The current values for each column; the caller must not modify them."""
        columns = self._columns
        self._renew()
        key = _key(request)
        cached = self._cache.pop(key, None)
        changed = None if cached is None else columns.changed_since(cached.seen)
        if cached is None or changed is None or len(changed) * PICKED_OF > cached.left.size:
            at = np.arange(columns.fit_units.shape[1], dtype=np.intp)
            cached = _Cached(*self._compute(request, at), columns.changes)
        elif changed:
            at = np.fromiter(changed, np.intp, len(changed))
            cached.grown[at], cached.left[at] = self._compute(request, at)
            cached.seen = columns.changes
        self._cache[key] = cached  # at the end: the dictionary is in order of use
        if len(self._cache) > MOST_KEPT:
            del self._cache[next(iter(self._cache))]
        return cached

    def by_gpu(self, request: Request, column: int) -> list[int]:
        """For each GPU of one node, by how much fragments grow if the request, or one of its shares, is put on it."""
        self._renew()
        last = self._last
        if last is not None and (last.key, last.seen) == (_key(request), self._columns.changes):
            positions = np.flatnonzero(last.at == column)
            if positions.size:
                known: list[int] = last.grown[:, positions[0]].tolist()
                return known
        at = np.array([column], np.intp)
        placed = self._place(request, at, self._fits(request, at))
        grown: list[int] = self._one_by_one(placed)[:, 0].tolist()
        return grown

    def fragments_mib(self) -> int:
        """MiB of free memory that the mix could not use on average, over all columns; 0 before the first arrival."""
        self._renew()
        # Kinds only: the average pod serves to rank nodes, and could use any piece.
        weighed = Weighed(self._weights, loads=())
        if not weighed.weight:
            return 0
        columns, width = self._columns, self._columns.width
        usable = (columns.room_units[:, :width] != SHUT) & (columns.no_memory[:width] == 0)
        free_mib = np.maximum(columns.total_mib[:, :width] - columns.taken_mib[:, :width], 0) * usable
        open_to = np.where(columns.no_memory[:width] + columns.core_pods[:width] == 0, OPEN_TO_MEMORY, 0)
        open_to |= np.where(columns.no_core[:width] + columns.memory_pods[:width] == 0, OPEN_TO_CORE, 0)
        lines = columns.free_cpu_milli[:width], open_to, columns.unit_mib[:width]
        untouched = (columns.pods[:, :width] == 0) & (columns.taken_mib[:, :width] == 0)
        state = State(free_mib, columns.fit_units[:, :width], columns.free_core[:, :width], untouched, *lines)
        return int(weighed.fragments(state).sum()) // weighed.weight

    def _renew(self) -> None:
        if self._mix.weights is not self._weights:
            self._weights = self._mix.weights
            self._weighed = Weighed(self._weights)
            self._cache.clear()
            self._last = None

    def _one_by_one(self, placed: _Placed) -> Ints:
        return self._weighed.grown_by_one(placed.before, placed.after, placed.gpus)

    def _fits(self, request: Request, at: Places) -> Mask:
        return multi_gpu.fits(self._columns, request, min(request.memory_units, MOST_UNITS), at)

    def _compute(self, request: Request, at: Places) -> tuple[Ints, Ints]:
        """``grown`` and ``left`` for the columns ``at``."""
        grown, left = np.full(at.size, FAR), np.full(at.size, FAR)
        gpus = self._fits(request, at)
        fits = np.flatnonzero(gpus.sum(axis=0) >= request.gpu_count)
        for start in range(0, fits.size, _BLOCK):
            block = fits[start : start + _BLOCK]
            placed = self._place(request, at[block], gpus.take(block, axis=1))
            grown[block], left[block] = self._on_fitting(request, at[block], placed)
        return grown, left

    def _on_fitting(self, request: Request, at: Places, placed: _Placed) -> tuple[Ints, Ints]:
        grown = self._one_by_one(placed)
        self._last = _ByGpu(_key(request), self._columns.changes, at, grown)
        own = self._columns.placements(request, at) == _FRAGMENTATION
        wish = (
            None if own.all() else multi_gpu.wishes(self._columns, request, at, placed.gpus, placed.left_mib)
        )
        if request.gpu_count == 1:
            order = np.where(grown == grown.min(axis=0), placed.left_mib, FAR)
            if wish is not None:
                order = np.where(own, order, wish)
            rows, nodes = order.argmin(axis=0), np.arange(at.size)
            return grown[rows, nodes], placed.left_mib[rows, nodes]
        # By fragments, then by what is left.
        order = _ranked(grown, placed.left_mib)
        if wish is not None:
            order = np.where(own, order, wish)
        near = self._columns.near.take(at)
        chosen = np.zeros(grown.shape, np.bool_)
        rows = self._near.chosen(near, placed.gpus, order, request.gpu_count)
        np.put_along_axis(chosen, rows, True, axis=0)
        before, after = placed.before, placed.after
        chosen_after = after._replace(
            free_mib=np.where(chosen, after.free_mib, before.free_mib),
            fit_units=np.where(chosen, after.fit_units, before.fit_units),
            free_core=np.where(chosen, after.free_core, before.free_core),
            untouched=before.untouched & ~chosen,
        )
        together = self._weighed.fragments(chosen_after) - self._weighed.fragments(before)
        return together, np.where(chosen, placed.left_mib, 0).sum(axis=0) // request.gpu_count

    def _place(self, request: Request, at: Places, gpus: Mask) -> _Placed:
        columns = self._columns

        def pick(figures: Ints) -> Ints:
            return figures.take(at, axis=-1)

        asked = min(request.memory_units, MOST_UNITS)
        total_mib, pods = pick(columns.total_mib), pick(columns.pods)
        units = np.maximum(pick(columns.units), 1).astype(np.int64)
        taken_mib = pick(columns.taken_mib)
        free_mib = total_mib - taken_mib
        untouched = (pods == 0) & (taken_mib == 0)
        left_mib = free_after = free_mib - total_mib * asked // units
        if request.whole_device:
            free_after = free_mib - total_mib  # all of the GPU's units are all of its memory
        fit_after = ((free_after + 1) * units - 1) // np.maximum(total_mib, 1)
        cap = pick(columns.max_pods)
        if cap.any():
            fit_after[(cap > 0) & (pods + 1 >= cap)] = SHUT
        free_core, cpu_milli = pick(columns.free_core), pick(columns.free_cpu_milli)
        cpu_after = np.where(
            cpu_milli == UNKNOWN_CPU_MILLI, cpu_milli, np.maximum(cpu_milli - _kind(request).cpu_milli, 0)
        )
        open_to = np.where(pick(columns.no_memory) + pick(columns.core_pods) == 0, OPEN_TO_MEMORY, 0)
        open_to |= np.where(pick(columns.no_core) + pick(columns.memory_pods) == 0, OPEN_TO_CORE, 0)
        unit_mib = pick(columns.unit_mib)
        return _Placed(
            gpus,
            State(
                np.maximum(free_mib, 0),
                pick(columns.fit_units),
                free_core,
                untouched,
                cpu_milli,
                open_to,
                unit_mib,
            ),
            State(
                free_after,
                fit_after,
                free_core - request.core_percent if request.core_percent else free_core,
                np.zeros_like(untouched),
                cpu_after,
                open_to & (OPEN_TO_CORE if request.wants_core else OPEN_TO_MEMORY),
                unit_mib,
            ),
            np.where(gpus, left_mib, FAR),
        )


def _ranked(grown: Ints, left_mib: Ints) -> Ints:
    """The rank of each GPU among those of its node, by ``grown``, then ``left_mib``; equal ones have the same rank."""
    order = np.lexsort((left_mib, grown), axis=0)
    grown, left_mib = (np.take_along_axis(plane, order, axis=0) for plane in (grown, left_mib))
    steps = (grown[1:] != grown[:-1]) | (left_mib[1:] != left_mib[:-1])
    places = np.zeros(order.shape, np.int64)
    np.put_along_axis(places, order[1:], steps.cumsum(axis=0), axis=0)
    return places


def _key(request: Request) -> _Key:
    return _kind(request), request.selection, request.gpu_placement


def _kind(request: Request) -> Kind:
    return Kind(
        request.gpu_count,
        min(request.memory_units, MOST_UNITS),
        request.core_percent,
        min(request.cpu_milli, UNKNOWN_CPU_MILLI),
        request.whole_device,
    )
