"""kube-scheduler's own preemption for pods that its filters reject: the dry run, and the choice of a node.

Source: kubernetes 1.36 ``framework/preemption/preemption.go`` and ``plugins/defaultpreemption``. The real one begins at a node by
chance and stops after a tenth of them, at least a hundred; here it begins at the first.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.node_usage import NodeState, Occupancy, priority_of

_LEAST_CANDIDATES: Final = 100
_PART: Final = 10


class Worth(NamedTuple):
    """A bound pod's priority and start time (RFC 3339)."""

    priority: int
    began: str


class Candidate(NamedTuple):
    """A node that fits the pod without ``victims`` (UIDs, highest priority first), and how many disruption budgets that violates."""

    node: str
    victims: tuple[str, ...]
    violations: int


WorthFn = Callable[[str], Worth]
GuardedFn = Callable[[Sequence[str]], set[str]]
"""Which of these pods (UIDs), evicted in this order, violate their PodDisruptionBudgets."""


def candidates(
    wanted: Wanted,
    refusing: Iterable[NodeState],
    nodes: Occupancy,
    worth: WorthFn,
    guarded: GuardedFn,
) -> list[Candidate]:
    """The nodes rejected by in-tree filters that would fit the pod without lower-priority pods."""
    priority = priority_of(wanted.pod)
    if not nodes.any_below(priority):
        return []
    enough = max(_LEAST_CANDIDATES, len(nodes) // _PART)
    found: list[Candidate] = []
    for state in refusing:
        if wanted.is_hopeless(state):
            continue
        one = _on(wanted, state, nodes, priority, worth, guarded)
        if one is not None:
            found.append(one)
            if len(found) == enough:
                break
    return found


def _on(
    wanted: Wanted,
    state: NodeState,
    nodes: Occupancy,
    priority: int,
    worth: WorthFn,
    guarded: GuardedFn,
) -> Candidate | None:
    lesser = nodes.lesser(state, priority)
    if not lesser or wanted.refusals(nodes.without(state, lesser)):
        return None
    listed = _by_worth(lesser, worth)
    protected = guarded(listed)
    gone = set(lesser)
    violations = 0
    # Protected pods are spared first, then those with the highest priority.
    for uid in sorted(listed, key=lambda one: one not in protected):
        gone.discard(uid)
        if wanted.refusals(nodes.without(state, gone)):
            gone.add(uid)
            violations += uid in protected
    return Candidate(state.name, tuple(uid for uid in listed if uid in gone), violations)


def cheapest(found: Sequence[Candidate], worth: WorthFn) -> Candidate:
    """The candidate that kube-scheduler selects; the first of equals."""
    return min(found, key=lambda one: _cost(one, worth))


class _Latest(str):
    """Orders later times first."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)


def _cost(one: Candidate, worth: WorthFn) -> tuple[object, ...]:
    found = [worth(uid) for uid in one.victims]
    highest = max(each.priority for each in found)
    return (
        one.violations,
        highest,
        sum(each.priority + (1 << 31) for each in found),
        len(found),
        _Latest(min(each.began for each in found if each.priority == highest)),
    )


def _by_worth(uids: Iterable[str], worth: WorthFn) -> list[str]:
    return sorted(uids, key=lambda uid: (-worth(uid).priority, worth(uid).began, uid))
