"""Which GPUs a pod's selection allows, over many nodes at once.

GPUs are numbered by the properties that selections name: a cluster has few kinds of GPU. A selection is evaluated once per kind, and UUIDs
are compared by their hashes, so that pods with selections are placed by arrays, too. Pods without one never come here.
"""

from typing import Final, NamedTuple

import numpy as np

from gpushare.api.node.device import Device
from gpushare.api.request.gpu_selection import UUID, UUID_EXCLUDE, GpuSelection
from gpushare.ledger.arrays import Ints

#: The number of places where a node has no GPU. ``rules`` has ``NO_GPU_RULE`` there.
NO_GPU: Final = 0
NO_GPU_RULE: Final = -1
#: Selections whose evaluation is cached.
_MOST_KEPT: Final = 256


class _Evaluated(NamedTuple):
    """For each kind of GPU the rule of a selection that excludes it (``gpu_selection.RULES``), and hashes of the UUIDs that it names."""

    rules: Ints
    uuids: Ints
    uuids_excluded: Ints


class GpuKinds:
    """Numbers for kinds of GPUs, and selections evaluated for each."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._examples: list[Device] = []
        self._evaluated: dict[GpuSelection, _Evaluated] = {}

    def number_of(self, gpu: Device) -> int:
        """The number of the GPU's kind."""
        key = (gpu.model, gpu.architecture, gpu.total_mib)
        number = self._numbers.get(key)
        if number is None:
            self._examples.append(gpu)
            number = self._numbers[key] = len(self._examples)
            self._evaluated.clear()
        return number

    def rules(self, selection: GpuSelection, kinds: Ints, uuid_hashes: Ints) -> Ints:
        """For each GPU the rule of ``selection`` that excludes it: 0 if the pod may have it, ``NO_GPU_RULE`` where there is none."""
        evaluated = self._evaluated.get(selection)
        if evaluated is None:
            evaluated = self._evaluate(selection)
        rules = evaluated.rules.take(kinds)
        if selection.uuids:
            rules[(rules == 0) & ~np.isin(uuid_hashes, evaluated.uuids)] = UUID
        if selection.uuids_excluded:
            rules[(rules == 0) & np.isin(uuid_hashes, evaluated.uuids_excluded)] = UUID_EXCLUDE
        return rules

    def _evaluate(self, selection: GpuSelection) -> _Evaluated:
        if len(self._evaluated) >= _MOST_KEPT:
            self._evaluated.clear()
        evaluated = self._evaluated[selection] = _Evaluated(
            np.array([NO_GPU_RULE, *map(selection.kind_rule, self._examples)], np.int8),
            np.array([hash(uuid) for uuid in selection.uuids], np.int64),
            np.array([hash(uuid) for uuid in selection.uuids_excluded], np.int64),
        )
        return evaluated
