"""Who ends so that no quota of a waiting pod is above its max, wherever that is: the fewest and least important that may go together.

For a pod for which there is room, or will be on another node than theirs. Quotas ask for no GPU: what they lack is a sum.
"""

from collections.abc import Collection
from typing import Final

from gpushare.ledger.preemption.victims import Rank, RankFn
from gpushare.ledger.quota.reclaim import Claim

#: Who would have more pods ended than this for its sum has none: one that asks for so much was meant otherwise.
MOST_ENDED: Final = 64
#: Pods of the quotas that are full, of which some could end, that are looked at one by one: some ten milliseconds.
MOST_LOOKED_AT: Final = 8192


def relief(claim: Claim, rank: RankFn, ended: Collection[str] = ()) -> tuple[str, ...] | None:
    """UIDs, the most important first; ``None`` where no ends that are allowed are enough. ``ended`` end in any case.

    Of pods that may go (``rank`` as in ``ledger.preemption.victims``) the least important first; then those that were not needed stay.
    """
    gone: dict[str, Rank] = {}
    while (place := claim.passed((*ended, *gone))) is not None:
        relieving = claim.relieving(place, (*ended, *gone))
        if len(relieving) > MOST_LOOKED_AT:
            return None
        found = {
            uid: one
            for uid in relieving
            if uid not in gone and uid not in ended and (one := rank(uid)) is not None and not one.leaving
        }
        before = len(gone)
        lacking = claim.lacks(place, (*ended, *gone))
        for uid in sorted(found, key=lambda uid: _worth(uid, found[uid])):
            if claim.asks_for(uid, lacking) and claim.together((*ended, *gone), (uid,)):
                gone[uid] = found[uid]
                if len(gone) > MOST_ENDED:
                    return None
                lacking = claim.lacks(place, (*ended, *gone))
                if not lacking:
                    break
        if len(gone) == before:
            return None
    for uid in sorted(gone, key=lambda uid: _worth(uid, gone[uid]), reverse=True):
        if claim.enough([*ended, *(one for one in gone if one != uid)]):
            del gone[uid]
    return tuple(sorted(gone, key=lambda uid: _worth(uid, gone[uid]), reverse=True))


def _worth(uid: str, one: Rank) -> tuple[bool, int, int, str]:
    """Grows with how much a pod counts; of equals the one that is there for longest has most to lose."""
    return one.guarded, one.priority, -one.made, uid
