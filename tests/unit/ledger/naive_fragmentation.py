"""One node by the definitions: what it can still take, offer by offer and GPU by GPU, and what counts as a fragment."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpushare.ledger.placement.fragmentation.outlook import OFFERS, Outlook
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
        return sum(gpu.free_mib for gpu in taking) if self.able(kind) and len(taking) >= kind.gpus else 0

    def able(self, kind: Kind) -> bool:
        is_open = self.open_to_core if kind.core_percent else self.open_to_memory
        return is_open and (self.cpu_milli is None or self.cpu_milli >= kind.cpu_milli)

    def value(self, outlook: Outlook) -> int:
        """Units that are allocated, over all sequences of offers."""
        value = 0
        for start in range(0, len(outlook.offers), OFFERS):
            node = self
            for number in outlook.offers[start : start + OFFERS]:
                units, node = node.with_pod(outlook.kinds[number])
                value += units
        return value

    def with_pod(self, kind: Kind) -> "tuple[int, NaiveNode]":
        """The units that a pod is allocated on the tightest GPUs, and the node after that; 0 if it does not fit."""
        rows = [row for row, gpu in enumerate(self.gpus) if gpu.takes(kind) and gpu.fit_units > 0]
        if not self.able(kind) or len(rows) < kind.gpus:
            return 0, self
        rows.sort(
            key=lambda row: (
                self.gpus[row].fit_units,
                self.gpus[row].free_core,
                self.gpus[row].untouched,
            )
        )
        gpus, allocated = list(self.gpus), 0
        for row in rows[: kind.gpus]:
            units = gpus[row].fit_units if kind.whole else kind.units
            gpus[row] = replace(
                gpus[row],
                fit_units=gpus[row].fit_units - units,
                free_core=gpus[row].free_core - kind.core_percent,
                untouched=False,
            )
            allocated += units
        return allocated, replace(
            self,
            gpus=tuple(gpus),
            cpu_milli=None if self.cpu_milli is None else self.cpu_milli - kind.cpu_milli,
            open_to_memory=self.open_to_memory and not kind.core_percent,
            open_to_core=self.open_to_core and bool(kind.core_percent),
        )

    def unusable(self, weights: Mapping[Kind, int]) -> int:
        """MiB that each kind cannot use, times its weight."""
        free = sum(gpu.free_mib for gpu in self.gpus)
        return sum(weight * (free - self.usable_mib(kind)) for kind, weight in weights.items() if kind.gpus)
