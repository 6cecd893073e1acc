"""Proximity of GPUs: its format, and the choice of the best set of free GPUs."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.node.topology import (
    MOST_GPUS,
    OTHER_SOCKET,
    TopologyLevels,
    best_set,
    matrix,
    sets_of,
    triangle,
    untriangle,
)

NVLINK = 100
#: Two boards of four, NVLink within each.
ISLANDS = matrix(8, lambda a, b: NVLINK if a // 4 == b // 4 else OTHER_SOCKET)
SOCKETS = (0, 0, 0, 0, 1, 1, 1, 1)
ALL = range(8)


def test_of_two_islands_each_set_lies_on_one() -> None:
    assert best_set(ISLANDS, SOCKETS, ALL, 2) == (0, 1)
    assert best_set(ISLANDS, SOCKETS, ALL, 4) == (0, 1, 2, 3)
    assert best_set(ISLANDS, SOCKETS, [0, 3, 4, 5, 6, 7], 4) == (4, 5, 6, 7)


def test_an_island_already_in_use_is_preferred_to_an_unused_one() -> None:
    assert best_set(ISLANDS, SOCKETS, [0, 1, 2, 3, 5, 7], 2) == (5, 7)
    assert best_set(ISLANDS, SOCKETS, [0, 1, 2, 3, 6], 1) == (6,)
    assert best_set(ISLANDS, SOCKETS, [0, 1, 2, 3, 4, 5, 7], 3) == (4, 5, 7)


def test_the_farthest_pair_counts_before_the_sum() -> None:
    near = matrix(4, lambda a, b: {(0, 1): 900, (0, 2): 1, (1, 2): 900}.get((min(a, b), max(a, b)), 50))
    assert best_set(near, (0,) * 4, range(4), 3) == (0, 1, 3)


def test_of_equal_farthest_pairs_the_sum_counts() -> None:
    near = matrix(4, lambda a, b: {(1, 2): 60, (2, 3): 70}.get((min(a, b), max(a, b)), 50))
    assert best_set(near, (0,) * 4, range(4), 3) == (1, 2, 3)


def test_of_otherwise_equal_sets_one_on_a_single_numa_node_is_chosen() -> None:
    switched = matrix(4, lambda a, b: 450)
    for near in ((), switched):
        assert best_set(near, (0, 1, 0, 1), range(4), 2) == (0, 2)
        assert best_set(near, (0, 1, 1, 1), range(4), 3) == (1, 2, 3)
        assert best_set(near, (0, 1, 0, 1), [0, 1, 3], 2) == (1, 3)


def test_an_unused_numa_node_is_spared_while_another_is_in_use() -> None:
    pairs = (0, 0, 1, 1)
    switched = matrix(4, lambda a, b: 450)
    for near in ((), switched):
        assert best_set(near, pairs, range(4), 1) == (0,)
        assert best_set(near, pairs, [0, 1, 3], 1) == (3,)
        # Two are on one node all the same; taking a whole one leaves none partly used.
        assert best_set(near, pairs, [0, 1, 3], 2) == (0, 1)
        assert best_set(near, pairs, [0, 1, 3], 3) == (0, 1, 3)
    threes = (0, 0, 0, 1, 1, 1)
    assert best_set((), threes, [0, 1, 2, 4, 5], 2) == (4, 5)


def test_a_preference_counts_after_the_farthest_pair_and_before_the_rest() -> None:
    wish = {row: 0 if row in (3, 7) else 1 for row in ALL}
    assert best_set(ISLANDS, SOCKETS, ALL, 2, wish=wish) == (0, 3)
    assert best_set(ISLANDS, SOCKETS, ALL, 2, wish={**wish, 6: 0}) == (6, 7)


def test_required_gpus_are_included() -> None:
    assert best_set(ISLANDS, SOCKETS, ALL, 2, must=[6]) == (4, 6)
    assert best_set(ISLANDS, SOCKETS, ALL, 2, must=[1, 6]) == (1, 6)
    assert best_set(ISLANDS, SOCKETS, [0, 1], 2, must=[5]) is None


def test_too_few_are_no_set_and_too_many_are_not_compared() -> None:
    assert best_set(ISLANDS, SOCKETS, [0, 1], 3) is None
    assert best_set(ISLANDS, SOCKETS, [0, 1], 1, must=[0, 1]) is None
    assert best_set((), (0,) * (MOST_GPUS + 1), range(MOST_GPUS + 1), 2) is None
    assert len(sets_of((), MOST_GPUS, 8)) == 12870


@st.composite
def _matrices(draw: st.DrawFn) -> TopologyLevels:
    count = draw(st.integers(1, 7))
    levels = {pair: draw(st.sampled_from((0, 1, 2, 50, 100))) for pair in combinations(range(count), 2)}
    made = matrix(count, lambda a, b: levels[min(a, b), max(a, b)])
    return made or ((0,) * count,) * count


@given(st.data(), _matrices(), st.booleans())
def test_the_best_set_is_the_one_that_an_exhaustive_search_finds(
    data: st.DataObject, near: TopologyLevels, wishes: bool
) -> None:
    count = len(near)
    free = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    wanted = data.draw(st.integers(1, len(free)))
    numa = tuple(data.draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count)))
    wish = {row: data.draw(st.integers(0, 2)) for row in free} if wishes else None

    def total(rows: list[int]) -> int:
        return sum(near[a][b] for a, b in combinations(rows, 2))

    def begins(node: int, some: tuple[int, ...]) -> bool:
        its = {row for row in range(count) if numa[row] == node}
        return its <= set(free) and not its <= set(some)

    def worth(some: tuple[int, ...]) -> tuple[object, ...]:
        rest = [row for row in free if row not in some]
        return (
            -min((near[a][b] for a, b in combinations(some, 2)), default=0),
            sorted(wish[row] for row in some) if wish else [],
            -total(list(some)),
            -total(rest),
            len({numa[row] for row in some}),
            sum(begins(node, some) for node in {numa[row] for row in some}),
            some,
        )

    assert best_set(near, numa, free, wanted, wish=wish) == min(combinations(free, wanted), key=worth)


@given(_matrices(), st.randoms(use_true_random=False))
def test_the_format_is_read_back_in_any_order(near: TopologyLevels, random: object) -> None:
    order = list(range(len(near)))
    random.shuffle(order)  # type: ignore[attr-defined]
    read = untriangle(triangle(near), tuple(order))
    expected = tuple(tuple(near[a][b] for b in order) for a in order)
    assert read == (expected if any(map(any, near)) else ())


def test_unknown_proximity_is_written_as_nothing() -> None:
    assert matrix(3, lambda a, b: 0) == () == triangle(()) == untriangle((), (0, 1, 2))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((), (1,)), "rows of 0 to 2 numbers"),
        (((), (1,), (1, 2, 3)), "rows of 0 to 2 numbers"),
        (((), (1,), (1, -1)), "a number from 0 to 65535"),
        (((), (1,), (1, 65536)), "a number from 0 to 65535"),
    ],
)
def test_anything_but_a_triangle_is_refused(rows: TopologyLevels, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        untriangle(rows, (0, 1, 2))
