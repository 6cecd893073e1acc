"""Which pods a pending pod may have evicted for its quota, so that every guarantee is kept.

A guarantee is a quota's ``min``. A pod whose quota stays within its ``min`` may have pods evicted that hold what their
quotas only borrowed, whatever their priority. Within one quota priorities decide, as without quotas. No pod is evicted whose
quota would fall below its ``min``. In a tree this applies to all quotas below the junction of the two paths: what siblings
lend each other is their own affair.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from gpushare.api.crd.elastic_quota_tree import GPU_RESOURCES
from gpushare.api.request.amounts import Amounts
from gpushare.ledger.quota.accounting import Charge, QuotaBooks, below


class Rule(Protocol):
    """What matters, apart from free resources, when pods are evicted for another."""

    @property
    def short(self) -> bool:
        """Whether an eviction is needed even if there is room."""
        return False

    def together(self, must: Collection[str], may: Sequence[str]) -> list[str] | None:
        """Which of ``may``, in order of preference, may be evicted together with all of ``must``; ``None``: ``must`` may not."""
        return list(may)

    def enough(self, gone: Collection[str]) -> bool:
        """Whether the pod may have its room once ``gone`` have ended."""
        return True


class NoRule(Rule):
    """Only room counts: the answers are those of ``Rule``."""


class _Leaf(NamedTuple):
    """What a claim needs to know of a quota with namespaces, valid until a figure changes."""

    path: tuple[int, ...]
    is_own: bool
    is_owing: bool
    """Whether its pods may be evicted whatever their priority, because the claimant reclaims within its ``min``."""
    spare: tuple[tuple[int, str, int], ...]
    """For each ``min`` to be kept: quota, resource, and how much is held above the ``min``."""

    def can_spare(self, charge: Charge) -> bool:
        """Whether the pod with this charge may be evicted on its own."""
        amount_of = charge.amounts.get
        for _, resource, available in self.spare:
            amount = amount_of(resource)
            if amount and amount > available:
                return False
        return True


class _Gone(dict[tuple[int, str], int]):
    """What the evicted pods free together, by quota and resource."""

    def add(self, leaf: _Leaf, charge: Charge) -> bool:
        """Add the pod with this charge, if it may be evicted in addition; returns whether it was added."""
        amounts = charge.amounts
        counted: list[tuple[tuple[int, str], int]] = []
        for place, resource, available in leaf.spare:
            amount = amounts.get(resource)
            if amount:
                freed = self.get((place, resource), 0) + amount
                if freed > available:
                    return False
                counted.append(((place, resource), freed))
        # Only what counts against a ``min`` is looked up later: the rest need not be counted.
        self.update(counted)
        return True


class Claim:
    """What the quotas of ``books`` allow the pod ``uid`` in ``namespace``, which requests ``amounts``.

    Valid until another tree is in force; figures are those at the time of a call.
    """

    def __init__(self, books: QuotaBooks, uid: str, namespace: str, amounts: Amounts) -> None:
        self._books = books
        self._uid = uid
        self._amounts = amounts
        self._on_gpus = any(amounts.get(resource) for resource in GPU_RESOURCES)
        leaf = books.leaf(namespace)
        self._path = () if books.tree is None or leaf is None else books.tree.path(leaf)
        # Of hundreds of pods that are examined in a row most are of the same few quotas.
        self._seen_changes = -1
        self._leaves: dict[int, _Leaf] = {}
        self._by_namespace: dict[str, _Leaf] = {}
        self._is_short = False

    def _refresh(self) -> None:
        """Drop what was computed from earlier figures."""
        self._seen_changes = self._books.changes
        self._leaves.clear()
        self._by_namespace.clear()
        self._is_short = not all(self._fits(place, ()) for place in self._path)

    # --- single pods -------------------------------------------------------------------------------

    def may_evict(self, uid: str, *, lesser: bool) -> bool:
        """Whether the pod ``uid`` alone may be evicted; ``lesser``: it is less important than the pending pod."""
        charge = self._books.charged(uid)
        if charge is None:
            return lesser
        if charge.leaving:
            return True
        leaf = self._leaf_of(charge)
        if leaf.is_own:
            return lesser
        allowed = leaf.is_owing if self._path else lesser
        return allowed and leaf.can_spare(charge)

    def is_terminating(self, uid: str) -> bool:
        """Whether the pod is terminating, as far as quotas know."""
        charge = self._books.charged(uid)
        return charge is not None and charge.leaving

    def _leaf_of(self, charge: Charge) -> _Leaf:
        if self._seen_changes != self._books.changes:
            self._refresh()
        leaf = self._by_namespace.get(charge.namespace)
        if leaf is None:
            place = self._books.leaf(charge.namespace)
            assert place is not None, "who is charged has a quota"
            leaf = self._by_namespace[charge.namespace] = self._leaf_at(place)
        return leaf

    def _leaf_at(self, place: int) -> _Leaf:
        if self._seen_changes != self._books.changes:
            self._refresh()
        return self._leaves.get(place) or self._examine(place)

    def _examine(self, place: int) -> _Leaf:
        tree = self._books.tree
        assert tree is not None
        spare = tuple(
            (above, resource, self._books.staying(above, resource, but=self._uid) - least)
            for above in self._guaranteed_quotas(place)
            for resource, least in tree.quotas[above].min.items()
        )
        is_own = bool(self._path) and place == self._path[0]
        is_owing = bool(self._path) and not is_own and self._is_within_min(place)
        leaf = self._leaves[place] = _Leaf(tree.path(place), is_own, is_owing, spare)
        return leaf

    def _guaranteed_quotas(self, leaf: int) -> tuple[int, ...]:
        """The quotas of another pod, of quota ``leaf``, that must keep their ``min``."""
        assert self._books.tree is not None
        path = self._books.tree.path(leaf)
        # The root's min is the total to be divided, not a guarantee.
        return below(path, self._path) if self._path else path[:-1] or path

    def _is_within_min(self, leaf: int) -> bool:
        """Whether all quotas of the pending pod stay within their ``min``, below their junction with those of ``leaf``.

        A ``min`` of processors alone is no guarantee for a pod that requests GPUs.
        """
        tree = self._books.tree
        assert tree is not None
        guaranteed = False
        for place in below(self._path, tree.path(leaf)):
            for resource, least in tree.quotas[place].min.items():
                amount = self._amounts.get(resource, 0)
                if amount and self._books.staying(place, resource, but=self._uid) + amount > least:
                    return False
                guaranteed |= amount > 0 and (resource in GPU_RESOURCES or not self._on_gpus)
        return guaranteed

    # --- as a rule for plans ----------------------------------------------------------------------

    @property
    def short(self) -> bool:
        """Whether its quotas have too little available."""
        if self._seen_changes != self._books.changes:
            self._refresh()
        return self._is_short

    def enough(self, gone: Collection[str]) -> bool:
        """Whether none of its quotas exceeds its ``max`` once ``gone`` and terminating pods have ended."""
        if not self.short:
            return True
        charges = self._evicted_charges(gone)
        return all(self._fits(place, charges) for place in self._path)

    def _fits(self, place: int, gone: Sequence[Charge]) -> bool:
        return next(self._lacks(place, gone), None) is None

    def _lacks(self, place: int, gone: Sequence[Charge]) -> Iterator[str]:
        tree = self._books.tree
        assert tree is not None
        for resource, most in tree.quotas[place].max.items():
            amount = self._amounts.get(resource, 0)
            if amount:
                freed = self._of_quota(gone, place, resource)
                if self._books.staying(place, resource, but=self._uid) - freed + amount > most:
                    yield resource

    def _of_quota(self, charges: Sequence[Charge], place: int, resource: str) -> int:
        return sum(
            charge.amounts.get(resource, 0) for charge in charges if place in self._leaf_of(charge).path
        )

    def together(self, must: Collection[str], may: Sequence[str]) -> list[str] | None:
        """As in ``Rule``; terminating pods count as gone."""
        gone = _Gone()
        for charge in self._evicted_charges(must):
            leaf = self._leaf_of(charge)
            if not leaf.is_own and not gone.add(leaf, charge):
                return None
        allowed: list[str] = []
        for uid in may:
            charged = self._books.charged(uid)
            if charged is not None and not charged.leaving:
                leaf = self._leaf_of(charged)
                if not leaf.is_own and not gone.add(leaf, charged):
                    continue
            allowed.append(uid)
        return allowed

    def _evicted_charges(self, uids: Collection[str]) -> list[Charge]:
        """The charges of those pods that are not terminating yet."""
        charges = map(self._books.charged, uids)
        return [charge for charge in charges if charge is not None and not charge.leaving]

    # --- candidates ----------------------------------------------------------------------------

    def reach(self, most: int) -> tuple[list[str], list[str]] | None:
        """UIDs of all pods that ``may_evict`` allows if they are less important, and of those that it allows in any case.

        ``None`` if more than ``most`` pods would have to be examined: there may be hundreds of thousands.
        """
        tree = self._books.tree
        assert tree is not None
        free, terminating = self._books.of_no_quota(), self._books.terminating()
        own = set(self._path[:1])
        lending = [
            leaf
            for leaf in set(tree.leaf_of.values()) - own
            if not self._path or self._leaf_at(leaf).is_owing
        ]
        leaves = [*own, *lending]
        if len(free) + len(terminating) + sum(len(self._books.charged_to(leaf)) for leaf in leaves) > most:
            return None
        lesser = [*free, *(uid for leaf in own for uid in self._books.charged_to(leaf))]
        lent = [uid for leaf in lending for uid in self._to_spare(leaf)]
        return ([*lesser, *lent], [*terminating]) if not self._path else (lesser, [*terminating, *lent])

    def _to_spare(self, place: int) -> list[str]:
        """The pods of a quota that may be evicted one by one."""
        leaf = self._leaf_at(place)
        uids = []
        for uid in self._books.charged_to(place):
            charge = self._books.charged(uid)
            assert charge is not None
            if leaf.can_spare(charge):
                uids.append(uid)
        return uids

    # --- reasons and quotas -----------------------------------------------------------------------

    def passed(self, gone: Collection[str]) -> int | None:
        """The lowest of its quotas that exceeds its ``max`` even if ``gone`` and terminating pods have ended."""
        charges = self._evicted_charges(gone)
        return next((place for place in self._path if not self._fits(place, charges)), None)

    def lacks(self, passed: int, gone: Collection[str]) -> list[str]:
        """The resources of which its quota ``passed`` exceeds its ``max`` even if ``gone`` have ended."""
        return list(self._lacks(passed, self._evicted_charges(gone)))

    def is_charged_for(self, uid: str, resources: Collection[str]) -> bool:
        """Whether the pod is charged any of ``resources``."""
        charge = self._books.charged(uid)
        return charge is not None and any(charge.amounts.get(resource) for resource in resources)

    def relieving(self, passed: int, gone: Collection[str] = ()) -> list[str]:
        """UIDs of the pods some of which have to be evicted for its quota ``passed`` to stay below its ``max``; ``gone`` have ended.

        Pods without a GPU are included if their resources are lacking.
        """
        tree = self._books.tree
        assert tree is not None
        lacking = self.lacks(passed, gone)
        kinds = (
            (self._books.charged_to,)
            if set(lacking) <= set(GPU_RESOURCES)
            else (self._books.charged_to, self._books.non_gpu_pods)
        )
        leaves = {quota for quota in tree.leaf_of.values() if passed in tree.path(quota)}
        return [
            uid
            for leaf in sorted(leaves)
            if leaf == self._path[0] or self._leaf_at(leaf).is_owing
            for uids in kinds
            for uid in uids(leaf)
            if self.is_charged_for(uid, lacking)
        ]

    def reason(self, uid: str) -> str:
        """Why it may have the pod ``uid`` evicted, if not by priority; else empty."""
        charge = self._books.charged(uid)
        if charge is None or not self._path or self._leaf_of(charge).is_own:
            return ""
        return (
            f"elastic quota {self._books.name_of(self._path[0])} reclaims, within its min, what "
            f"{self._books.name_of(self._leaf_of(charge).path[0])} borrowed"
        )
