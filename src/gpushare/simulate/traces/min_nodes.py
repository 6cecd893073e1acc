"""How many nodes like a list's would have been enough for its pods."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpushare.simulate.traces.openb import TraceNode

#: Of so many times the GPUs that pods ask for no more is expected than what they do.
_AMPLE: Final = 2

TriedFn = Callable[[Sequence[TraceNode], int | None], tuple[int, float]]
"""Told nodes, says how many pods are left out on them and how many percent of their GPUs are given; may stop at more than so many."""


class EnoughNodes(NamedTuple):
    """On ``nodes`` nodes with ``gpus`` GPUs no more pods are left out (dropped, or made to wait) than on ``most``; on one less they are.

    ``left`` are left out there all the same, and ``percent`` of the GPUs are given.
    """

    nodes: int
    gpus: int
    percent: float
    left: int
    most: int


def drawn(nodes: Sequence[TraceNode], count: int, seed: int) -> list[TraceNode]:
    """``count`` nodes like ``nodes``: so many of them drawn by ``seed``, beyond all of them drawn once more, under other names."""
    times, rest = divmod(count, len(nodes))
    found = [
        node if not number else node._replace(name=f"{node.name}-{number}")
        for number in range(times)
        for node in nodes
    ]
    chosen = random.Random(seed).sample(nodes, rest)  # noqa: S311 - the same seed must give the same again
    return found + [node._replace(name=f"{node.name}-{times}") if times else node for node in chosen]


def ample(nodes: Sequence[TraceNode], ratio: float) -> int:
    """So many nodes that they have twice the GPUs that pods ask for, which is ``ratio`` times what ``nodes`` have."""
    return math.ceil(_AMPLE * max(ratio, 1.0) * len(nodes))


def enough_nodes(
    nodes: Sequence[TraceNode], seed: int, most: int, tried: TriedFn, told: Callable[[int], None]
) -> EnoughNodes:
    """The smallest number of nodes, drawn by ``seed``, that helps as much as ``most`` do.

    Both sides of the answer were run. Placement is no search for the best packing, so a still smaller number could be enough by
    luck; none is looked for.
    """
    told(most)
    results = {most: tried(drawn(nodes, most, seed), None)}
    least = results[most][0]

    def is_enough(count: int) -> bool:
        told(count)
        results[count] = tried(drawn(nodes, count, seed), least)
        return results[count][0] <= least

    low, high = 0, most
    middle = len(nodes)
    while high - low > 1:
        if is_enough(middle):
            high = middle
        else:
            low = middle
        middle = (low + high) // 2
    left, percent = results[high]
    return EnoughNodes(high, sum(node.gpus for node in drawn(nodes, high, seed)), percent, left, most)
