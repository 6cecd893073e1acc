"""What the pods of each elastic quota hold together, and whether a further pod may have what it requests.

A pod is charged once, to the quota of its namespace and all quotas above it, from the reservation of its room (for a pod
without a GPU: from just before it is bound) until it has ended. Every figure is updated at once by a change, whatever the
number of pods. Without a quota tree nothing is recorded.
"""

from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from gpushare.api.crd.elastic_quota_tree import QuotaTree
from gpushare.api.request.amounts import Amounts, written


class Over(NamedTuple):
    """A quota that a pod would bring above its max; ``alone``: the pod's request alone exceeds the max."""

    quota: str
    alone: bool


class Charge(NamedTuple):
    """What a pod is charged. ``leaving``: it is terminating. ``bound``: it has a node, and not only a reservation.

    ``on_gpus``: it has, or will have, an allocation of GPUs, so that evicting it may make room there.
    """

    namespace: str
    amounts: Amounts
    leaving: bool = False
    bound: bool = True
    on_gpus: bool = True


class QuotaUsage(NamedTuple):
    """One quota in figures: what its bound pods hold, its min and its max, in thousandths."""

    name: str
    used: dict[str, int]
    min: Amounts
    max: Amounts
    namespaces: tuple[str, ...]


_Sums = Counter[tuple[int, str]]
"""By quota and resource."""


class QuotaBooks:
    """The account of one tree at a time. Not thread-safe."""

    def __init__(self) -> None:
        self.tree: QuotaTree | None = None
        self.changes = 0
        """The number of changes of figures or of the tree."""
        self._charges: dict[str, Charge] = {}
        self._without_quota: set[str] = set()
        self._terminating: set[str] = set()
        self._set_up(0)

    def _set_up(self, quotas: int) -> None:
        self._held, self._leaving, self._bound = _Sums(), _Sums(), _Sums()
        self._uids: list[set[str]] = [set() for _ in range(quotas)]
        self._non_gpu_uids: list[set[str]] = [set() for _ in range(quotas)]

    def set_tree(self, tree: QuotaTree | None) -> None:
        """Count by ``tree`` from now on, starting empty: the caller charges all pods again."""
        self.tree = tree
        self.changes += 1
        self._charges.clear()
        self._without_quota.clear()
        self._terminating.clear()
        self._set_up(0 if tree is None else len(tree.quotas))

    # --- charges ----------------------------------------------------------------------------------

    def charge(self, uid: str, charge: Charge | None) -> None:
        """Set what the pod is charged; ``None``: nothing."""
        tree = self.tree
        if tree is None:
            return
        self._without_quota.discard(uid)
        if charge is not None and charge.namespace not in tree.leaf_of:
            if charge.on_gpus:
                self._without_quota.add(uid)
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
        all_sums = [self._held]
        if charge.leaving:
            all_sums.append(self._leaving)
            if charge.on_gpus:
                (self._terminating.add if step > 0 else self._terminating.discard)(uid)
        if charge.bound:
            all_sums.append(self._bound)
        for place in path:
            for resource, amount in charge.amounts.items():
                for sums in all_sums:
                    sums[place, resource] += step * amount
        uids = (self._uids if charge.on_gpus else self._non_gpu_uids)[leaf]
        if step > 0:
            uids.add(uid)
        else:
            uids.discard(uid)

    def charged(self, uid: str) -> Charge | None:
        """What the pod is charged."""
        return self._charges.get(uid)

    def charged_to(self, leaf: int) -> Set[str]:
        """UIDs of all pods on GPUs that are charged to the quota ``leaf``; a live set, not to be stored."""
        return self._uids[leaf]

    def non_gpu_pods(self, leaf: int) -> Set[str]:
        """UIDs of all pods without a GPU that are charged to it; a live set, not to be stored."""
        return self._non_gpu_uids[leaf]

    def of_no_quota(self) -> Set[str]:
        """UIDs of the pods on GPUs whose namespaces have no quota; a live set, not to be stored."""
        return self._without_quota

    def terminating(self) -> Set[str]:
        """UIDs of the charged pods on GPUs that are terminating; a live set, not to be stored."""
        return self._terminating

    # --- figures ----------------------------------------------------------------------------------

    def leaf(self, namespace: str) -> int | None:
        """The number of a namespace's quota; ``None`` if it has none."""
        return None if self.tree is None else self.tree.leaf_of.get(namespace)

    def held(self, place: int, resource: str, *, but: str = "") -> int:
        """What the pods of a quota hold, without the pod ``but``."""
        return self._held[place, resource] - self._own(place, resource, but)

    def staying(self, place: int, resource: str, *, but: str = "") -> int:
        """The same without terminating pods."""
        return self.held(place, resource, but=but) - self._leaving[place, resource]

    def _own(self, place: int, resource: str, uid: str) -> int:
        own = self._charges.get(uid)
        if own is None:
            return 0
        assert self.tree is not None
        counted = place in self.tree.path(self.tree.leaf_of[own.namespace])
        return own.amounts.get(resource, 0) if counted else 0

    def refusal(self, uid: str, namespace: str, amounts: Amounts) -> str:
        """Why a pod may not have ``amounts`` now, for people: the quota that would exceed its max. Empty: it may."""
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
                        f"{written(resource, most)} {resource} used (max), {written(resource, amount)} requested"
                    )
        return ""

    def over(self, uid: str, namespace: str, amounts: Amounts) -> list[Over]:
        """Every quota that would exceed its max, that of the namespace first, and whether ``amounts`` alone do so."""
        tree, leaf = self.tree, self.leaf(namespace)
        exceeded: list[Over] = []
        for place in () if tree is None or leaf is None else tree.path(leaf):
            assert tree is not None
            most = tree.quotas[place].max
            resources = [
                resource
                for resource, amount in amounts.items()
                if amount
                and resource in most
                and self.held(place, resource, but=uid) + amount > most[resource]
            ]
            if resources:
                alone = any(amounts[resource] > most[resource] for resource in resources)
                exceeded.append(Over(self.name_of(place), alone))
        return exceeded

    def name_of(self, place: int) -> str:
        """A quota's name after those of the quotas above it: ``root/a/a1``."""
        assert self.tree is not None
        return "/".join(self.tree.quotas[ancestor].name for ancestor in reversed(self.tree.path(place)))

    def usage(self) -> list[QuotaUsage]:
        """Every quota in figures, the root first; with the resources that it names and those of the tree that its pods hold."""
        tree = self.tree
        if tree is None:
            return []
        return [
            QuotaUsage(
                quota.name,
                {resource: self._bound[place, resource] for resource in sorted(tree.resources)},
                quota.min,
                quota.max,
                quota.namespaces,
            )
            for place, quota in enumerate(tree.quotas)
        ]


def below(path: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The part of ``path`` below its junction with ``other``."""
    shared = set(other)
    return tuple(place for place in path if place not in shared)
