"""Estimates of the time of work when measurements may include another container's work."""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tests.unit.isolation.building import build

MILLISECOND = 1_000_000
#: Number of longer measurements in a row that are attributed to others' work.
DOUBTED = 128


@dataclass(frozen=True)
class Known:
    """The estimate of a kind: its time in milliseconds, and how many measurements confirmed it."""

    milliseconds: float
    uneven: bool
    trust: int


def known_after(*measurements: tuple[float, str] | tuple[float, str, float]) -> list[Known]:
    """Estimates after each measurement: the time of a piece, ``sure`` or not; or that of several, "charged", and what they were charged."""
    lines = "".join(
        " ".join(str(round(word * MILLISECOND)) if not isinstance(word, str) else word for word in words)
        + "\n"
        for words in measurements
    )
    completed = subprocess.run(
        [build("linked") / "estimates_check"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    estimates = (map(int, line.split()) for line in completed.stdout.splitlines())
    return [Known(took / MILLISECOND, bool(uneven), trust) for took, uneven, trust in estimates]


def estimated_ms(*measurements: tuple[float, str]) -> list[float]:
    """Estimated time after each measurement; all in milliseconds."""
    return [known.milliseconds for known in known_after(*measurements)]


def unsure(*took: float) -> Iterable[tuple[float, str]]:
    return ((one, "unsure") for one in took)


def test_the_first_measurement_counts_whatever_it_is() -> None:
    assert estimated_ms(*unsure(20)) == pytest.approx([20], rel=1e-3)
    assert estimated_ms((20, "sure")) == pytest.approx([20], rel=1e-3)


def test_a_longer_measurement_with_others_work_changes_nothing() -> None:
    assert estimated_ms(*unsure(20, *[25, 22, 39] * 10)) == pytest.approx([20] * 31, rel=1e-3)


def test_a_shorter_measurement_replaces_the_estimate() -> None:
    assert estimated_ms(*unsure(25, 20)) == pytest.approx([25, 20], rel=1e-3)


def test_persistently_longer_measurements_count_in_small_steps() -> None:
    estimates = estimated_ms(*unsure(20, *[30] * (DOUBTED + 4)))
    assert estimates[: DOUBTED + 1] == pytest.approx([20] * (DOUBTED + 1), rel=1e-3)
    assert estimates[DOUBTED + 1 :] == pytest.approx(
        [20 * (17 / 16) ** step for step in (1, 2, 3, 4)], rel=1e-3
    )


def test_the_last_step_does_not_exceed_the_measurement() -> None:
    assert estimated_ms(*unsure(20, *[20.5] * (DOUBTED + 2)))[-1] == pytest.approx(20.5, rel=1e-3)


def test_a_short_kernel_in_between_restarts_the_count() -> None:
    estimates = estimated_ms(*unsure(20, *[30] * DOUBTED, 20, *[30] * DOUBTED))
    assert estimates == pytest.approx([20] * len(estimates), rel=1e-3)


def test_a_sure_measurement_replaces_unsure_ones() -> None:
    assert estimated_ms((20, "unsure"), (30, "sure")) == pytest.approx([20, 30], rel=1e-3)


def test_sure_measurements_change_the_estimate_by_a_quarter_of_the_difference() -> None:
    assert estimated_ms((20, "sure"), (24, "sure"), (13, "sure")) == pytest.approx([20, 21, 19], rel=1e-3)


def test_after_sure_measurements_longer_unsure_ones_do_not_count_and_shorter_ones_little() -> None:
    estimates = estimated_ms((32, "sure"), *unsure(*[60] * (DOUBTED + 8), 16))
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
def test_a_kind_whose_pieces_differ_by_more_than_a_factor_of_two_is_uneven(
    measurements: list[tuple[float, str]], uneven: bool
) -> None:
    assert known_after(*measurements)[-1].uneven == uneven


def test_a_kind_that_lasts_longer_than_neighbours_explain_is_uneven_and_loses_its_trust() -> None:
    known = known_after((0.002, "unsure"), (0.002, "unsure"), (0, "outlasted"))[-1]
    assert known.uneven
    assert known.trust == 0
    assert known.milliseconds == pytest.approx(0.002, rel=1e-3)


def test_one_piece_of_an_uneven_kind_changes_nothing() -> None:
    estimates = known_after((2, "sure"), (0.002, "sure"), (2, "sure"), (0.002, "unsure"))
    assert [known.milliseconds for known in estimates] == pytest.approx([2] * 4, rel=1e-3)


def test_an_uneven_kind_is_estimated_from_pieces_measured_together() -> None:
    estimates = known_after((2, "sure"), (0.002, "sure"), *[(0.1, "charged", 1)] * 60)
    assert estimates[2].milliseconds == pytest.approx(2 * 16.1 / 17, rel=1e-3)
    assert estimates[-1].milliseconds == pytest.approx(2 * (16.1 / 17) ** 60, rel=1e-2)


def test_a_kind_with_many_close_measurements_is_no_longer_uneven() -> None:
    estimates = known_after((2, "sure"), (9, "sure"), *[(2, "sure")] * 256)
    assert [known.uneven for known in estimates[-2:]] == [True, False]


def test_trust_grows_with_agreeing_measurements_and_ends_with_a_deviating_one() -> None:
    estimates = known_after(
        *[(2, "sure")] * 3, (9, "sure"), (2, "sure"), (2, "charged", 2), (40, "charged", 2)
    )
    assert [known.trust for known in estimates] == [1, 2, 3, 0, 1, 5, 0]


def test_trust_is_limited() -> None:
    assert known_after(*[(2, "sure")] * 300)[-1].trust == 255
