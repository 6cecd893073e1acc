"""Which bound pods may be ended for another, and in which order."""

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

from gpushare.ledger.preemption.victims import Rank, RankFn
from gpushare.ledger.priorities import ANY
from gpushare.ledger.quota.reclaim import Claim
from gpushare.scheduler.cache.cache import ClusterCache

#: Pods that are looked at one by one to know on which nodes a quota may take something back: some ten milliseconds.
_MOST_REACHED: Final = 8192


def lesser(
    cache: ClusterCache,
    priority: int,
    guarded: Collection[str] = (),
    claim: Claim | None = None,
    spared: Collection[str] = (),
) -> RankFn:
    """The ranks of bound pods that may be ended for one of ``priority``; ``guarded`` ones (UIDs) may not, ``spared`` ones as a last resort.

    Without a ``claim`` these are the pods with a lower priority; with one it says who of which priority. Pods that are being deleted
    already count in any case.
    """

    def rank(uid: str) -> Rank | None:
        record = cache.bound.get(uid)
        if record is None:
            record = cache.bound_non_gpu.get(uid)
            if record is None or not record.ours:
                return None  # its successor would be placed at once, whatever its quota says
        if uid in guarded:
            return None
        lower, leaving = record.priority < priority, record.leaving
        if claim is not None:
            leaving = leaving or claim.leaves(uid)
            lower = leaving or claim.may_end(uid, lesser=lower)
        if not lower and not leaving:
            return None
        return Rank(record.priority, _made(record.created), leaving, uid in spared)

    return rank


def reach(
    cache: ClusterCache, priority: int, claim: Claim | None, forced: Iterable[str] = ()
) -> int | dict[str, int]:
    """Below which priority pods may be ended as ``lesser`` has it: on every node, or with a ``claim`` node by node.

    With a claim pods of equal or higher priority may be ended, too, and on many nodes none; ``forced`` ones (UIDs) are. Where
    it reaches very many pods the answer is as if all of them might.
    """
    if claim is None:
        return priority
    found = claim.reach(_MOST_REACHED)
    if found is None:
        return ANY
    lower, others = found
    limits: dict[str, int] = {}
    for uids, limit in ((lower, priority), ((*others, *forced), ANY)):
        limits.update((record.node, limit) for uid in uids if (record := cache.bound.get(uid)) is not None)
    return limits


@lru_cache(maxsize=16384)
def _made(created: str) -> int:
    """A number that grows with the time."""
    return int("".join(filter(str.isdecimal, created[:19])) or 0)
