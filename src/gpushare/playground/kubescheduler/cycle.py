"""The scheduling cycle: one pod, all nodes, one choice. Nothing is written here.

Source: kubernetes 1.36 ``pkg/scheduler/schedule_one.go``, with ``percentageOfNodesToScore: 100``.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpushare.playground.kubescheduler.extender import Extender, ExtenderError
from gpushare.playground.kubescheduler.filters import Wanted
from gpushare.playground.kubescheduler.occupancy import NodeState, Occupancy
from gpushare.playground.kubescheduler.scores import best, score
from gpushare.playground.objects import Json, key_of

NO_NODES = "no nodes available to schedule pods"
_log = logging.getLogger(__name__)


class Unschedulable(Exception):
    """No node takes the pod; ``str()`` is kube-scheduler's text, ``by_extender`` whether it had a say in it."""

    def __init__(self, message: str, *, by_extender: bool = False) -> None:
        super().__init__(message)
        self.by_extender = by_extender


@dataclass(frozen=True, slots=True)
class Choice:
    """The node chosen, and how many there were to choose from."""

    node: str
    feasible: int


async def choose(
    pod: Json, nodes: Occupancy, extender: Extender | None, chance: Callable[[], float]
) -> Choice:
    """The node for ``pod``. Raises ``Unschedulable``, or ``ExtenderError`` when the extender fails."""
    if not len(nodes):
        raise Unschedulable(NO_NODES)
    wanted = Wanted(pod)
    reasons: dict[str, list[str]] = {}
    feasible: list[NodeState] = []
    for state in nodes:
        refusals = wanted.refusals(state)
        if refusals:
            reasons[state.name] = refusals
        else:
            feasible.append(state)
    total = len(nodes)
    asked = extender if extender is not None and extender.is_interested(pod) else None
    kept = feasible
    if asked is not None and feasible:
        kept = await _ask(asked, pod, feasible, reasons)
    if not kept:
        raise Unschedulable(fit_error(total, reasons.values()), by_extender=len(kept) != len(feasible))
    if len(kept) == 1:
        return Choice(kept[0].name, 1)
    points = score(wanted, kept)
    if asked is not None:
        points = await _add_extender_points(asked, pod, kept, points)
    return Choice(best(kept, points, chance).name, len(kept))


async def _ask(
    extender: Extender, pod: Json, feasible: list[NodeState], reasons: dict[str, list[str]]
) -> list[NodeState]:
    result = await extender.filter(pod, [state.name for state in feasible])
    hopeless = result.failed_and_unresolvable_nodes or {}
    for name, reason in ((result.failed_nodes or {}) | hopeless).items():
        reasons[name] = [reason]
    by_name = {state.name: state for state in feasible}
    return [by_name[name] for name in result.node_names or ()]


async def _add_extender_points(
    extender: Extender, pod: Json, nodes: list[NodeState], points: list[int]
) -> list[int]:
    try:
        more = await extender.prioritize(pod, [state.name for state in nodes])
    except ExtenderError as error:
        # kube-scheduler goes on without them, too.
        _log.warning("%s: no points from the extender: %s", key_of(pod), error)
        return points
    return [point + more.get(state.name, 0) for state, point in zip(nodes, points, strict=True)]


def fit_error(total: int, reasons: Iterable[list[str]]) -> str:
    """``0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods.``: reasons counted, sorted as text."""
    counted = Counter(reason for refusals in reasons for reason in refusals)
    lines = sorted(f"{count} {reason}" for reason, count in counted.items())
    message = f"0/{total} nodes are available:"
    return f"{message} {', '.join(lines)}." if lines else message
