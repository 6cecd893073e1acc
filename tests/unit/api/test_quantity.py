"""Quantities are exact, and anything but a whole amount is refused by name."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.errors import InvalidQuantity, InvalidUnit
from gpushare.api.quantity import MAX_AMOUNT, MemoryUnit, granted_mib, parse_amount, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        (3, 3),
        (2.0, 2),
        ("+4", 4),
        ("2k", 2000),
        ("2Ki", 2048),
        ("1e3", 1000),
        ("1E2", 100),
        ("3000m", 3),
        ("1.5Gi", 3 * 2**29),
        (".5k", 500),
        ("5.", 5),
        ("1E", 10**18),
        ("9223372036854775807", MAX_AMOUNT),
        ("4000000000n", 4),
    ],
)
def test_whole_quantities_are_read_exactly(text: str | float, value: int) -> None:
    assert parse_amount(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.5", "not a whole number"),
        ("500m", "not a whole number"),
        (0.5, "not a whole number"),
        ("-1", "negative"),
        ("9223372036854775808", "larger than"),
        ("1e400", "larger than"),
        ("999E", "larger than"),
        ("1e99999", "is not a valid quantity"),
        ("", "is not a valid quantity"),
        ("three", "is not a valid quantity"),
        ("3 ", "is not a valid quantity"),
        ("٣", "is not a valid quantity"),
        ("0x10", "is not a valid quantity"),
        ("1kk", "is not a valid quantity"),
        (True, "is not a valid quantity"),
        (float("nan"), "is not a valid quantity"),
        (float("inf"), "is not a valid quantity"),
        ("1" * 200, "is not a valid quantity"),
    ],
)
def test_anything_else_is_refused_with_its_subject(text: str | float, message: str) -> None:
    with pytest.raises(InvalidQuantity, match=message) as caught:
        parse_amount(text, "pod default/a")
    assert str(caught.value).startswith("pod default/a: ")


def test_fractions_stay_exact() -> None:
    assert parse_quantity("100m") == Fraction(1, 10)
    assert parse_quantity("-2Ki") == -2048


@given(st.integers(0, MAX_AMOUNT))
def test_every_amount_in_kubernetes_form_is_read_back(amount: int) -> None:
    assert parse_amount(str(amount)) == amount == parse_amount(amount)


@pytest.mark.parametrize(("text", "mib"), [("1GiB", 1024), ("GiB", 1024), ("128MiB", 128), ("MiB", 128)])
def test_documented_units_and_their_synonyms(text: str, mib: int) -> None:
    unit = MemoryUnit.parse(text)
    assert unit.mib == mib
    assert MemoryUnit.parse(unit.setting) is unit
    assert unit.heading in ("GiB", "128MiB")


@pytest.mark.parametrize("text", ["", "2GiB", "gib", "1MiB", "1 GiB", "1024"])
def test_other_units_are_refused_with_advice(text: str) -> None:
    with pytest.raises(InvalidUnit, match=r"use 1GiB \(or GiB\) or 128MiB \(or MiB\)"):
        MemoryUnit.parse(text)


def test_the_documented_example_is_granted_2154_mib() -> None:
    assert MemoryUnit.GIB.count_in(16160) == 15
    assert granted_mib(16160, 2, 15) == 2154


@given(
    total_mib=st.integers(128, 1 << 20),
    unit=st.sampled_from(MemoryUnit),
    requests=st.lists(st.integers(1, 200), max_size=40),
)
def test_counting_mib_is_counting_units_while_the_unit_stays(
    total_mib: int, unit: MemoryUnit, requests: list[int]
) -> None:
    device_units = unit.count_in(total_mib)
    used_units = used_mib = 0
    for units in requests:
        if not device_units:
            return
        mib = granted_mib(total_mib, units, device_units)
        fits_by_mib = used_mib + mib <= total_mib
        assert fits_by_mib == (used_units + units <= device_units)
        if fits_by_mib:
            used_units, used_mib = used_units + units, used_mib + mib
