"""Counts in words."""

import pytest

from gpushare.api.request.pluralize import counted


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 units"), (1, "1 unit"), (2, "2 units"), (12, "12 units")]
)
def test_one_is_singular_and_everything_else_plural(number: int, expected: str) -> None:
    assert counted(number, "unit") == expected
