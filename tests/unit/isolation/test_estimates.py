"""What work is taken for when measurements may have another container's work in them."""

import subprocess
from collections.abc import Iterable

import pytest

from tests.unit.isolation.building import build

MILLISECOND = 1_000_000
#: So many in a row are taken for others' work.
DOUBTED = 128


def taken_for(*measurements: tuple[float, str]) -> list[float]:
    """What the kind is taken for after each of them; all in milliseconds."""
    lines = "".join(f"{round(took * MILLISECOND)} {word}\n" for took, word in measurements)
    ended = subprocess.run(
        [build("linked") / "estimates_check"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [int(line) / MILLISECOND for line in ended.stdout.splitlines()]


def unsure(*took: float) -> Iterable[tuple[float, str]]:
    return ((one, "unsure") for one in took)


def test_the_first_measurement_counts_whatever_it_is() -> None:
    assert taken_for(*unsure(20)) == pytest.approx([20], rel=1e-3)
    assert taken_for((20, "sure")) == pytest.approx([20], rel=1e-3)


def test_a_longer_one_with_others_work_in_it_changes_nothing() -> None:
    assert taken_for(*unsure(20, *[25, 22, 40] * 10)) == pytest.approx([20] * 31, rel=1e-3)


def test_a_shorter_one_is_news() -> None:
    assert taken_for(*unsure(25, 20)) == pytest.approx([25, 20], rel=1e-3)


def test_longer_ones_count_where_there_are_no_others_by_small_steps() -> None:
    told = taken_for(*unsure(20, *[30] * (DOUBTED + 4)))
    assert told[: DOUBTED + 1] == pytest.approx([20] * (DOUBTED + 1), rel=1e-3)
    assert told[DOUBTED + 1 :] == pytest.approx([20 * (17 / 16) ** step for step in (1, 2, 3, 4)], rel=1e-3)


def test_the_last_step_is_no_further_than_what_was_measured() -> None:
    assert taken_for(*unsure(20, *[20.5] * (DOUBTED + 2)))[-1] == pytest.approx(20.5, rel=1e-3)


def test_a_short_one_in_between_begins_the_count_anew() -> None:
    told = taken_for(*unsure(20, *[30] * DOUBTED, 20, *[30] * DOUBTED))
    assert told == pytest.approx([20] * len(told), rel=1e-3)


def test_a_sure_one_takes_the_place_of_unsure_ones() -> None:
    assert taken_for((20, "unsure"), (30, "sure")) == pytest.approx([20, 30], rel=1e-3)


def test_sure_ones_change_it_by_a_quarter_of_the_difference() -> None:
    assert taken_for((20, "sure"), (24, "sure"), (13, "sure")) == pytest.approx([20, 21, 19], rel=1e-3)


def test_beside_sure_ones_a_longer_unsure_one_is_nothing_and_a_shorter_one_little() -> None:
    told = taken_for((32, "sure"), *unsure(*[64] * (DOUBTED + 8), 0.001))
    assert told[:-1] == pytest.approx([32] * (DOUBTED + 9), rel=1e-3)
    assert told[-1] == pytest.approx(31, rel=1e-3)
