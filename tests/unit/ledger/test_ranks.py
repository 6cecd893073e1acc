"""Points by rank: the best has the most, the next less, and small differences are not lost."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.ledger.fit.single_gpu import FAR
from gpushare.ledger.placement import ranks as ranks_module
from gpushare.ledger.placement.ranks import first_of_best, ranks, ranks_in_turn

quick = settings(max_examples=150, deadline=None)
amounts = st.lists(st.one_of(st.integers(0, 8), st.integers(0, 1 << 50), st.just(FAR)), max_size=60)


def by_hand(worths: list[int]) -> list[int]:
    order = sorted({worth for worth in worths if worth != FAR})
    steps = min(max(len(order) - 1, 1), 10)
    return [0 if worth == FAR else max(10 - ceil(10 * order.index(worth) / steps), 0) for worth in worths]


@pytest.mark.parametrize(
    ("count", "points"),
    [
        (1, [10]),
        (2, [10, 0]),
        (3, [10, 5, 0]),
        (4, [10, 6, 3, 0]),
        (11, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        (14, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0]),
    ],
)
def test_the_best_is_ahead_of_all_others_and_the_range_of_points_is_used(
    count: int, points: list[int]
) -> None:
    assert ranks(np.arange(count)).tolist() == points


@given(worths=amounts)
@quick
def test_few_nodes_are_ranked_as_by_hand(worths: list[int]) -> None:
    assert ranks(np.array(worths, np.int64)).tolist() == by_hand(worths)


@given(worths=amounts)
@quick
def test_many_nodes_are_ranked_as_by_hand(worths: list[int]) -> None:
    """Of many nodes a sample is ranked first."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ranks_module, "_SAMPLED", 4)
        monkeypatch.setattr(ranks_module, "_SORTED", 8)
        assert ranks(np.array(worths, np.int64)).tolist() == by_hand(worths)


@given(
    worths=st.lists(st.tuples(st.integers(-9, 0), st.one_of(st.integers(0, 5), st.just(FAR))), max_size=40)
)
@quick
def test_of_two_the_first_counts_before_the_second(worths: list[tuple[int, int]]) -> None:
    # Nodes that do not fit have no nearness.
    pairs = [(0, FAR) if second == FAR else (first, second) for first, second in worths]
    first, second = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
    together = [FAR if pair[1] == FAR else (pair[0] + 9) * 10 + pair[1] for pair in pairs]
    assert ranks_in_turn(first, second).tolist() == by_hand(together)


@given(worths=st.lists(st.tuples(st.integers(-3, 0), st.integers(0, 3)), min_size=1, max_size=40))
@quick
def test_the_first_of_the_best_is_found_without_ranking_the_others(worths: list[tuple[int, int]]) -> None:
    first, second = (np.array(one, np.int64) for one in zip(*worths, strict=True))
    assert first_of_best(first) == ranks(first).argmax()
    assert first_of_best(first, second) == ranks_in_turn(first, second).argmax()
