"""Whom a waiting pod may have ended for its quota's sake, and what of it leaves every guarantee whole.

A guarantee is a quota's ``min``. A pod whose quota stays within its own may have pods ended that hold what their quotas
had only borrowed, whatever their priority; within one quota priorities decide, as without quotas; and nobody is
ended whose quota would fall below its ``min``. In a tree this is asked of all quotas below where the paths of the two
meet: what brothers have lent each other is theirs.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from gpushare.ledger.quota import Charge, QuotaBooks, below
from gpushare.model.amounts import type_of_amounts
from gpushare.model.quota_tree import GIVEN


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


class Claim:
    """What the quotas of ``books`` say for the pod ``uid``, of ``namespace``, that asks for ``amounts``.

    It is good until another tree is in force; figures are those of the moment at which it is asked.
    """

    def __init__(self, books: QuotaBooks, uid: str, namespace: str, amounts: type_of_amounts) -> None:
        self._books = books
        self._uid = uid
        self._amounts = amounts
        leaf = books.leaf(namespace)
        self._path = () if books.tree is None or leaf is None else books.tree.path(leaf)

    # --- one by one -------------------------------------------------------------------------------

    def may_end(self, uid: str, *, lesser: bool) -> bool:
        """Whether the pod ``uid`` alone may be ended; ``lesser``: it is less important than the one that waits."""
        charge = self._books.charged(uid)
        if charge is None:
            return lesser
        if charge.leaving:
            return True
        if self._is_own(charge):
            return lesser
        allowed = self._is_within_min(self._leaf_of(charge)) if self._path else lesser
        return allowed and self._spared([], charge)

    def leaves(self, uid: str) -> bool:
        """Whether the pod's end was asked for, as far as quotas know."""
        charge = self._books.charged(uid)
        return charge is not None and charge.leaving

    def _leaf_of(self, charge: Charge) -> int:
        leaf = self._books.leaf(charge.namespace)
        assert leaf is not None, "who is charged has a quota"
        return leaf

    def _is_own(self, charge: Charge) -> bool:
        return bool(self._path) and self._leaf_of(charge) == self._path[0]

    def _theirs(self, leaf: int) -> tuple[int, ...]:
        """The quotas of another pod, of quota ``leaf``, that must keep their ``min``."""
        assert self._books.tree is not None
        path = self._books.tree.path(leaf)
        # The root's min is what is divided, nobody's guarantee.
        return below(path, self._path) if self._path else path[:-1] or path

    def _is_within_min(self, leaf: int) -> bool:
        """Whether all quotas of the one that waits stay within their ``min``, below where they meet those of ``leaf``.

        A ``min`` of processors alone is no claim on a GPU.
        """
        tree = self._books.tree
        assert tree is not None
        guaranteed = False
        for place in below(self._path, tree.path(leaf)):
            for resource, least in tree.quotas[place].min.items():
                amount = self._amounts.get(resource, 0)
                if amount and self._books.staying(place, resource, but=self._uid) + amount > least:
                    return False
                guaranteed |= amount > 0 and resource in GIVEN
        return guaranteed

    def _spared(self, others: Sequence[Charge], charge: Charge) -> bool:
        """Whether ``charge`` may go besides ``others``: its quotas keep their ``min``."""
        tree = self._books.tree
        assert tree is not None
        for place in self._theirs(self._leaf_of(charge)):
            for resource, least in tree.quotas[place].min.items():
                amount = charge.amounts.get(resource, 0)
                if amount:
                    gone = self._of_quota(others, place, resource) + amount
                    if self._books.staying(place, resource, but=self._uid) - gone < least:
                        return False
        return True

    # --- as a rule for plans ----------------------------------------------------------------------

    @property
    def short(self) -> bool:
        """Whether its quotas have too little left."""
        return not self.enough(())

    def enough(self, gone: Collection[str]) -> bool:
        """Whether none of its quotas passes its ``max`` once ``gone``, and those that leave already, have ended."""
        charges = self._going(gone)
        return all(self._fits(place, charges) for place in self._path)

    def _fits(self, place: int, gone: Sequence[Charge]) -> bool:
        tree = self._books.tree
        assert tree is not None
        for resource, most in tree.quotas[place].max.items():
            amount = self._amounts.get(resource, 0)
            if amount:
                freed = self._of_quota(gone, place, resource)
                if self._books.staying(place, resource, but=self._uid) - freed + amount > most:
                    return False
        return True

    def _of_quota(self, charges: Sequence[Charge], place: int, resource: str) -> int:
        tree = self._books.tree
        assert tree is not None
        return sum(
            one.amounts.get(resource, 0) for one in charges if place in tree.path(tree.leaf_of[one.namespace])
        )

    def together(self, must: Collection[str], may: Sequence[str]) -> list[str] | None:
        """As ``Rule`` has it: those that leave already count as gone."""
        others: list[Charge] = []
        for charge in self._going(must):
            if not self._is_own(charge):
                if not self._spared(others, charge):
                    return None
                others.append(charge)
        found: list[str] = []
        for uid in may:
            asked = self._books.charged(uid)
            if asked is not None and not asked.leaving and not self._is_own(asked):
                if not self._spared(others, asked):
                    continue
                others.append(asked)
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
            leaf for leaf in set(tree.leaf_of.values()) - own if not self._path or self._is_within_min(leaf)
        ]
        leaves = [*own, *lending]
        if len(free) + len(leavers) + sum(len(self._books.charged_to(one)) for one in leaves) > most:
            return None
        lesser = [*free, *(uid for leaf in own for uid in self._books.charged_to(leaf))]
        lent = [uid for leaf in lending for uid in self._to_spare(leaf)]
        return ([*lesser, *lent], [*leavers]) if not self._path else (lesser, [*leavers, *lent])

    def _to_spare(self, leaf: int) -> list[str]:
        """Those of a quota's pods that may go one by one."""
        spare: dict[str, int] = {}
        tree = self._books.tree
        assert tree is not None
        for place in self._theirs(leaf):
            for resource, least in tree.quotas[place].min.items():
                left = self._books.staying(place, resource, but=self._uid) - least
                spare[resource] = min(left, spare.get(resource, left))
        found = []
        for uid in self._books.charged_to(leaf):
            charge = self._books.charged(uid)
            assert charge is not None
            if all(not (asked := charge.amounts.get(one)) or asked <= left for one, left in spare.items()):
                found.append(uid)
        return found

    # --- in words and places ----------------------------------------------------------------------

    def relieving(self) -> list[str]:
        """UIDs of the pods of which some have to go for its quotas to stay below their ``max``; where it is ``short``."""
        tree = self._books.tree
        assert tree is not None
        passed = next(place for place in self._path if not self._fits(place, ()))
        leaves = {quota for quota in tree.leaf_of.values() if passed in tree.path(quota)}
        return [
            uid
            for leaf in sorted(leaves)
            if leaf == self._path[0] or self._is_within_min(leaf)
            for uid in self._books.charged_to(leaf)
        ]

    def words(self, uid: str) -> str:
        """Why it may have the pod ``uid`` ended, where not for its priority; empty where for that."""
        charge = self._books.charged(uid)
        if charge is None or not self._path or self._is_own(charge):
            return ""
        return (
            f"elastic quota {self._books.name_of(self._path[0])} takes back within its min what "
            f"{self._books.name_of(self._leaf_of(charge))} had borrowed"
        )
