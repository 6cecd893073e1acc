"""JSON Patch and JSON Merge Patch."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.writes.patching import json_patch, merge_patch
from tests.randomized import rounds

OBJ = {"a": {"b": 1, "c": [1, 2, 3]}, "x/y": {"~": "t"}}


@pytest.mark.parametrize(
    ("operation", "path", "expected"),
    [
        ({"op": "add", "path": "/a/d", "value": 5}, ("a", "d"), 5),
        ({"op": "add", "path": "/a/c/1", "value": 9}, ("a", "c"), [1, 9, 2, 3]),
        ({"op": "add", "path": "/a/c/-", "value": 9}, ("a", "c"), [1, 2, 3, 9]),
        ({"op": "replace", "path": "/a/c/0", "value": 9}, ("a", "c"), [9, 2, 3]),
        ({"op": "remove", "path": "/a/c/1"}, ("a", "c"), [1, 3]),
        ({"op": "replace", "path": "/x~1y/~0", "value": "u"}, ("x/y", "~"), "u"),
        ({"op": "copy", "from": "/a/b", "path": "/a/e"}, ("a", "e"), 1),
        ({"op": "move", "from": "/a/b", "path": "/z"}, ("z",), 1),
        ({"op": "test", "path": "/a/b", "value": 1}, ("a", "b"), 1),
        ({"op": "add", "path": "", "value": {"n": 1}}, ("n",), 1),
    ],
)
def test_each_operation_of_a_json_patch(operation, path, expected):
    before = copy.deepcopy(OBJ)
    found = json_patch(OBJ, [operation])
    assert before == OBJ
    for step in path:
        found = found[step]
    assert found == expected


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ({"op": "add"}, 400),
        (["text"], 400),
        ([{"op": "add"}], 400),
        ([{"op": "add", "path": "/a"}], 400),
        ([{"op": "explode", "path": "/a"}], 400),
        ([{"op": "remove", "path": "/nope"}], 422),
        ([{"op": "remove", "path": ""}], 422),
        ([{"op": "replace", "path": "/a/nope", "value": 1}], 422),
        ([{"op": "add", "path": "/a/c/9", "value": 1}], 422),
        ([{"op": "add", "path": "/a/c/01", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b/c", "value": 1}], 422),
        ([{"op": "add", "path": "a", "value": 1}], 422),
        ([{"op": "test", "path": "/a/b", "value": 2}], 422),
        ([{"op": "copy", "from": "/nope", "path": "/a"}], 422),
        ([{"op": "add", "path": "", "value": 1}], 422),
        ([{"op": "test", "path": "/a/b", "value": 1}] * 10_001, 413),
    ],
)
def test_json_patches_that_cannot_be_applied_are_refused(operations, code):
    with pytest.raises(ApiError) as error:
        json_patch(OBJ, operations)
    assert error.value.code == code


def test_merge_patch_merges_maps_removes_with_null_and_replaces_lists():
    merged = merge_patch(OBJ, {"a": {"b": None, "c": [7]}, "n": {"m": None, "o": 1}})
    assert merged == {"a": {"c": [7]}, "x/y": {"~": "t"}, "n": {"o": 1}}


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=rounds(40, soak=100))
@given(target=_JSON, patch=_JSON)
def test_a_merge_patch_is_idempotent(target, patch):
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
