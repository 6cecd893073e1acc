"""Sets of fields: what server-side apply counts with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_playground.apiserver.field_sets import (
    difference,
    from_members,
    is_absent,
    members,
    merge,
    set_of,
    shown,
    spared,
    union,
    value_at,
    without,
)
from gpushare_playground.apiserver.fields import kind_type

POD = kind_type("Pod")
ONE = {
    "metadata": {"labels": {"a": "1"}, "finalizers": ["f"]},
    "spec": {"containers": [{"name": "c", "image": "i", "args": ["x", "y"]}]},
}


def test_the_set_of_an_object_is_in_the_form_of_managed_fields():
    assert set_of(POD, ONE) == {
        "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {'v:"f"': {}}},
        "f:spec": {"f:containers": {'k:{"name":"c"}': {".": {}, "f:name": {}, "f:image": {}, "f:args": {}}}},
    }


def test_paths_are_shown_as_people_write_them():
    paths = {shown(path) for path in members(set_of(POD, ONE))}
    assert '.spec.containers[name="c"].image' in paths
    assert '.metadata.finalizers[="f"]' in paths
    assert ".metadata.labels.a" in paths


def test_taking_all_fields_off_leaves_nothing():
    assert without(POD, ONE, set_of(POD, ONE)) == {}


def test_an_element_goes_with_its_last_owner_only():
    mine = {"f:spec": {"f:containers": {'k:{"name":"c"}': {".": {}, "f:image": {}}}}}
    theirs = {"f:spec": {"f:containers": {'k:{"name":"c"}': {"f:args": {}}}}}
    kept = without(POD, ONE, spared(mine, theirs))
    assert kept["spec"]["containers"] == [{"name": "c", "args": ["x", "y"]}]
    assert "spec" not in without(POD, ONE, spared(mine, {}))


def test_a_value_is_found_by_its_path():
    for path in members(set_of(POD, ONE)):
        assert not is_absent(value_at(POD, ONE, path))
    assert is_absent(value_at(POD, ONE, ("f:spec", "f:containers", 'k:{"name":"other"}', "f:image")))
    assert is_absent(value_at(POD, ONE, ("f:spec", "f:nodeName")))


def test_merging_lays_one_over_the_other():
    other = {"spec": {"containers": [{"name": "c", "image": "j"}, {"name": "d"}]}}
    merged = merge(POD, ONE, other)
    assert merged["spec"]["containers"] == [{"name": "c", "image": "j", "args": ["x", "y"]}, {"name": "d"}]
    assert merged["metadata"] == ONE["metadata"]


_STEPS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"1"'])
_SETS = st.lists(st.lists(_STEPS, min_size=1, max_size=3).map(tuple), max_size=8).map(from_members)


@given(one=_SETS, other=_SETS)
def test_sets_obey_the_laws_of_sets(one, other):
    first, second = set(members(one)), set(members(other))
    assert set(members(union(one, other))) == first | second
    assert set(members(difference(one, other))) == first - second
    assert difference(one, one) == {}


@pytest.mark.parametrize("path", [("f:a",), ("f:a", "f:b"), ('k:{"name":"x"}', "f:c")])
def test_a_set_of_one_path_has_one_member(path):
    assert members(from_members([path])) == [path]
