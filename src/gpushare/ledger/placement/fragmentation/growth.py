"""What a request takes from the memory that later requests could use, on the GPUs that each node would choose.

Computed for all columns at first, then cached and computed again only for columns that changed, until the mix of requests is
renewed. The work of one call is bounded: the nodes with the tightest GPUs come first, and the next calls continue. The cache holds ``score_cache.MOST_KEPT`` requests: two numbers per column, 20 MB with 5,000 nodes.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from gpushare.api.node.device import Placement
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import MOST_UNITS, Request
from gpushare.ledger.arrays import Ints, Mask, Places
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit import multi_gpu
from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.node_book import SHUT, UNKNOWN_CPU_MILLI
from gpushare.ledger.placement.fragmentation.lookahead import Lookahead
from gpushare.ledger.placement.fragmentation.outlook import SEQUENCES, Outlook
from gpushare.ledger.placement.fragmentation.state import (
    OPEN_TO_CORE,
    OPEN_TO_MEMORY,
    State,
    unusable_mib,
)
from gpushare.ledger.placement.fragmentation.workload_mix import Kind, Mix
from gpushare.ledger.placement.policies import number_of
from gpushare.ledger.placement.score_cache import MOST_KEPT, PICKED_OF
from gpushare.ledger.placement.topology_sets import Nearness

#: In place of a value that is not computed yet: above all values, and the request fits.
UNKNOWN: Final = FAR - 1
#: Added on nodes that would be closed to pods with compute: above all values that are computed.
CLOSES: Final = 1 << 50
#: Added for what is idle on a node, in thousandths of it: whole nodes stay free longer for pods with many GPUs.
IDLE_PRICE_MILLE: Final = 3
_FRAGMENTATION: Final = number_of(Placement.FRAGMENTATION)
#: Columns that are computed together: intermediate results stay in the processor's cache.
_BLOCK: Final = 2048
#: The first columns that are computed together, then twice as many: if few values are known, the steps last for few columns.
_FIRST_BLOCK: Final = 256
#: Columns with values that are not computed yet, of which a later call looks at so many; and the part of the steps that it may take.
_MOST_CONTINUED: Final = 16
_CONTINUED_PART: Final = 16


@dataclass(slots=True, eq=False)
class _Cached:
    """As of the change number ``seen``: ``grown`` and ``left`` in MiB for each column, ``FAR`` if the request does not fit.

    ``left`` is what is left over on the GPU; for several GPUs what is free on the node.
    ``grown`` is ``UNKNOWN`` for the columns ``pending``, and ``CLOSES`` is added where the node would be closed to expected pods.
    """

    grown: Ints
    left: Ints
    pending: Places
    seen: int


class _Placed(NamedTuple):
    """A request put on GPUs, on each one separately: (GPUs, nodes). Values are meaningless except for ``gpus``."""

    gpus: Mask
    before: State
    after: State
    left_mib: Ints


_Key = tuple[Kind, GpuSelection | None, Placement | None]
"""Requests with the same key take the same from nodes."""


class _ByGpu(NamedTuple):
    """As of the change number ``seen``: what a request with ``key`` takes on each GPU of the columns ``at``."""

    key: _Key
    seen: int
    at: Places
    grown: Ints


class Growth:
    """What requests take from the current free memory, by the mix of arrivals."""

    def __init__(self, columns: Columns, near: Nearness) -> None:
        self._columns = columns
        self._near = near
        self._mix = Mix()
        self._weights: dict[Kind, int] | None = None
        self._outlook: Outlook
        self._lookahead: Lookahead
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
            at = self._tightest_first(request)
            grown, left = np.empty(at.size, np.int64), np.empty(at.size, np.int64)
            grown[at], left[at], pending = self._compute(request, at, self._lookahead.steps)
            cached = _Cached(grown, left, pending, columns.changes)
        elif changed or cached.pending.size:
            waiting, later = cached.pending[:_MOST_CONTINUED], cached.pending[_MOST_CONTINUED:]
            at = np.array([*changed, *(one for one in waiting.tolist() if one not in changed)], np.intp)
            steps = self._lookahead.steps // _CONTINUED_PART
            cached.grown[at], cached.left[at], pending = self._compute(request, at, steps)
            cached.pending = np.concatenate((pending, later)) if pending.size else later
            cached.seen = columns.changes
        self._cache[key] = cached  # at the end: the dictionary is in order of use
        if len(self._cache) > MOST_KEPT:
            del self._cache[next(iter(self._cache))]
        return cached

    def by_gpu(self, request: Request, column: int) -> list[int]:
        """For each GPU of one node, what the request takes if it is put on it; 0 if it takes several, ``FAR`` if it does not fit."""
        if request.gpu_count > 1:
            return [0] * len(self._columns.fit_units)
        self._renew()
        last = self._last
        if last is not None and (last.key, last.seen) == (_key(request), self._columns.changes):
            positions = np.flatnonzero(last.at == column)
            if positions.size and not (last.grown[:, positions[0]] == UNKNOWN).any():
                known: list[int] = last.grown[:, positions[0]].tolist()
                return known
        at = np.array([column], np.intp)
        placed = self._place(request, at, self._fits(request, at))
        grown: list[int] = self._one_by_one(placed, at, self._lookahead.steps)[0][:, 0].tolist()
        return grown

    def fragments_mib(self) -> int:
        """MiB of free memory that the mix could not use on average, over all columns; 0 before the first arrival."""
        columns, width = self._columns, self._columns.width
        usable = (columns.room_units[:, :width] != SHUT) & (columns.no_memory[:width] == 0)
        free_mib = np.maximum(columns.total_mib[:, :width] - columns.taken_mib[:, :width], 0) * usable
        return unusable_mib(self._state(np.arange(width, dtype=np.intp)), free_mib, self._mix.weights)

    def _renew(self) -> None:
        if self._mix.weights is not self._weights:
            self._weights = self._mix.weights
            self._outlook = Outlook.of(self._weights)
            self._lookahead = Lookahead(self._outlook)
            self._cache.clear()
            self._last = None

    def _fits(self, request: Request, at: Places) -> Mask:
        return multi_gpu.fits(self._columns, request, request.memory_units, at)

    def _tightest_first(self, request: Request) -> Places:
        """All columns, in the order in which they are computed: the others come later if steps are lacking."""
        fit_units = self._columns.fit_units
        gpus = self._fits(request, np.arange(fit_units.shape[1], dtype=np.intp))
        order: Places = np.where(gpus, fit_units, MOST_UNITS).min(axis=0).argsort(kind="stable")
        return order

    def _compute(self, request: Request, at: Places, steps: int) -> tuple[Ints, Ints, Places]:
        """``grown`` and ``left`` for the columns ``at``, and those of them for which ``grown`` is ``UNKNOWN``."""
        grown, left = np.full(at.size, FAR), np.full(at.size, FAR)
        gpus = self._fits(request, at)
        fits = np.flatnonzero(gpus.sum(axis=0) >= request.gpu_count)
        grown[fits], left[fits] = UNKNOWN, 0
        start, size = 0, _FIRST_BLOCK
        while start < fits.size and steps > 0:
            block = fits[start : start + size]
            start, size = start + size, min(2 * size, _BLOCK)
            placed = self._place(request, at[block], gpus.take(block, axis=1))
            compute = self._on_one if request.gpu_count == 1 else self._on_several
            grown[block], left[block], steps = compute(request, at[block], placed, steps)
        pending = at[fits[grown[fits] == UNKNOWN]]
        known = grown < UNKNOWN
        grown[known] += self._idle_mib(at[known]) * IDLE_PRICE_MILLE // 1000
        if not request.wants_core and any(kind.core_percent for kind in self._outlook.kinds):
            columns = self._columns
            # A value is about one node. That pods without compute have other nodes, and those with compute have not, it does not know.
            closes = (columns.no_core.take(at) == 0) & (columns.memory_pods.take(at) == 0)
            grown[closes & (grown < UNKNOWN)] += CLOSES
        return grown, left, pending

    def _one_by_one(self, placed: _Placed, at: Places, steps: int) -> tuple[Ints, int]:
        """What the request takes on each GPU, and the steps that are left."""
        values = self._lookahead.values(placed.before, placed.after, placed.gpus, steps)
        grown = np.full(placed.gpus.shape, UNKNOWN)
        grown[:, : values.now.size] = self._mib(values.now - values.after, at[: values.now.size])
        grown[~placed.gpus] = FAR
        return grown, values.steps

    def _on_one(self, request: Request, at: Places, placed: _Placed, steps: int) -> tuple[Ints, Ints, int]:
        grown, steps = self._one_by_one(placed, at, steps)
        self._last = _ByGpu(_key(request), self._columns.changes, at, grown)
        order = np.where(grown == grown.min(axis=0), placed.left_mib, FAR)
        own = self._columns.placements(request, at) == _FRAGMENTATION
        if not own.all():
            wish = multi_gpu.wishes(self._columns, request, at, placed.gpus, placed.left_mib)
            order = np.where(own, order, wish)
        rows, nodes = order.argmin(axis=0), np.arange(at.size)
        return grown[rows, nodes], placed.left_mib[rows, nodes], steps

    def _on_several(
        self, request: Request, at: Places, placed: _Placed, steps: int
    ) -> tuple[Ints, Ints, int]:
        order = multi_gpu.wishes(self._columns, request, at, placed.gpus, placed.left_mib)
        chosen = np.zeros(placed.gpus.shape, np.bool_)
        rows = self._near.chosen(self._columns.near.take(at), placed.gpus, order, request.gpu_count)
        np.put_along_axis(chosen, rows, True, axis=0)
        before, after = placed.before, placed.after
        together = after._replace(
            fit_units=np.where(chosen, after.fit_units, before.fit_units),
            free_core=np.where(chosen, after.free_core, before.free_core),
            untouched=before.untouched & ~chosen,
        )
        none = np.zeros_like(chosen)
        now, _, steps = self._lookahead.values(before, before, none, steps)
        then, _, steps = self._lookahead.values(together, together, none, steps)
        grown = np.full(at.size, UNKNOWN)
        grown[: then.size] = self._mib(now[: then.size] - then, at[: then.size])
        # Of equal nodes the one with the least free: other whole GPUs stay together.
        free_mib = self._columns.total_mib.take(at, axis=-1) - self._columns.taken_mib.take(at, axis=-1)
        return grown, np.maximum(free_mib, 0).sum(axis=0), steps

    def _mib(self, units: Ints, at: Places) -> Ints:
        """Units, summed over the sequences, as MiB."""
        mib: Ints = units * self._columns.unit_mib.take(at) // SEQUENCES
        return mib

    def _idle_mib(self, at: Places) -> Ints:
        """Memory of the GPUs of each node of which nothing is taken."""
        columns = self._columns
        idle = (columns.pods.take(at, axis=-1) == 0) & (columns.taken_mib.take(at, axis=-1) == 0)
        idle_mib: Ints = (columns.total_mib.take(at, axis=-1) * idle).sum(axis=0)
        return idle_mib

    def _state(self, at: Places) -> State:
        columns = self._columns

        def pick(figures: Ints) -> Ints:
            return figures.take(at, axis=-1)

        open_to = np.where(pick(columns.no_memory) + pick(columns.core_pods) == 0, OPEN_TO_MEMORY, 0)
        open_to |= np.where(pick(columns.no_core) + pick(columns.memory_pods) == 0, OPEN_TO_CORE, 0)
        untouched = (pick(columns.pods) == 0) & (pick(columns.taken_mib) == 0)
        return State(
            pick(columns.fit_units),
            pick(columns.free_core),
            untouched,
            pick(columns.free_cpu_milli),
            open_to,
        )

    def _place(self, request: Request, at: Places, gpus: Mask) -> _Placed:
        columns = self._columns

        def pick(figures: Ints) -> Ints:
            return figures.take(at, axis=-1)

        before = self._state(at)
        asked = request.memory_units
        total_mib, pods = pick(columns.total_mib), pick(columns.pods)
        units = np.maximum(pick(columns.units), 1).astype(np.int64)
        free_mib = total_mib - pick(columns.taken_mib)
        left_mib = free_after = free_mib - total_mib * asked // units
        if request.whole_device:
            free_after = free_mib - total_mib  # all of the GPU's units are all of its memory
        fit_after = ((free_after + 1) * units - 1) // np.maximum(total_mib, 1)
        cap = pick(columns.max_pods)
        if cap.any():
            fit_after[(cap > 0) & (pods + 1 >= cap)] = SHUT
        cpu_milli = before.cpu_milli
        after = State(
            fit_after,
            before.free_core - request.core_percent if request.core_percent else before.free_core,
            np.zeros_like(before.untouched),
            np.where(
                cpu_milli == UNKNOWN_CPU_MILLI, cpu_milli, np.maximum(cpu_milli - _kind(request).cpu_milli, 0)
            ),
            before.open_to & (OPEN_TO_CORE if request.wants_core else OPEN_TO_MEMORY),
        )
        return _Placed(gpus, before, after, np.where(gpus, left_mib, FAR))


def _key(request: Request) -> _Key:
    return _kind(request), request.selection, request.gpu_placement


def _kind(request: Request) -> Kind:
    return Kind(
        request.gpu_count,
        request.memory_units,
        request.core_percent,
        min(request.cpu_milli, UNKNOWN_CPU_MILLI),
        request.whole_device,
    )
