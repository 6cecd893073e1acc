"""For each node that does not take a request for several GPUs, or for whole GPUs, the reason.

The steps are those of ``refusals``, with a count of GPUs in place of the best GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request
from gpushare.ledger.arrays import Mask
from gpushare.ledger.columns import Columns
from gpushare.ledger.fit import reasons
from gpushare.ledger.fit.group import Group
from gpushare.ledger.fit.multi_gpu import suitable, untouched

#: Bits of a word; two words hold all GPUs of a node (``api.node.device.MAX_DEVICES``).
_WORD: Final = 64


class RefusalTexts(NamedTuple):
    """Reasons by node: ``refused`` may take the request later, ``hopeless`` never will."""

    refused: dict[str, str]
    hopeless: dict[str, str]


class GpuNotes(NamedTuple):
    """Texts on a node's GPUs: those out of service (``reasons.unhealthy_text``), and ``reasons.shortage_note``."""

    unhealthy: str
    shortage: str


def explain(
    columns: Columns,
    request: Request,
    unit: MemoryUnit,
    group: Group,
    texts: RefusalTexts,
    notes: Mapping[int, GpuNotes],
    one_gpu: Mapping[int, str],
    not_full: Callable[[Group, dict[str, str]], Group],
) -> None:
    """Add to ``texts`` the reasons of nodes of one ``unit``, none of which takes ``request``.

    ``notes`` are those on GPUs by column, ``one_gpu`` the texts of nodes that allocate one GPU per pod. ``not_full`` splits off full nodes.
    """
    several = request.gpu_count > 1
    asked = request.memory_units
    asked_mib = asked * unit.mib
    if several and not request.by_gpu:
        single, group = group.part(columns.one_gpu[group.at] == 1)
        texts.hopeless.update(zip(single.names, map(one_gpu.__getitem__, single.at.tolist()), strict=True))
    group = _without_hopeless(columns, request, unit, group, notes, texts)
    if not request.by_gpu:
        others = (columns.memory_pods if request.wants_core else columns.core_pods)[group.at]
        mixed, group = group.part(others > 0)
        counts = others[others > 0].tolist()
        texts.refused.update(mixed.texts(counts, lambda count: reasons.mixed(request, count)))
    group = not_full(group, texts.refused)
    if not group.names:
        return
    free = (columns.room_units.take(group.at, axis=1) >= asked) & suitable(columns, request, group.at)
    if request.whole_device:
        free &= untouched(columns, group.at)
    short = free.sum(axis=0) < request.gpu_count
    few, capped = group.part(short)
    _add_texts(
        columns,
        few,
        free[:, short],
        lambda gpus: reasons.too_few_free(request, asked_mib, gpus),
        texts.refused,
    )
    if capped.names:
        open_to_pods = columns.fit_units.take(capped.at, axis=1) >= asked
        open_to_pods &= suitable(columns, request, capped.at)
        at_cap = open_to_pods.sum(axis=0) < request.gpu_count
        capped, computing = capped.part(at_cap)
        caps = columns.max_pods[capped.at].tolist()
        indices = _indices(columns, capped, open_to_pods[:, at_cap])
        for name, cap, gpus in zip(capped.names, caps, indices, strict=True):
            texts.refused[name] = reasons.too_few_below_cap(request, asked_mib, cap, gpus)
        # The remaining nodes lack compute only.
        has_core = columns.free_core.take(computing.at, axis=1) >= request.core_percent
        _add_texts(
            columns,
            computing,
            open_to_pods[:, ~at_cap] & has_core,
            lambda gpus: reasons.too_few_with_compute(request, asked_mib, gpus),
            texts.refused,
        )
    noted, _ = group.part(columns.noted[group.at] > 0)
    for name, column in zip(noted.names, noted.at.tolist(), strict=True):
        texts.refused[name] += f"; {notes[column].shortage}"


def _without_hopeless(
    columns: Columns,
    request: Request,
    unit: MemoryUnit,
    group: Group,
    notes: Mapping[int, GpuNotes],
    texts: RefusalTexts,
) -> Group:
    """Split off the nodes that could not take the request even if empty; returns the others."""
    count, asked = request.gpu_count, request.memory_units
    asked_mib = asked * unit.mib
    gpu_counts = suitable(columns, request, group.at).sum(axis=0)
    small, group = group.part(gpu_counts < count)
    there = gpu_counts[gpu_counts < count].tolist()
    texts.hopeless.update(small.texts(there, lambda gpus: reasons.too_few_gpus(count, gpus)))
    large = (columns.units.take(group.at, axis=1) >= asked) & suitable(columns, request, group.at)
    short = large.sum(axis=0) < count
    few, group = group.part(short)
    if count == 1:
        sizes = columns.largest_units[few.at].tolist()
        texts.hopeless.update(few.texts(sizes, lambda size: reasons.too_large(request, size, unit)))
    else:
        _add_texts(
            columns,
            few,
            large[:, short],
            lambda gpus: reasons.too_few_large(request, asked_mib, gpus),
            texts.hopeless,
        )
    healthy = (columns.units.take(group.at, axis=1) >= asked) & (
        columns.room_units.take(group.at, axis=1) >= 0
    )
    healthy &= suitable(columns, request, group.at)
    sick, group = group.part(healthy.sum(axis=0) < count)
    for name, column in zip(sick.names, sick.at.tolist(), strict=True):
        texts.hopeless[name] = (
            reasons.only_unhealthy(asked_mib, notes[column].unhealthy)
            if count == 1
            else reasons.too_few_healthy(request, asked_mib, notes[column].unhealthy)
        )
    return group


def _add_texts(
    columns: Columns, group: Group, gpus: Mask, write: Callable[[Sequence[int]], str], texts: dict[str, str]
) -> None:
    texts.update(group.texts(_indices(columns, group, gpus), write))


def _indices(columns: Columns, group: Group, gpus: Mask) -> list[tuple[int, ...]]:
    """The indices of the GPUs of each node."""
    index = columns.index.take(group.at, axis=1).astype(np.uint64)
    # As bits in two words: there are thousands of nodes, but few distinct sets of GPUs.
    bits = np.where(gpus, np.left_shift(np.uint64(1), index % _WORD), np.uint64(0))
    low, high = (np.where(index // _WORD == word, bits, np.uint64(0)).sum(axis=0) for word in (0, 1))
    keys = list(zip(low.tolist(), high.tolist(), strict=True))
    indices_of = {key: _bits(key[0] | key[1] << _WORD) for key in set(keys)}
    return [indices_of[key] for key in keys]


def _bits(word: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(word.bit_length()) if word >> bit & 1)
