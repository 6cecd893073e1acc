"""The in-tree scores that matter on small clusters, weighted as in the default profile.

Source: kubernetes 1.36 ``pkg/scheduler/framework/plugins``. Each plugin gives 0 to 100 a node.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from gpushare.playground.kubescheduler.amounts import CPU, MEMORY, Amounts
from gpushare.playground.kubescheduler.filters import Wanted
from gpushare.playground.kubescheduler.matching import preference_for, untolerated
from gpushare.playground.kubescheduler.occupancy import NodeState

MAX_NODE_SCORE: Final = 100
#: What a pod that asks for nothing is taken to use, for scoring only: 0.1 cores, 200 MB.
_NOMINAL: Final[Amounts] = {CPU: 100, MEMORY: 200 * 1024 * 1024}


def score(wanted: Wanted, nodes: Sequence[NodeState]) -> list[int]:
    """The weighted sum of all plugins for each of ``nodes``."""
    weighted: list[tuple[int, list[int]]] = [
        (1, [_least_allocated(wanted, state) for state in nodes]),
        (1, [_balanced(wanted, state) for state in nodes]),
        (2, _normalised([preference_for(wanted.pod, state.node) for state in nodes])),
        (3, _reversed([len(untolerated(wanted.pod, state.node, ("PreferNoSchedule",))) for state in nodes])),
    ]
    return [sum(weight * points[index] for weight, points in weighted) for index in range(len(nodes))]


def _fractions(wanted: Wanted, state: NodeState) -> list[float]:
    """How full the node is with the pod, by resource, where it has any."""
    found = []
    for name, nominal in _NOMINAL.items():
        capacity = state.allocatable.get(name, 0)
        if capacity:
            found.append((state.used.get(name, 0) + (wanted.requests.get(name) or nominal)) / capacity)
    return found


def _least_allocated(wanted: Wanted, state: NodeState) -> int:
    fractions = _fractions(wanted, state)
    if not fractions:
        return 0
    return int(sum(max(0, math.floor((1 - one) * MAX_NODE_SCORE)) for one in fractions) / len(fractions))


def _balanced(wanted: Wanted, state: NodeState) -> int:
    fractions = [min(one, 1.0) for one in _fractions(wanted, state)]
    deviation = abs(fractions[0] - fractions[1]) / 2 if len(fractions) == 2 else 0.0
    return int((1 - deviation) * MAX_NODE_SCORE)


def _normalised(raw: list[int]) -> list[int]:
    most = max(raw, default=0)
    return [MAX_NODE_SCORE * one // most for one in raw] if most else raw


def _reversed(raw: list[int]) -> list[int]:
    most = max(raw, default=0)
    return [MAX_NODE_SCORE - MAX_NODE_SCORE * one // most if most else MAX_NODE_SCORE for one in raw]


def best(nodes: Sequence[NodeState], points: Sequence[int], chance: Callable[[], float]) -> NodeState:
    """The node with the most points, at random among equals."""
    most = max(points)
    winners = [node for node, point in zip(nodes, points, strict=True) if point == most]
    return winners[min(int(chance() * len(winners)), len(winners) - 1)]
