"""Names and their columns."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.arrays import Index

NAMES = st.text(min_size=1, max_size=3)


@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), st.integers(0, 1000)), st.lists(NAMES))))
def test_thousands_are_looked_up_as_one_by_one(changes: list[tuple[str, int | None, list[str]]]) -> None:
    index, plain = Index(7), dict[str, int]()
    for name, column, asked in changes:
        if column is None:
            assert index.pop(name, None) == plain.pop(name, None)
        else:
            index[name] = plain[name] = column
        asked = [*asked, *plain]
        assert index.places(asked).tolist() == [plain.get(one, 7) for one in asked]
        assert index == plain
        assert list(index) == list(plain)


def test_names_are_laid_out_anew_once_there_are_enough_new_ones() -> None:
    index = Index(0)
    names = [f"node-{number}" for number in range(16)]
    index.update(zip(names, range(16), strict=True))
    index.places(())
    laid = list(index)
    assert laid == names
    assert all(one is not other for one, other in zip(laid, names, strict=True))
    index.update({"one": 16, "two": 17})
    index.places(())
    assert all(one is other for one, other in zip(index, laid, strict=False)), "two of sixteen are too few"
    index["three"] = 18
    index.places(())
    assert all(one is not other for one, other in zip(index, laid, strict=False))
