"""Whom a waiting pod may have ended for its quota's sake, and what of it leaves every guarantee whole.

A guarantee is a quota's ``min``. A pod whose quota stays within its own may have pods ended that hold what their quotas
had only borrowed, whatever their priority; within one quota priorities decide, as without quotas; and nobody is
ended whose quota would fall below its ``min``. In a tree this is asked of all quotas below where the paths of the two
meet: what brothers have lent each other is theirs.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from gpushare.api.crd.elastic_quota_tree import GPU_RESOURCES
from gpushare.api.request.amounts import Amounts
from gpushare.ledger.quota.accounting import Charge, QuotaBooks, below


class Rule(Protocol):
    """What else than room counts when pods are to be ended for another."""

    @property
    def short(self) -> bool:
        """Whether somebody has to go though there is room."""

    def together(self, must: Collection[str], may: Sequence[str]) -> list[str] | None:
        """Which of ``may``, the first first, may end beside all of ``must``; ``None``: those of ``must`` may not."""

    def enough(self, gone: Collection[str]) -> bool:
        """Whether it may have its room once these are gone."""


class NoRule:
    """Room alone counts."""

    short = False

    def together(self, must: Collection[str], may: Sequence[str]) -> list[str] | None:
        """All."""
        return list(may)

    def enough(self, gone: Collection[str]) -> bool:
        """Yes."""
        return True


class _Leaf(NamedTuple):
    """What a claim has to know of a quota with namespaces, as long as no figure changes."""

    path: tuple[int, ...]
    is_own: bool
    is_owing: bool
    """Whether its pods may go whatever their priority, for the claimant takes back within its ``min``."""
    spare: tuple[tuple[int, str, int], ...]
    """Of each ``min`` that must be kept, of which quota, resource and how much is held above it."""

    def lets_go(self, charge: Charge) -> bool:
        """Whether the pod with this charge may go by itself."""
        asked = charge.amounts.get
        for _, resource, left in self.spare:
            amount = asked(resource)
            if amount and amount > left:
                return False
        return True


class _Gone(dict[tuple[int, str], int]):
    """What the quotas lose together, by quota and resource."""

    def lets_go(self, leaf: _Leaf, charge: Charge) -> bool:
        """Whether the pod with this charge may go besides; if so it is counted."""
        amounts = charge.amounts
        counted: list[tuple[tuple[int, str], int]] = []
        for place, resource, left in leaf.spare:
            amount = amounts.get(resource)
            if amount:
                gone = self.get((place, resource), 0) + amount
                if gone > left:
                    return False
                counted.append(((place, resource), gone))
        # Only what must be kept is asked about: the rest need not be counted.
        self.update(counted)
        return True


class Claim:
    """What the quotas of ``books`` say for the pod ``uid``, of ``namespace``, that asks for ``amounts``.

    It is good until another tree is in force; figures are those of the moment at which it is asked.
    """

    def __init__(self, books: QuotaBooks, uid: str, namespace: str, amounts: Amounts) -> None:
        self._books = books
        self._uid = uid
        self._amounts = amounts
        self._on_gpus = any(amounts.get(resource) for resource in GPU_RESOURCES)
        leaf = books.leaf(namespace)
        self._path = () if books.tree is None or leaf is None else books.tree.path(leaf)
        # Of hundreds of pods that are asked about in a row most are of the same few quotas.
        self._seen_at = -1
        self._leaves: dict[int, _Leaf] = {}
        self._by_namespace: dict[str, _Leaf] = {}
        self._is_short = False

    def _look(self) -> None:
        """Forget what was true before figures changed."""
        self._seen_at = self._books.changes
        self._leaves.clear()
        self._by_namespace.clear()
        self._is_short = not all(self._fits(place, ()) for place in self._path)

    # --- one by one -------------------------------------------------------------------------------

    def may_end(self, uid: str, *, lesser: bool) -> bool:
        """Whether the pod ``uid`` alone may be ended; ``lesser``: it is less important than the one that waits."""
        charge = self._books.charged(uid)
        if charge is None:
            return lesser
        if charge.leaving:
            return True
        leaf = self._leaf_of(charge)
        if leaf.is_own:
            return lesser
        allowed = leaf.is_owing if self._path else lesser
        return allowed and leaf.lets_go(charge)

    def leaves(self, uid: str) -> bool:
        """Whether the pod's end was asked for, as far as quotas know."""
        charge = self._books.charged(uid)
        return charge is not None and charge.leaving

    def _leaf_of(self, charge: Charge) -> _Leaf:
        if self._seen_at != self._books.changes:
            self._look()
        known = self._by_namespace.get(charge.namespace)
        if known is None:
            place = self._books.leaf(charge.namespace)
            assert place is not None, "who is charged has a quota"
            known = self._by_namespace[charge.namespace] = self._known(place)
        return known

    def _known(self, place: int) -> _Leaf:
        if self._seen_at != self._books.changes:
            self._look()
        return self._leaves.get(place) or self._look_at(place)

    def _look_at(self, place: int) -> _Leaf:
        tree = self._books.tree
        assert tree is not None
        spare = tuple(
            (above, resource, self._books.staying(above, resource, but=self._uid) - least)
            for above in self._theirs(place)
            for resource, least in tree.quotas[above].min.items()
        )
        is_own = bool(self._path) and place == self._path[0]
        is_owing = bool(self._path) and not is_own and self._is_within_min(place)
        leaf = self._leaves[place] = _Leaf(tree.path(place), is_own, is_owing, spare)
        return leaf

    def _theirs(self, leaf: int) -> tuple[int, ...]:
        """The quotas of another pod, of quota ``leaf``, that must keep their ``min``."""
        assert self._books.tree is not None
        path = self._books.tree.path(leaf)
        # The root's min is what is divided, nobody's guarantee.
        return below(path, self._path) if self._path else path[:-1] or path

    def _is_within_min(self, leaf: int) -> bool:
        """Whether all quotas of the one that waits stay within their ``min``, below where they meet those of ``leaf``.

        A ``min`` of processors alone is no claim of a pod that asks for GPUs.
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
        """Whether its quotas have too little left."""
        if self._seen_at != self._books.changes:
            self._look()
        return self._is_short

    def enough(self, gone: Collection[str]) -> bool:
        """Whether none of its quotas passes its ``max`` once ``gone``, and those that leave already, have ended."""
        if not self.short:
            return True
        charges = self._going(gone)
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
        return sum(one.amounts.get(resource, 0) for one in charges if place in self._leaf_of(one).path)

    def together(self, must: Collection[str], may: Sequence[str]) -> list[str] | None:
        """As ``Rule`` has it: those that leave already count as gone."""
        gone = _Gone()
        for charge in self._going(must):
            leaf = self._leaf_of(charge)
            if not leaf.is_own and not gone.lets_go(leaf, charge):
                return None
        found: list[str] = []
        for uid in may:
            asked = self._books.charged(uid)
            if asked is not None and not asked.leaving:
                leaf = self._leaf_of(asked)
                if not leaf.is_own and not gone.lets_go(leaf, asked):
                    continue
            found.append(uid)
        return found

    def _going(self, uids: Collection[str]) -> list[Charge]:
        """The charges of those that do not leave yet."""
        found = map(self._books.charged, uids)
        return [one for one in found if one is not None and not one.leaving]

    # --- whom it reaches --------------------------------------------------------------------------

    def reach(self, most: int) -> tuple[list[str], list[str]] | None:
        """UIDs of all that ``may_end`` allows if they are less important, and of all that it allows whatever they are.

        ``None`` where more than ``most`` would have to be looked at for it: there may be pods by the hundred thousand.
        """
        tree = self._books.tree
        assert tree is not None
        free, leavers = self._books.of_no_quota(), self._books.leavers()
        own = set(self._path[:1])
        lending = [
            leaf for leaf in set(tree.leaf_of.values()) - own if not self._path or self._known(leaf).is_owing
        ]
        leaves = [*own, *lending]
        if len(free) + len(leavers) + sum(len(self._books.charged_to(one)) for one in leaves) > most:
            return None
        lesser = [*free, *(uid for leaf in own for uid in self._books.charged_to(leaf))]
        lent = [uid for leaf in lending for uid in self._to_spare(leaf)]
        return ([*lesser, *lent], [*leavers]) if not self._path else (lesser, [*leavers, *lent])

    def _to_spare(self, place: int) -> list[str]:
        """Those of a quota's pods that may go one by one."""
        leaf = self._known(place)
        found = []
        for uid in self._books.charged_to(place):
            charge = self._books.charged(uid)
            assert charge is not None
            if leaf.lets_go(charge):
                found.append(uid)
        return found

    # --- in words and places ----------------------------------------------------------------------

    def passed(self, gone: Collection[str]) -> int | None:
        """The lowest of its quotas that passes its ``max`` though ``gone``, and those that leave already, have ended."""
        charges = self._going(gone)
        return next((place for place in self._path if not self._fits(place, charges)), None)

    def lacks(self, passed: int, gone: Collection[str]) -> list[str]:
        """Of which resources its quota ``passed`` passes its ``max`` though ``gone`` have ended."""
        return list(self._lacks(passed, self._going(gone)))

    def asks_for(self, uid: str, resources: Collection[str]) -> bool:
        """Whether the pod is charged any of ``resources``."""
        charge = self._books.charged(uid)
        return charge is not None and any(charge.amounts.get(resource) for resource in resources)

    def relieving(self, passed: int, gone: Collection[str] = ()) -> list[str]:
        """UIDs of the pods of which some have to go for its quota ``passed`` to stay below its ``max``; ``gone`` have ended.

        Pods without a GPU are among them where the sum lacks what these ask for.
        """
        tree = self._books.tree
        assert tree is not None
        lacking = self.lacks(passed, gone)
        kinds = (
            (self._books.charged_to,)
            if set(lacking) <= set(GPU_RESOURCES)
            else (self._books.charged_to, self._books.besides)
        )
        leaves = {quota for quota in tree.leaf_of.values() if passed in tree.path(quota)}
        return [
            uid
            for leaf in sorted(leaves)
            if leaf == self._path[0] or self._known(leaf).is_owing
            for uids in kinds
            for uid in uids(leaf)
            if self.asks_for(uid, lacking)
        ]

    def words(self, uid: str) -> str:
        """Why it may have the pod ``uid`` ended, where not for its priority; empty where for that."""
        charge = self._books.charged(uid)
        if charge is None or not self._path or self._leaf_of(charge).is_own:
            return ""
        return (
            f"elastic quota {self._books.name_of(self._path[0])} takes back within its min what "
            f"{self._books.name_of(self._leaf_of(charge).path[0])} had borrowed"
        )
