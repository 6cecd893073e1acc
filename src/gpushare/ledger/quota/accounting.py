"""What the pods of each elastic quota hold together, and whether one more may have what it asks for.

A pod is charged once, to the quota of its namespace and all above it, from the moment at which room is set aside for it
(where it asks for no GPU: from when it is about to be bound) until it has ended. Every figure follows a change at once,
whatever the number of pods; without a tree nothing is kept.
"""

from collections.abc import Iterable, Set
from typing import NamedTuple

from gpushare.api.crd.elastic_quota_tree import QuotaTree
from gpushare.api.request.amounts import Amounts, written


class Over(NamedTuple):
    """A quota that a pod would bring above its max; ``alone``: what the pod asks for is more than that by itself."""

    quota: str
    alone: bool


class Charge(NamedTuple):
    """What a pod is charged. ``leaving``: its end was asked for. ``bound``: it has a node, and not only room on one.

    ``on_gpus``: it has, or will have, a part of GPUs of ours, so that its end may make room there.
    """

    namespace: str
    amounts: Amounts
    leaving: bool = False
    bound: bool = True
    on_gpus: bool = True


class QuotaUsage(NamedTuple):
    """One quota in figures: what its bound pods hold beside what it is sure of and what it may take, in thousandths."""

    name: str
    used: dict[str, int]
    min: Amounts
    max: Amounts
    namespaces: tuple[str, ...]


class _Tally:
    """Sums by quota and resource."""

    def __init__(self, quotas: int) -> None:
        self._sums: list[dict[str, int]] = [{} for _ in range(quotas)]

    def add(self, path: Iterable[int], amounts: Amounts, step: int) -> None:
        """Add ``amounts`` to all quotas of ``path``, or with ``step`` -1 take them away."""
        for place in path:
            sums = self._sums[place]
            for resource, amount in amounts.items():
                sums[resource] = sums.get(resource, 0) + step * amount

    def of(self, place: int, resource: str) -> int:
        """The sum of one quota."""
        return self._sums[place].get(resource, 0)


class QuotaBooks:
    """The books of one tree at a time. Not for several threads."""

    def __init__(self) -> None:
        self.tree: QuotaTree | None = None
        self.changes = 0
        """How often a figure, or the tree, has changed."""
        self._charges: dict[str, Charge] = {}
        self._free: set[str] = set()
        self._leavers: set[str] = set()
        self._set_up(0)

    def _set_up(self, quotas: int) -> None:
        self._held, self._leaving, self._bound = _Tally(quotas), _Tally(quotas), _Tally(quotas)
        self._uids: list[set[str]] = [set() for _ in range(quotas)]
        self._besides: list[set[str]] = [set() for _ in range(quotas)]

    def set_tree(self, tree: QuotaTree | None) -> None:
        """Count by ``tree`` from now on, from nothing: whoever has pods charges them again."""
        self.tree = tree
        self.changes += 1
        self._charges.clear()
        self._free.clear()
        self._leavers.clear()
        self._set_up(0 if tree is None else len(tree.quotas))

    # --- who is charged ---------------------------------------------------------------------------

    def charge(self, uid: str, charge: Charge | None) -> None:
        """What the pod is charged from now on, in place of what it was; ``None``: nothing."""
        tree = self.tree
        if tree is None:
            return
        self._free.discard(uid)
        if charge is not None and charge.namespace not in tree.leaf_of:
            if charge.on_gpus:
                self._free.add(uid)
            charge = None
        before = self._charges.get(uid)
        if before == charge:
            return
        self.changes += 1
        if before is not None:
            del self._charges[uid]
            self._count(tree, uid, before, -1)
        if charge is not None:
            self._charges[uid] = charge
            self._count(tree, uid, charge, 1)

    def _count(self, tree: QuotaTree, uid: str, charge: Charge, step: int) -> None:
        leaf = tree.leaf_of[charge.namespace]
        path = tree.path(leaf)
        self._held.add(path, charge.amounts, step)
        if charge.leaving:
            self._leaving.add(path, charge.amounts, step)
            if charge.on_gpus:
                (self._leavers.add if step > 0 else self._leavers.discard)(uid)
        if charge.bound:
            self._bound.add(path, charge.amounts, step)
        uids = (self._uids if charge.on_gpus else self._besides)[leaf]
        if step > 0:
            uids.add(uid)
        else:
            uids.discard(uid)

    def charged(self, uid: str) -> Charge | None:
        """What the pod is charged now."""
        return self._charges.get(uid)

    def charged_to(self, leaf: int) -> Set[str]:
        """UIDs of all pods on GPUs that are charged to a quota with namespaces, as it is: not to be kept."""
        return self._uids[leaf]

    def besides(self, leaf: int) -> Set[str]:
        """UIDs of all others that are charged to it; not to be kept."""
        return self._besides[leaf]

    def of_no_quota(self) -> Set[str]:
        """UIDs of the pods on GPUs whose namespaces have no quota; not to be kept."""
        return self._free

    def leavers(self) -> Set[str]:
        """UIDs of the pods on GPUs that are charged and whose end was asked for; not to be kept."""
        return self._leavers

    # --- figures ----------------------------------------------------------------------------------

    def leaf(self, namespace: str) -> int | None:
        """The place of a namespace's quota; ``None`` where it has none."""
        return None if self.tree is None else self.tree.leaf_of.get(namespace)

    def held(self, place: int, resource: str, *, but: str = "") -> int:
        """What the pods of a quota hold, but for the pod ``but``."""
        return self._held.of(place, resource) - self._own(place, resource, but)

    def staying(self, place: int, resource: str, *, but: str = "") -> int:
        """The same without the pods that leave."""
        return self.held(place, resource, but=but) - self._leaving.of(place, resource)

    def _own(self, place: int, resource: str, uid: str) -> int:
        own = self._charges.get(uid)
        if own is None:
            return 0
        assert self.tree is not None
        counted = place in self.tree.path(self.tree.leaf_of[own.namespace])
        return own.amounts.get(resource, 0) if counted else 0

    def refusal(self, uid: str, namespace: str, amounts: Amounts) -> str:
        """Why a pod may not have ``amounts`` now, for people: the quota that would pass its max. Empty: it may."""
        tree, leaf = self.tree, self.leaf(namespace)
        if tree is None or leaf is None:
            return ""
        for place in tree.path(leaf):
            quota = tree.quotas[place]
            for resource, amount in amounts.items():
                most = quota.max.get(resource)
                if most is None or not amount:
                    continue
                held = self.held(place, resource, but=uid)
                if held + amount > most:
                    return (
                        f"elastic quota {self.name_of(place)}: {written(resource, held)} of "
                        f"{written(resource, most)} {resource} used (max), {written(resource, amount)} asked for"
                    )
        return ""

    def over(self, uid: str, namespace: str, amounts: Amounts) -> list[Over]:
        """Every quota that would pass its max, that of the namespace first, with what ``amounts`` alone come to."""
        tree, leaf = self.tree, self.leaf(namespace)
        found: list[Over] = []
        for place in () if tree is None or leaf is None else tree.path(leaf):
            assert tree is not None
            most = tree.quotas[place].max
            passed = [
                one
                for one, amount in amounts.items()
                if amount and one in most and self.held(place, one, but=uid) + amount > most[one]
            ]
            if passed:
                found.append(Over(self.name_of(place), any(amounts[one] > most[one] for one in passed)))
        return found

    def name_of(self, place: int) -> str:
        """A quota's name after those of the quotas above it: ``root/a/a1``."""
        assert self.tree is not None
        return "/".join(self.tree.quotas[one].name for one in reversed(self.tree.path(place)))

    def usage(self) -> list[QuotaUsage]:
        """Every quota in figures, the root first; resources that it names and those that its pods hold of the tree's."""
        tree = self.tree
        if tree is None:
            return []
        return [
            QuotaUsage(
                quota.name,
                {resource: self._bound.of(place, resource) for resource in sorted(tree.resources)},
                quota.min,
                quota.max,
                quota.namespaces,
            )
            for place, quota in enumerate(tree.quotas)
        ]


def below(path: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The part of ``path`` below where it meets ``other``."""
    shared = set(other)
    return tuple(place for place in path if place not in shared)
