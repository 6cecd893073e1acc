"""Comparison of a command's output with what a page shows."""

import pytest

from documentation.expecting import matches


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("pod/x created", "pod/x created\n", True),
        ("pod/x created", "pod/y created\n", False),
        ("NAME  AGE\nx  …", "NAME   AGE\nx      3s  \n", True),
        ("x …", "y 3s", False),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("a\n…\nz", "a\nz", True),
        ("a\n…\nz", "a\nz\nz", True),
        ("a\n…\nz", "a\nz\nb", False),
        ("a", "a\nb", False),
        ("a\nb", "a", False),
        ("…", "", True),
        ("…", "a\n\nb", True),
        ("…\nx\n…", "a\nb", False),
        ("taken: … MiB (…)", "taken: 1536 MiB (of all)", True),
        ("…/15…", "NAME 0/15 0/15", True),
        ("a.b", "axb", False),
    ],
)
def test_dots_match_anything_and_blanks_are_equal(expected: str, output: str, same: bool) -> None:
    assert matches(expected.splitlines(), output) is same
