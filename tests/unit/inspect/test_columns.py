from hypothesis import given
from hypothesis import strategies as st

from gpushare.inspect.tabwriter import PADDING, aligned, printable, raw_length

CELLS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=12)
LINES = st.lists(st.lists(CELLS, min_size=1, max_size=5), max_size=12)


def naive(lines: list[list[str]]) -> list[str]:
    """Each cell looks at its neighbours above and below, as long as they have its column too."""
    text = []
    for at, line in enumerate(lines):
        cells = []
        for column, cell in enumerate(line[:-1]):
            first = last = at
            while first > 0 and len(lines[first - 1]) > column + 1:
                first -= 1
            while last + 1 < len(lines) and len(lines[last + 1]) > column + 1:
                last += 1
            widest = max(len(lines[other][column]) for other in range(first, last + 1))
            cells.append(cell + " " * (widest + PADDING - len(cell)))
        text.append("".join([*cells, line[-1]]).rstrip())
    return text


@given(LINES)
def test_columns_are_as_wide_as_their_neighbours_need(lines: list[list[str]]) -> None:
    assert aligned(lines) == naive(lines)


@given(LINES)
def test_no_cell_is_lost_or_changed(lines: list[list[str]]) -> None:
    assert [text.replace(" ", "") for text in aligned(lines)] == ["".join(line) for line in lines]


@given(LINES)
def test_no_line_has_trailing_blanks(lines: list[list[str]]) -> None:
    assert all(text == text.rstrip() for text in aligned(lines))


def test_a_line_of_one_cell_separates_tables() -> None:
    assert aligned([["a", "b"], [""], ["a long name", "b"]]) == ["a  b", "", "a long name  b"]


def test_control_characters_are_not_printed() -> None:
    assert aligned([["GPU\x1b[2J\n", "x"]]) == ["GPU?[2J?  x"]
    assert printable("Größe 1") == "Größe 1"


def test_raw_length_counts_a_tab_per_column_and_the_line_end() -> None:
    assert raw_length(["ab", "c"]) == len("ab\tc\n")
    assert raw_length([""]) == len("\n")
