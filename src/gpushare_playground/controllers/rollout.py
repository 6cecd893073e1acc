"""The next number of replicas of each ReplicaSet of a Deployment. Pure arithmetic."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SetSize:
    """A ReplicaSet for the arithmetic: wanted and available pods."""

    name: str
    replicas: int
    available: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a rolling update, in pods: at most ``surge`` too many, ``unavailable`` too few."""

    replicas: int
    surge: int
    unavailable: int


def limits_of(replicas: int, max_surge: int | str, max_unavailable: int | str) -> Limits:
    """The limits from a Deployment's strategy; percentages are of ``replicas``, surge rounded up."""
    surge = _resolved(max_surge, replicas, up=True)
    unavailable = _resolved(max_unavailable, replicas, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Limits(replicas, surge, min(unavailable, replicas))


def _resolved(amount: int | str, replicas: int, *, up: bool) -> int:
    if isinstance(amount, int):
        return max(amount, 0)
    digits = amount.removesuffix("%")
    if not digits.isdecimal():
        return 0
    part = int(digits) * replicas / 100
    return math.ceil(part) if up else math.floor(part)


def roll(limits: Limits, new: SetSize, old: list[SetSize]) -> dict[str, int]:
    """The next sizes of a rolling update, for the sets that change. ``old`` is ordered oldest first."""
    sizes: dict[str, int] = {}
    total = new.replicas + sum(old_set.replicas for old_set in old)
    if new.replicas > limits.replicas:
        sizes[new.name] = limits.replicas
    elif new.replicas < limits.replicas:
        room = limits.replicas + limits.surge - total
        if room > 0:
            sizes[new.name] = new.replicas + min(room, limits.replicas - new.replicas)
    sizes |= _shrink(limits, new, old)
    return {name: size for name, size in sizes.items() if size != _size(name, new, old)}


def _shrink(limits: Limits, new: SetSize, old: list[SetSize]) -> dict[str, int]:
    """First the old pods that are not available anyway, then as many available ones as the limit allows."""
    total = new.replicas + sum(old_set.replicas for old_set in old)
    least = limits.replicas - limits.unavailable
    budget = total - least - max(new.replicas - new.available, 0)
    sizes = {old_set.name: old_set.replicas for old_set in old}
    for old_set in old:
        idle = min(max(old_set.replicas - old_set.available, 0), max(budget, 0))
        sizes[old_set.name] -= idle
        budget -= idle
    spare = new.available + sum(old_set.available for old_set in old) - least
    for old_set in old:
        cut = max(min(sizes[old_set.name], spare, budget), 0)
        sizes[old_set.name] -= cut
        spare -= cut
        budget -= cut
    return sizes


def recreate(replicas: int, new: SetSize, old: list[SetSize], old_pods: int) -> dict[str, int]:
    """The next sizes if all old pods must be gone before the first new one starts."""
    sizes = {old_set.name: 0 for old_set in old if old_set.replicas}
    if not sizes and not old_pods and new.replicas != replicas:
        sizes[new.name] = replicas
    return sizes


def _size(name: str, new: SetSize, old: list[SetSize]) -> int:
    return next(candidate.replicas for candidate in (new, *old) if candidate.name == name)
