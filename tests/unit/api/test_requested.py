"""Requests in users' units, and their conversion to units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MAX_AMOUNT, MemoryUnit, granted_mib
from gpushare.api.request.request import request_of
from gpushare.api.request.unit_conversion import (
    Counting,
    Requested,
    mib_of,
    percent_of,
    read_requested,
    requested_text,
)

UNITS = st.sampled_from(list(MemoryUnit))
CARDS = st.integers(1, 300_000)
GPUS = st.integers(1, 16)


def pod(annotations=None, units="6", labels=None):
    return decode_pod(
        {
            "metadata": {"namespace": "default", "name": "a", "annotations": annotations, "labels": labels},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {names.GPU_MEM: units}}}]},
        }
    )


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("6144Mi", 6144),
        ("6Gi", 6144),
        ("1.5Gi", 1536),
        ("1048576", 1),
        (1048576, 1),
        ("16Ti", 1 << 24),
    ],
)
def test_memory_in_kubernetes_own_notation(text, mib):
    assert mib_of(text) == mib


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "6144",
        "6G",
        "1048577",
        "0.5Mi",
        "500m",
        "-1Gi",
        "1e30",
        "16777217Mi",
        "4Ei",
        str(MAX_AMOUNT + 1),
        "much",
        "",
    ],
)
def test_anything_but_a_whole_number_of_mib(text):
    assert mib_of(text) is None


@pytest.mark.parametrize("text", ["0", "101", "0.5", "500m", "-5", "1e30", "half"])
def test_invalid_percentages(text):
    assert percent_of(text) is None


@given(st.integers(1, 100))
def test_percent(percent):
    assert percent_of(str(percent)) == percent


@given(UNITS, st.integers(1, 1 << 43), GPUS)
def test_mib_are_rounded_up_and_no_unit_is_wasted(unit, mib, gpus):
    counting = Counting(unit)
    units = counting.units_of_mib(mib, gpus)
    assert units % gpus == 0
    assert units * unit.mib >= mib
    assert (units - gpus) * unit.mib < mib


@given(UNITS, CARDS, st.integers(1, 100))
def test_as_many_pods_as_the_percentage_allows_fit_on_one_card(unit, reference_mib, percent):
    counting = Counting(unit, reference_mib)
    units = counting.units_of_percent(percent)
    assert units * (100 // percent) <= counting.reference_units
    assert units * 100 <= percent * counting.reference_units < (units + 1) * 100
    assert counting.units_of_percent(percent, 3) == 3 * units
    assert (units > 0) == (percent >= counting.least_percent)


@given(UNITS, CARDS, st.integers(1, 300_000))
def test_a_pod_gets_the_mib_it_requests_on_any_gpu_with_enough_units(unit, gpu_mib, mib):
    units = Counting(unit).units_of_mib(mib)
    if units <= unit.count_in(gpu_mib):
        assert granted_mib(gpu_mib, units, unit.count_in(gpu_mib)) >= mib


@given(
    UNITS,
    st.integers(0, 1 << 30),
    st.dictionaries(
        st.from_regex("[a-z0-9-]{1,63}", fullmatch=True), st.from_regex("[0-9]{1,9}(Mi|%)", fullmatch=True)
    ),
)
def test_the_note_is_read_back_unchanged(unit, reference_mib, containers):
    text = requested_text(Counting(unit, reference_mib), containers)
    assert read_requested(pod({names.ANN_REQUESTED: text})) == Requested(unit.mib, reference_mib, containers)


def test_a_pod_without_a_note_requests_units():
    assert read_requested(pod()) is None
    assert read_requested(pod({"other": "x"})) is None
    assert request_of(pod()).unit_mib == 0


def test_a_request_has_the_unit_in_which_it_was_counted():
    note = requested_text(Counting(MemoryUnit.MIB_128), {"c": "768Mi"})
    request = request_of(pod({names.ANN_REQUESTED: note}))
    assert (request.memory_units, request.unit_mib) == (6, 128)
    spread = request_of(pod({names.ANN_REQUESTED: note}, labels={names.LABEL_POD_GPU_COUNT: "2"}))
    assert (spread.memory_units, spread.gpu_count, spread.unit_mib) == (3, 2, 128)


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "{}", '{"unitMib":0,"cardMib":0,"containers":{}}', '{"unitMib":"x"}', "[" * 10_000),
        # More digits than Python prints.
        f'{{"unitMib":{"9" * 4300},"cardMib":0,"containers":{{}}}}',
        f'{{"unitMib":1024,"cardMib":{"9" * 4300},"containers":{{}}}}',
    ],
)
def test_an_unreadable_annotation_is_reported(text):
    with pytest.raises(
        InvalidRequest, match=f"pod default/a: annotation {names.ANN_REQUESTED} cannot be read"
    ):
        request_of(pod({names.ANN_REQUESTED: text}))


def test_a_card_smaller_than_a_unit_has_no_percent():
    assert Counting(MemoryUnit.GIB, 1000).least_percent == 101
    assert Counting().least_percent == 101
