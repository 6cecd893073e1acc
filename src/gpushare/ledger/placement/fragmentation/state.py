"""What the value of nodes depends on, for many nodes at once."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpushare.ledger.arrays import Ints, Mask
from gpushare.ledger.placement.fragmentation.workload_mix import Kind

#: The requests that a node is open to, as bits.
OPEN_TO_MEMORY: Final = 1
OPEN_TO_CORE: Final = 2
#: The most frequent kinds, which are the only ones that count as being able to use something: bounds the work.
MOST_WEIGHED: Final = 64


class State(NamedTuple):
    """Planes are (GPUs, nodes), lines are (nodes,).

    ``fit_units`` is the largest request that a GPU takes, negative for none; ``free_core`` is in percent, negative if the node
    does not share compute; ``untouched`` GPUs are unused; ``open_to`` are bits.
    """

    fit_units: Ints
    free_core: Ints
    untouched: Mask
    cpu_milli: Ints
    open_to: Ints


def takes(state: State, kind: Kind) -> tuple[Mask, Mask]:
    """Which GPUs take a share of the kind, and which nodes are open to it and have processors for one pod."""
    gpus: Mask = state.fit_units >= kind.units
    if kind.core_percent:
        gpus &= state.free_core >= kind.core_percent
    if kind.whole:
        gpus &= state.untouched
    need = OPEN_TO_CORE if kind.core_percent else OPEN_TO_MEMORY
    return gpus, (state.open_to & need > 0) & (state.cpu_milli >= kind.cpu_milli)


def unusable_mib(state: State, free_mib: Ints, weights: Mapping[Kind, int]) -> int:
    """MiB of the free memory (GPUs, nodes) that the mix could not use on average; 0 for an empty mix.

    As in "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023): a
    kind cannot use GPUs that do not take its share, and nothing of a node that does not take a pod of the kind.
    """
    wanted = sorted(((-weight, kind) for kind, weight in weights.items() if kind.gpus))[:MOST_WEIGHED]
    if not wanted:
        return 0
    total = usable = 0
    for weight, kind in wanted:
        gpus, able = takes(state, kind)
        able &= gpus.sum(axis=0) >= kind.gpus
        total -= weight
        usable -= weight * int((free_mib * (gpus & able)).sum())
    return int(free_mib.sum()) - usable // total
