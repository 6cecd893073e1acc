"""Which unit comes next for one pod (spec §4, ``whenTryNextUnits``), from what is known of each unit.

The units are looked at in order. One that is full is passed, one with a node that takes the pod is chosen; at one that has
room by its caps and no node, the policy says whether the pod goes on or waits.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gpushare.api.crd.resource_policy import ResourcePolicy, TryNext, Unit


class Standing(NamedTuple):
    """How one unit stands to the pod.

    ``full``: why its caps have no room for the pod, empty where they have. ``takes``: a node of it does. ``leaving``: how
    many pods of the policy are ending in it.
    """

    full: str
    takes: bool
    leaving: int = 0


class Choice(NamedTuple):
    """What is decided. ``unit`` (from 0) takes the pod; ``None``: none does now.

    ``reasons`` say for each unit why it is not the one. ``wait_s``: ask again after so many seconds, whatever happens;
    ``None``: only when something changes. On nodes of ``ending`` others may be ended for the pod. ``tries``: the unit in
    which that is tried first, before the next one is.
    """

    unit: int | None
    reasons: tuple[str, ...]
    wait_s: float | None = None
    ending: frozenset[int] = frozenset()
    tries: int | None = None


#: Seconds until a pod is asked about again for which others may be ended before it goes on to the next unit.
PREEMPTION_S = 3.0


def choose(
    policy: ResourcePolicy, standings: Sequence[Standing], waited_s: float, tried: Collection[int] = ()
) -> Choice:
    """Decide for a pod that has waited for ``waited_s`` since no node first took it.

    ``tried`` are the units in which ending others was tried for it, in vain.
    """
    reasons = [""] * len(standings)
    open_units: set[int] = set()
    left_s = waited_s
    for number, (unit, standing) in enumerate(zip(policy.units, standings, strict=True)):
        held_back = ""
        if policy.try_next is TryNext.NO_TERMINATING and standing.leaving:
            held_back = f"; {standing.leaving} of its pods are ending, that is waited for"
        if standing.full:
            reasons[number] = standing.full
            if held_back:
                reasons[number] += held_back
                return _stopped(policy, number, reasons, open_units, None)
            continue
        if standing.takes:
            for later in range(number + 1, len(standings)):
                reasons[later] = f"unit {number + 1} comes before it and takes the pod"
            return Choice(number, tuple(reasons))
        open_units.add(number)
        reasons[number] = "none of its nodes takes the pod"
        if policy.preempts_before_next and number not in tried:
            reasons[number] += "; ending others there is tried first"
            stopped = _stopped(policy, number, reasons, {number}, PREEMPTION_S)
            return stopped._replace(tries=number)
        if held_back:
            reasons[number] += held_back
            return _stopped(policy, number, reasons, open_units, None)
        if number == len(standings) - 1 or not _waits(policy, unit):
            continue
        if policy.try_next is TryNext.EXCEED:
            reasons[number] += "; it is waited for until the unit is full"
            return _stopped(policy, number, reasons, open_units, None)
        if left_s < policy.timeout_s:
            reasons[number] += f"; it is waited for, {policy.timeout_s:g} s at most"
            return _stopped(policy, number, reasons, open_units, policy.timeout_s - left_s)
        left_s -= policy.timeout_s
    return Choice(None, tuple(reasons), None, frozenset(open_units))


def _waits(policy: ResourcePolicy, unit: Unit) -> bool:
    """Whether a pod that no node of ``unit`` takes may have to wait there."""
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
    # Others are ended for the pod only when no unit is left, unless the policy has it otherwise.
    ending = frozenset(open_units) if policy.preempts_before_next else frozenset()
    return Choice(None, tuple(reasons), wait_s, ending)
