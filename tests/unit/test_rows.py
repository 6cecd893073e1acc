"""A table that is checked in one test reports every failing row by name."""

from types import SimpleNamespace

import pytest

from tests.rows import every_row

ROWS = [SimpleNamespace(id=name, number=number) for number, name in enumerate(("zero", "one", "two"))]


def odd(row: SimpleNamespace) -> None:
    assert row.number % 2, "an even number"


async def odd_later(row: SimpleNamespace) -> None:
    odd(row)


async def test_all_rows_are_checked_and_those_that_fail_are_named() -> None:
    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows: zero, two") as caught:
        every_row(ROWS)(odd)()
    assert [error.__notes__ for error in caught.value.exceptions] == [["row zero"], ["row two"]]
    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows: zero, two"):
        await every_row(ROWS)(odd_later)()


def test_a_failure_that_pytest_itself_reports_counts_for_the_row() -> None:
    def refuses(row: SimpleNamespace) -> None:
        with pytest.raises(KeyError):
            assert row

    with pytest.raises(BaseExceptionGroup, match="3 of 3 rows"):
        every_row(ROWS)(refuses)()


def test_a_table_without_rows_or_with_a_name_twice_fails() -> None:
    for rows in ([], [ROWS[0], ROWS[0]]):
        with pytest.raises(AssertionError):
            every_row(rows)(odd)()
