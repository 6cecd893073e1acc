"""Points for nodes by their rank: which is the best counts, not by how much."""

from typing import Final

import numpy as np

from gpushare.ledger.arrays import Ints
from gpushare.ledger.fit.single_gpu import FAR

#: What kube-scheduler takes from an extender at most.
MAX_SCORE: Final = 10
#: Of so many nodes one is looked at to know which few are the best.
_SAMPLED: Final = 64
#: How many of those looked at are taken for the best at first.
_BEST_SAMPLED: Final = 3
#: So many are sorted rather than looked through.
_SORTED: Final = 512

#: By how many steps there are below the best (at most as many as points), and by how many steps a node is below it; last, far below.
_POINTS: Final = np.array(
    [
        [MAX_SCORE - -(-MAX_SCORE * step // max(steps, 1)) for step in range(steps + 1)]
        + [0] * (MAX_SCORE + 1 - steps)
        for steps in range(MAX_SCORE + 1)
    ],
    np.int64,
)


def ranks(worth: Ints) -> Ints:
    """0 to 10 for each node: 10 where ``worth`` is least, and evenly less for each next, down to 0 for the last, or the eleventh.

    By rank, not by amount: one node that stands far out must not make all others look alike, and a small difference must
    not be less than what kube-scheduler's own plugins make of two nodes. ``FAR``: 0.
    """
    found = np.zeros(worth.size, np.int64)
    levels = _least(worth)
    if levels:
        at = (worth <= levels[-1]).nonzero()[0]
        found[at] = _POINTS[len(levels) - 1].take(np.array(levels).searchsorted(worth[at]))
    return found


def ranks_in_turn(*worths: Ints) -> Ints:
    """The same where the first counts before the second; ``FAR`` in the last: 0."""
    order = np.lexsort(worths[::-1])
    steps = np.zeros(order.size, np.int64)
    for worth in worths:
        by_worth = worth[order]
        steps[1:] |= by_worth[1:] != by_worth[:-1]
    # Only what fits makes steps.
    fits = (worths[-1] != FAR)[order]
    steps = np.minimum((steps & fits).cumsum(), MAX_SCORE + 1)
    last = min(int(steps[-1]), MAX_SCORE) if steps.size else 0
    found = np.empty(order.size, np.int64)
    found[order] = _POINTS[last].take(np.where(fits, steps, MAX_SCORE + 1))
    return found


def first_of_best(*worths: Ints) -> int:
    """The place of the first that ``ranks_in_turn`` gives most, without the ranks of all others; there is one at least."""
    first, *others = worths
    places = (first == first.min()).nonzero()[0]
    for worth in others:
        its = worth[places]
        places = places[its == its.min()]
    return int(places[0])


def _least(worth: Ints) -> list[int]:
    """The least different ones, as many as get different points; ``FAR`` is none."""
    found: list[int] = []
    if worth.size > _SAMPLED * _SAMPLED:
        few = int(np.sort(worth[::_SAMPLED])[_BEST_SAMPLED])
        _add_least(worth[worth <= few], found)
        if len(found) <= MAX_SCORE:
            _add_least(worth[worth > few], found)
    else:
        _add_least(worth, found)
    return found


def _add_least(worth: Ints, found: list[int]) -> None:
    if worth.size <= _SORTED:
        worth = np.sort(worth)
        fresh = np.ones(worth.size, np.bool_)
        np.not_equal(worth[1:], worth[:-1], out=fresh[1:])
        fresh &= worth < FAR
        found += worth[fresh][: MAX_SCORE + 1 - len(found)].tolist()
        return
    # Many, which are mostly of few different ones: each look leaves less.
    while worth.size and len(found) <= MAX_SCORE:
        least = int(worth.min())
        if least >= FAR:
            break
        found.append(least)
        worth = worth[worth != least]
