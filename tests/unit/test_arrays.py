"""Names and their columns."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.ledger.arrays import ColumnCache, Index
from tests.randomized import rounds

NAMES = st.text(min_size=1, max_size=3)


@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), st.integers(0, 1000)), st.lists(NAMES))))
def test_a_bulk_lookup_gives_the_same_as_single_lookups(
    changes: list[tuple[str, int | None, list[str]]],
) -> None:
    index, plain = Index(7), dict[str, int]()
    for name, column, queried in changes:
        if column is None:
            assert index.pop(name, None) == plain.pop(name, None)
        else:
            index[name] = plain[name] = column
        queried = [*queried, *plain]
        assert index.places(queried).tolist() == [plain.get(one, 7) for one in queried]
        assert index == plain
        assert list(index) == list(plain)


def test_names_are_laid_out_again_once_there_are_enough_new_ones() -> None:
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


@settings(max_examples=rounds(40, soak=100))
@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.booleans(), st.lists(st.integers(0, 120), min_size=50, max_size=80))
    )
)
def test_a_repeated_lookup_of_a_list_returns_current_columns(
    changes: list[tuple[int, bool, list[int]]],
) -> None:
    index = Index(7)
    found = ColumnCache(index)
    queries: list[list[str]] = []
    for number, stays, numbers in changes:
        if stays:
            if str(number) not in index:
                index[str(number)] = 1000 + number
                found.forget()
        elif index.pop(str(number), None) is not None:
            found.forget()
        queries.append([str(one) for one in numbers])
        for names in queries[-6:]:
            expected = [index.get(one, 7) for one in names]
            assert found.places(names).tolist() == expected
            assert found.places(tuple(names)).tolist() == expected


def test_the_most_recent_long_lists_are_looked_up_only_once() -> None:
    index = Index(0)
    names = [f"node-{number}" for number in range(500)]
    index.update(zip(names, range(500), strict=True))
    found = ColumnCache(index)
    first = found.places(names)
    assert found.places(list(names)) is first
    for left_out in range(20):
        others = names[:left_out] + names[left_out + 1 :]
        places = found.places(others)
        assert found.places(list(others)) is places
        assert found.places(names) is first, "used again and again"
    assert found.places(names[1:]).tolist() == list(range(1, 500)), "forgotten, and looked up again"
