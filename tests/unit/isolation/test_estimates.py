"""What work is taken for when measurements may have another container's work in them."""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tests.unit.isolation.building import build

MILLISECOND = 1_000_000
#: So many in a row are taken for others' work.
DOUBTED = 128


@dataclass(frozen=True)
class Known:
    """What is known of a kind: how long it takes in milliseconds, and how many measurements confirmed that."""

    milliseconds: float
    uneven: bool
    trust: int


def known_after(*measurements: tuple[float, str] | tuple[float, str, float]) -> list[Known]:
    """After each measurement: what a piece took, ``sure`` or not; or what pieces took, "charged", and what they were charged."""
    lines = "".join(
        " ".join(str(round(word * MILLISECOND)) if not isinstance(word, str) else word for word in words)
        + "\n"
        for words in measurements
    )
    ended = subprocess.run(
        [build("linked") / "estimates_check"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    estimates = (map(int, line.split()) for line in ended.stdout.splitlines())
    return [Known(took / MILLISECOND, bool(uneven), trust) for took, uneven, trust in estimates]


def taken_for(*measurements: tuple[float, str]) -> list[float]:
    """What the kind is taken for after each of them; all in milliseconds."""
    return [known.milliseconds for known in known_after(*measurements)]


def unsure(*took: float) -> Iterable[tuple[float, str]]:
    return ((one, "unsure") for one in took)


def test_the_first_measurement_counts_whatever_it_is() -> None:
    assert taken_for(*unsure(20)) == pytest.approx([20], rel=1e-3)
    assert taken_for((20, "sure")) == pytest.approx([20], rel=1e-3)


def test_a_longer_one_with_others_work_in_it_changes_nothing() -> None:
    assert taken_for(*unsure(20, *[25, 22, 39] * 10)) == pytest.approx([20] * 31, rel=1e-3)


def test_a_shorter_one_is_news() -> None:
    assert taken_for(*unsure(25, 20)) == pytest.approx([25, 20], rel=1e-3)


def test_longer_ones_count_where_there_are_no_others_by_small_steps() -> None:
    estimates = taken_for(*unsure(20, *[30] * (DOUBTED + 4)))
    assert estimates[: DOUBTED + 1] == pytest.approx([20] * (DOUBTED + 1), rel=1e-3)
    assert estimates[DOUBTED + 1 :] == pytest.approx(
        [20 * (17 / 16) ** step for step in (1, 2, 3, 4)], rel=1e-3
    )


def test_the_last_step_is_no_further_than_what_was_measured() -> None:
    assert taken_for(*unsure(20, *[20.5] * (DOUBTED + 2)))[-1] == pytest.approx(20.5, rel=1e-3)


def test_a_short_kernel_in_between_restarts_the_count() -> None:
    estimates = taken_for(*unsure(20, *[30] * DOUBTED, 20, *[30] * DOUBTED))
    assert estimates == pytest.approx([20] * len(estimates), rel=1e-3)


def test_a_sure_one_takes_the_place_of_unsure_ones() -> None:
    assert taken_for((20, "unsure"), (30, "sure")) == pytest.approx([20, 30], rel=1e-3)


def test_sure_ones_change_it_by_a_quarter_of_the_difference() -> None:
    assert taken_for((20, "sure"), (24, "sure"), (13, "sure")) == pytest.approx([20, 21, 19], rel=1e-3)


def test_beside_sure_ones_a_longer_unsure_one_is_nothing_and_a_shorter_one_little() -> None:
    estimates = taken_for((32, "sure"), *unsure(*[60] * (DOUBTED + 8), 16))
    assert estimates[:-1] == pytest.approx([32] * (DOUBTED + 9), rel=1e-3)
    assert estimates[-1] == pytest.approx(31.5, rel=1e-3)


@pytest.mark.parametrize(
    ("measurements", "uneven"),
    [
        ([(2, "sure"), (5, "sure")], True),
        ([(5, "sure"), (2, "sure")], True),
        ([(5, "sure"), (2, "unsure")], False),  # others' work may be in it
        ([(2, "unsure"), (5, "unsure")], False),
        ([(5, "unsure"), (2, "sure")], True),
        ([(2, "sure"), (5, "visit"), (0.5, "visit")], False),
        ([(2, "sure"), (3.9, "sure"), (2.4, "sure")], False),
        ([(0.002, "sure"), (0.011, "sure")], False),  # as inexact as measurements are
    ],
)
def test_a_kind_whose_pieces_differ_by_more_than_twice_is_uneven(
    measurements: list[tuple[float, str]], uneven: bool
) -> None:
    assert known_after(*measurements)[-1].uneven == uneven


def test_a_kind_that_outlasts_what_neighbours_explain_is_uneven_and_loses_its_trust() -> None:
    known = known_after((0.002, "unsure"), (0.002, "unsure"), (0, "outlasted"))[-1]
    assert known.uneven
    assert known.trust == 0
    assert known.milliseconds == pytest.approx(0.002, rel=1e-3)


def test_one_piece_of_an_uneven_kind_changes_nothing() -> None:
    estimates = known_after((2, "sure"), (0.002, "sure"), (2, "sure"), (0.002, "unsure"))
    assert [known.milliseconds for known in estimates] == pytest.approx([2] * 4, rel=1e-3)


def test_an_uneven_kind_is_taken_for_what_pieces_take_together() -> None:
    estimates = known_after((2, "sure"), (0.002, "sure"), *[(0.1, "charged", 1)] * 60)
    assert estimates[2].milliseconds == pytest.approx(2 * 16.1 / 17, rel=1e-3)
    assert estimates[-1].milliseconds == pytest.approx(2 * (16.1 / 17) ** 60, rel=1e-2)


def test_a_kind_that_was_near_for_long_is_no_longer_uneven() -> None:
    estimates = known_after((2, "sure"), (9, "sure"), *[(2, "sure")] * 256)
    assert [known.uneven for known in estimates[-2:]] == [True, False]


def test_trust_grows_by_measurements_that_agree_and_ends_with_one_that_does_not() -> None:
    estimates = known_after(
        *[(2, "sure")] * 3, (9, "sure"), (2, "sure"), (2, "charged", 2), (40, "charged", 2)
    )
    assert [known.trust for known in estimates] == [1, 2, 3, 0, 1, 5, 0]


def test_trust_has_an_end() -> None:
    assert known_after(*[(2, "sure")] * 300)[-1].trust == 255
