"""The fewest and least important victims, on any node, that bring all quotas of a pending pod within their max.

For a pod that has room, or will have it on another node than the victims'. Quotas know no GPUs: what is lacking is a sum.
"""

from collections.abc import Collection
from typing import Final

from gpushare.ledger.preemption.victims import Rank, RankFn
from gpushare.ledger.quota.reclaim import Claim

#: A pod that would need more victims than this for the sum gets none: such a request is probably a mistake.
MAX_VICTIMS: Final = 64
#: Pods of full quotas that are examined one by one: about ten milliseconds.
MOST_LOOKED_AT: Final = 8192


def relief(claim: Claim, rank: RankFn, ended: Collection[str] = ()) -> tuple[str, ...] | None:
    """UIDs, the most important first; ``None`` if no allowed evictions are enough. ``ended`` are evicted in any case.

    Takes the least important pods first (``rank`` as in ``ledger.preemption.victims``), then drops those that were not needed.
    """
    victims: dict[str, Rank] = {}
    while (quota := claim.passed((*ended, *victims))) is not None:
        relieving = claim.relieving(quota, (*ended, *victims))
        if len(relieving) > MOST_LOOKED_AT:
            return None
        ranks = {
            uid: uid_rank
            for uid in relieving
            if uid not in victims
            and uid not in ended
            and (uid_rank := rank(uid)) is not None
            and not uid_rank.leaving
        }
        before = len(victims)
        lacking = claim.lacks(quota, (*ended, *victims))
        for uid in sorted(ranks, key=lambda uid: _worth(uid, ranks[uid])):
            if claim.is_charged_for(uid, lacking) and claim.together((*ended, *victims), (uid,)):
                victims[uid] = ranks[uid]
                if len(victims) > MAX_VICTIMS:
                    return None
                lacking = claim.lacks(quota, (*ended, *victims))
                if not lacking:
                    break
        if len(victims) == before:
            return None
    for uid in sorted(victims, key=lambda uid: _worth(uid, victims[uid]), reverse=True):
        if claim.enough([*ended, *(other for other in victims if other != uid)]):
            del victims[uid]
    return tuple(sorted(victims, key=lambda uid: _worth(uid, victims[uid]), reverse=True))


def _worth(uid: str, rank: Rank) -> tuple[bool, int, int, str]:
    """Grows with the pod's importance; of equal pods the oldest has most to lose."""
    return rank.guarded, rank.priority, -rank.made, uid
