"""Scores of nodes by rank: the order counts, not the distance."""

from typing import Final

import numpy as np

from gpushare.ledger.arrays import Ints
from gpushare.ledger.fit.single_gpu import FAR

#: The highest score that kube-scheduler accepts from an extender.
MAX_SCORE: Final = 10
#: One of this many nodes is sampled to estimate where the best are.
_SAMPLED: Final = 64
#: How many of the sampled nodes are assumed to be the best at first.
_BEST_SAMPLED: Final = 3
#: Up to this many values are sorted instead of searched repeatedly.
_SORTED: Final = 512

#: By the number of steps below the best (at most ``MAX_SCORE``) and a node's own step; the last column is far below.
_POINTS: Final = np.array(
    [
        [MAX_SCORE - -(-MAX_SCORE * step // max(steps, 1)) for step in range(steps + 1)]
        + [0] * (MAX_SCORE + 1 - steps)
        for steps in range(MAX_SCORE + 1)
    ],
    np.int64,
)


def ranks(worth: Ints) -> Ints:
    """0 to 10 for each node: 10 where ``worth`` is least, evenly less for each next value, 0 for the last, or the eleventh.

    By rank, not by amount: an outlier must not make all other nodes look alike, and a small difference must not weigh less
    than what kube-scheduler's own plugins make of two nodes. ``FAR``: 0.
    """
    scores = np.zeros(worth.size, np.int64)
    levels = _least(worth)
    if levels:
        at = (worth <= levels[-1]).nonzero()[0]
        scores[at] = _POINTS[len(levels) - 1].take(np.array(levels).searchsorted(worth[at]))
    return scores


def ranks_in_turn(*worths: Ints) -> Ints:
    """The same, ordered by the first array, then the second; ``FAR`` in the last one: 0."""
    order = np.lexsort(worths[::-1])
    steps = np.zeros(order.size, np.int64)
    for worth in worths:
        by_worth = worth[order]
        steps[1:] |= by_worth[1:] != by_worth[:-1]
    # Only nodes where the request fits make steps.
    fits = (worths[-1] != FAR)[order]
    steps = np.minimum((steps & fits).cumsum(), MAX_SCORE + 1)
    last = min(int(steps[-1]), MAX_SCORE) if steps.size else 0
    scores = np.empty(order.size, np.int64)
    scores[order] = _POINTS[last].take(np.where(fits, steps, MAX_SCORE + 1))
    return scores


def first_of_best(*worths: Ints) -> int:
    """The position of the first node that ``ranks_in_turn`` scores highest, without scoring the others; at least one is required."""
    first, *others = worths
    places = (first == first.min()).nonzero()[0]
    for worth in others:
        values = worth[places]
        places = places[values == values.min()]
    return int(places[0])


def _least(worth: Ints) -> list[int]:
    """The least distinct values, as many as get different scores; ``FAR`` is not one."""
    least_values: list[int] = []
    if worth.size > _SAMPLED * _SAMPLED:
        estimate = int(np.sort(worth[::_SAMPLED])[_BEST_SAMPLED])
        _add_least(worth[worth <= estimate], least_values)
        if len(least_values) <= MAX_SCORE:
            _add_least(worth[worth > estimate], least_values)
    else:
        _add_least(worth, least_values)
    return least_values


def _add_least(worth: Ints, least_values: list[int]) -> None:
    if worth.size <= _SORTED:
        worth = np.sort(worth)
        is_new = np.ones(worth.size, np.bool_)
        np.not_equal(worth[1:], worth[:-1], out=is_new[1:])
        is_new &= worth < FAR
        least_values += worth[is_new][: MAX_SCORE + 1 - len(least_values)].tolist()
        return
    # Many values, but few distinct ones: each pass removes one of them.
    while worth.size and len(least_values) <= MAX_SCORE:
        least = int(worth.min())
        if least >= FAR:
            break
        least_values.append(least)
        worth = worth[worth != least]
