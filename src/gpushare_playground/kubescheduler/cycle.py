"""The scheduling cycle: one pod, all nodes, one choice. It does not write anything.

Source: kubernetes 1.36 ``pkg/scheduler/schedule_one.go``, with ``percentageOfNodesToScore: 100``.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.fit_error import fit_error
from gpushare.kubescheduler.node_usage import NodeState, Occupancy
from gpushare.kubescheduler.scores import best, score
from gpushare_playground.kubescheduler.extender import Extender, ExtenderError
from gpushare_playground.kubescheduler.preemption import aftermath
from gpushare_playground.objects import Json, key_of

NO_NODES = "no nodes available to schedule pods"
_log = logging.getLogger(__name__)


class Unschedulable(Exception):
    """No node takes the pod; ``str()`` is kube-scheduler's text, ``by_extender``: whether the extender rejected nodes."""

    def __init__(self, message: str, *, by_extender: bool = False) -> None:
        super().__init__(message)
        self.by_extender = by_extender


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen node, and the number of feasible nodes."""

    node: str
    feasible: int


async def choose(
    pod: Json,
    nodes: Occupancy,
    extender: Extender | None,
    chance: Callable[[], float],
    ignored: Collection[str] = (),
) -> Choice:
    """The node for ``pod``, without checking ``ignored`` resources. Raises ``Unschedulable``, or ``ExtenderError`` if the extender fails."""
    if not len(nodes):
        raise Unschedulable(NO_NODES)
    wanted = Wanted(pod, ignored)
    reasons: dict[str, list[str]] = {}
    feasible: list[NodeState] = []
    for state in nodes:
        refusals = wanted.refusals(state)
        if refusals:
            reasons[state.name] = refusals
        else:
            feasible.append(state)
    total = len(nodes)
    feasible_nodes = feasible
    unresolvable: set[str] = set()
    if extender is not None and feasible:
        feasible_nodes = await _ask(extender, pod, feasible, reasons, unresolvable)
    if not feasible_nodes:
        message = f"{fit_error(total, reasons.values())} {aftermath(pod, wanted, nodes, unresolvable)}"
        raise Unschedulable(message, by_extender=len(feasible_nodes) != len(feasible))
    if len(feasible_nodes) == 1:
        return Choice(feasible_nodes[0].name, 1)
    points = score(wanted, feasible_nodes)
    if extender is not None:
        points = await _add_extender_points(extender, pod, feasible_nodes, points)
    return Choice(best(feasible_nodes, points, chance).name, len(feasible_nodes))


async def _ask(
    extender: Extender,
    pod: Json,
    feasible: list[NodeState],
    reasons: dict[str, list[str]],
    unresolvable: set[str],
) -> list[NodeState]:
    result = await extender.filter(pod, [state.name for state in feasible])
    failed = result.failed_and_unresolvable_nodes or {}
    unresolvable.update(failed)
    for name, reason in ((result.failed_nodes or {}) | failed).items():
        reasons[name] = [reason]
    by_name = {state.name: state for state in feasible}
    return [by_name[name] for name in result.node_names or ()]


async def _add_extender_points(
    extender: Extender, pod: Json, nodes: list[NodeState], points: list[int]
) -> list[int]:
    try:
        extender_points = await extender.prioritize(pod, [state.name for state in nodes])
    except ExtenderError as error:
        # kube-scheduler also continues without them.
        _log.warning("%s: no points from the extender: %s", key_of(pod), error)
        return points
    return [point + extender_points.get(state.name, 0) for state, point in zip(nodes, points, strict=True)]
