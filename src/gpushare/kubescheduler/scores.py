"""The in-tree scores that matter for GPU pods, weighted as in the default profile.

Source: kubernetes 1.36 ``pkg/scheduler/framework/plugins``. Each plugin gives 0 to 100 a node.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.node_affinity import preference_for, untolerated
from gpushare.kubescheduler.node_usage import NodeState
from gpushare.kubescheduler.resources import CPU, MEMORY, Amounts

T = TypeVar("T")

MAX_NODE_SCORE: Final = 100
#: Assumed requests of a pod without any, for scoring only: 0.1 cores, 200 MB.
_NOMINAL: Final[Amounts] = {CPU: 100, MEMORY: 200 * 1024 * 1024}


class Points(NamedTuple):
    """Each plugin's score of one node before normalization; the last two are raw values."""

    least_allocated: int
    balanced: int
    preference: int
    soft_taints: int


def points_of(wanted: Wanted, state: NodeState) -> Points:
    """The plugins' scores of the node, before normalization."""
    return Points(
        _least_allocated(wanted, state),
        _balanced(wanted, state),
        preference_for(wanted.pod, state.node),
        len(untolerated(wanted.pod, state.node, ("PreferNoSchedule",))),
    )


def weighed(points: Sequence[Points]) -> list[int]:
    """The weighted sum of all plugins for each node, normalized over all nodes."""
    preferences = _normalised([one.preference for one in points])
    taints = _reversed([one.soft_taints for one in points])
    return [
        one.least_allocated + one.balanced + 2 * preference + 3 * taint
        for one, preference, taint in zip(points, preferences, taints, strict=True)
    ]


def score(wanted: Wanted, nodes: Sequence[NodeState]) -> list[int]:
    """The weighted sum of all plugins for each of ``nodes``."""
    return weighed([points_of(wanted, state) for state in nodes])


def _fractions(wanted: Wanted, state: NodeState) -> list[float]:
    """The node's utilization with the pod, by resource."""
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


def best(nodes: Sequence[T], points: Sequence[int], chance: Callable[[], float]) -> T:
    """The node with the highest score, random among equals."""
    most = max(points)
    winners = [node for node, point in zip(nodes, points, strict=True) if point == most]
    return winners[min(int(chance() * len(winners)), len(winners) - 1)]
