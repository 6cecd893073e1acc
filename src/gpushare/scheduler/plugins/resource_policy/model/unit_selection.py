"""Selects the unit for a pod (spec §4, ``whenTryNextUnits``), from the state of each unit.

The units are examined in order. A full unit is skipped, and a unit with a node that takes the pod is chosen. For a unit that is below
its caps but has no such node, the policy decides whether the pod tries the next unit or stays pending.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gpushare.api.crd.resource_policy import ResourcePolicy, TryNext, Unit


class Standing(NamedTuple):
    """The state of one unit for a pod.

    ``full``: why its caps do not admit the pod, empty if they do. ``takes``: whether one of its nodes takes the pod.
    ``leaving``: how many of the policy's pods in it are being deleted.
    """

    full: str
    takes: bool
    leaving: int = 0


class Choice(NamedTuple):
    """The decision for a pod.

    ``unit`` (from 0): the chosen unit; ``None`` if no unit takes the pod now. ``reasons``: for each unit, why it was not chosen.
    ``wait_s``: retry the pod after so many seconds in any case; ``None``: only when something changes. ``ending``: the units on whose nodes
    pods may be evicted for the pod. ``tries``: the unit in which preemption is tried before the next unit.
    """

    unit: int | None
    reasons: tuple[str, ...]
    wait_s: float | None = None
    ending: frozenset[int] = frozenset()
    tries: int | None = None


#: Seconds for which preemption is tried in a unit before the pod is retried and may use the next unit.
PREEMPTION_S = 3.0


def choose(
    policy: ResourcePolicy, standings: Sequence[Standing], waited_s: float, tried: Collection[int] = ()
) -> Choice:
    """Decide for a pod that was first refused ``waited_s`` seconds ago.

    ``tried``: the units in which preemption for the pod has failed.
    """
    reasons = [""] * len(standings)
    open_units: set[int] = set()
    left_s = waited_s
    for number, (unit, standing) in enumerate(zip(policy.units, standings, strict=True)):
        held_back = ""
        if policy.try_next is TryNext.NO_TERMINATING and standing.leaving:
            held_back = f"; waiting for {standing.leaving} of its pods to terminate"
        if standing.full:
            reasons[number] = standing.full
            if held_back:
                reasons[number] += held_back
                return _stopped(policy, number, reasons, open_units, None)
            continue
        if standing.takes:
            for later in range(number + 1, len(standings)):
                reasons[later] = f"unit {number + 1} comes before it and has capacity for the pod"
            return Choice(number, tuple(reasons))
        open_units.add(number)
        reasons[number] = "the pod fits none of its nodes"
        if policy.preempts_before_next and number not in tried:
            reasons[number] += "; preemption is tried there first"
            stopped = _stopped(policy, number, reasons, {number}, PREEMPTION_S)
            return stopped._replace(tries=number)
        if held_back:
            reasons[number] += held_back
            return _stopped(policy, number, reasons, open_units, None)
        if number == len(standings) - 1 or not _waits(policy, unit):
            continue
        if policy.try_next is TryNext.EXCEED:
            reasons[number] += "; the pod waits until the unit is full"
            return _stopped(policy, number, reasons, open_units, None)
        if left_s < policy.timeout_s:
            reasons[number] += f"; the pod waits up to {policy.timeout_s:g} s for it"
            return _stopped(policy, number, reasons, open_units, policy.timeout_s - left_s)
        left_s -= policy.timeout_s
    return Choice(None, tuple(reasons), None, frozenset(open_units))


def _waits(policy: ResourcePolicy, unit: Unit) -> bool:
    """Whether the policy may make a pod wait for ``unit`` if none of its nodes takes the pod."""
    return policy.try_next in (TryNext.EXCEED, TryNext.TIMEOUT) and (unit.is_capped or unit.waits)


def _stopped(
    policy: ResourcePolicy,
    number: int,
    reasons: list[str],
    open_units: Collection[int],
    wait_s: float | None,
) -> Choice:
    for later in range(number + 1, len(reasons)):
        reasons[later] = f"unit {number + 1} comes before it"
    # Pods are evicted only if no unit is left, unless the policy preempts in each unit.
    ending = frozenset(open_units) if policy.preempts_before_next else frozenset()
    return Choice(None, tuple(reasons), wait_s, ending)
