"""Which bound pods may be evicted for another pod, and in which order."""

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

from gpushare.ledger.preemption.victims import Rank, RankFn
from gpushare.ledger.priorities import ANY
from gpushare.ledger.quota.reclaim import Claim
from gpushare.scheduler.cache.cache import ClusterCache

#: Most pods examined one by one to learn on which nodes a quota may reclaim something; takes some ten milliseconds.
_MOST_REACHED: Final = 8192


def lesser(
    cache: ClusterCache,
    priority: int,
    guarded: Collection[str] = (),
    claim: Claim | None = None,
    spared: Collection[str] = (),
) -> RankFn:
    """Ranks the bound pods that may be evicted for a pod of ``priority``.

    ``guarded`` pods (UIDs) may not be evicted, ``spared`` ones only as a last resort. Without a ``claim``, pods of lower priority may be
    evicted; with one, the claim decides. Of pods that are already being deleted, those that leave soon always have a rank, the others never.
    """

    def rank(uid: str) -> Rank | None:
        record = cache.bound.get(uid)
        if record is None:
            record = cache.bound_non_gpu.get(uid)
            if record is None or not record.ours:
                return None  # its replacement would be bound at once, whatever its quota says
        if uid in guarded:
            return None
        if cache.lingers(uid):
            return None
        may_be_evicted, leaving = record.priority < priority, cache.leaves_soon(uid)
        if claim is not None:
            leaving = leaving or claim.is_terminating(uid)
            may_be_evicted = leaving or claim.may_evict(uid, lesser=may_be_evicted)
        if not may_be_evicted and not leaving:
            return None
        return Rank(record.priority, _creation_number(record.created), leaving, uid in spared)

    return rank


def reach(
    cache: ClusterCache, priority: int, claim: Claim | None, forced: Iterable[str] = ()
) -> int | dict[str, int]:
    """The priority below which ``lesser`` allows evictions: one for all nodes or, with a ``claim``, by node.

    With a claim, pods of equal or higher priority may be evicted too, and none at all on many nodes. ``forced`` pods (UIDs) are evicted
    in any case. If a claim reaches more than ``_MOST_REACHED`` pods, the result allows all pods on all nodes.
    """
    if claim is None:
        return priority
    reachable = claim.reach(_MOST_REACHED)
    if reachable is None:
        return ANY
    lower_priority, others = reachable
    limits: dict[str, int] = {}
    for uids, limit in ((lower_priority, priority), ((*others, *forced), ANY)):
        limits.update((record.node, limit) for uid in uids if (record := cache.bound.get(uid)) is not None)
    return limits


@lru_cache(maxsize=16384)
def _creation_number(created: str) -> int:
    """A number that grows with the creation time."""
    return int("".join(filter(str.isdecimal, created[:19])) or 0)
