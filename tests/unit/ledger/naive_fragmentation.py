"""Fragments as the definition says it: one node, one kind, one GPU after the other, in whole numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from gpushare.ledger.fragmentation import SERVED
from gpushare.ledger.mix import Kind


@dataclass(frozen=True)
class NaiveGpu:
    free_mib: int
    fit_units: int
    free_core: int

    def takes(self, kind: Kind) -> bool:
        return self.fit_units >= kind.units and (not kind.core_percent or self.free_core >= kind.core_percent)


@dataclass(frozen=True)
class NaiveNode:
    """``cpu_milli`` is ``None`` where nobody knows."""

    gpus: tuple[NaiveGpu, ...]
    cpu_milli: int | None
    open_to_memory: bool
    open_to_core: bool
    unit_mib: int

    def usable_mib(self, kind: Kind) -> int:
        taking = [gpu for gpu in self.gpus if gpu.takes(kind)]
        if not (self.open_to_core if kind.core_percent else self.open_to_memory) or len(taking) < kind.gpus:
            return 0
        usable = sum(gpu.free_mib for gpu in taking)
        if not kind.cpu_milli or self.cpu_milli is None:
            return usable
        if self.cpu_milli < kind.cpu_milli:
            return 0
        served = Fraction(SERVED) * self.cpu_milli * kind.gpus * kind.units * self.unit_mib / kind.cpu_milli
        return min(usable, floor(served))

    def fragments(self, weights: Mapping[Kind, int]) -> int:
        free = sum(gpu.free_mib for gpu in self.gpus)
        return sum(weight * (free - self.usable_mib(kind)) for kind, weight in weights.items() if kind.gpus)
