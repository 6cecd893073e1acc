"""Fragments as the definition says it: one node, one kind, one GPU after the other, in whole numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.ledger.placement.fragmentation.measure import LOADS
from gpushare.ledger.placement.fragmentation.workload_mix import Kind


@dataclass(frozen=True)
class NaiveGpu:
    free_mib: int
    fit_units: int
    free_core: int
    untouched: bool = False

    def takes(self, kind: Kind) -> bool:
        if kind.whole and not self.untouched:
            return False
        return self.fit_units >= kind.units and (not kind.core_percent or self.free_core >= kind.core_percent)


@dataclass(frozen=True)
class NaiveNode:
    """``cpu_milli`` is ``None`` if unknown."""

    gpus: tuple[NaiveGpu, ...]
    cpu_milli: int | None
    open_to_memory: bool
    open_to_core: bool
    unit_mib: int

    def usable_mib(self, kind: Kind) -> int:
        taking = [gpu for gpu in self.gpus if gpu.takes(kind)]
        if not (self.open_to_core if kind.core_percent else self.open_to_memory) or len(taking) < kind.gpus:
            return 0
        if self.cpu_milli is not None and self.cpu_milli < kind.cpu_milli:
            return 0
        return sum(gpu.free_mib for gpu in taking)

    def usable_on_average_mib(self, weights: Mapping[Kind, int], load: int) -> int:
        """What pods that want processors as the mix does, ``load`` times, could use of any pieces."""
        units = sum(weight * kind.gpus * kind.units for kind, weight in weights.items())
        cpu_milli = sum(weight * kind.cpu_milli for kind, weight in weights.items() if kind.gpus)
        if not self.open_to_memory and not self.open_to_core:
            return 0
        usable = sum(gpu.free_mib for gpu in self.gpus if gpu.fit_units >= 1)
        if not cpu_milli or self.cpu_milli is None:
            return usable
        return min(usable, self.cpu_milli * units * self.unit_mib // (load * cpu_milli))

    def fragments_of_kinds(self, weights: Mapping[Kind, int]) -> int:
        free = sum(gpu.free_mib for gpu in self.gpus)
        return sum(weight * (free - self.usable_mib(kind)) for kind, weight in weights.items() if kind.gpus)

    def fragments(self, weights: Mapping[Kind, int]) -> int:
        free = sum(gpu.free_mib for gpu in self.gpus)
        weight = sum(weight for kind, weight in weights.items() if kind.gpus)
        return self.fragments_of_kinds(weights) + sum(
            weight * (free - self.usable_on_average_mib(weights, load)) for load in LOADS
        )
