"""Strategic merge patch: lists by merge key, directives, and its laws."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.writes.strategic_merge import strategic_merge


def pod(*containers, **more):
    return {"metadata": {"name": "p", **more}, "spec": {"containers": list(containers)}}


def containers(merged):
    return merged["spec"]["containers"]


def patch_spec(**spec):
    return {"spec": spec}


def test_containers_merge_by_name_and_new_ones_are_added_at_the_end():
    live = pod({"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"})
    merged = strategic_merge(
        "Pod", live, patch_spec(containers=[{"name": "b", "image": "3"}, {"name": "c", "image": "4"}])
    )
    assert containers(merged) == [
        {"name": "a", "image": "1", "args": ["x"]},
        {"name": "b", "image": "3"},
        {"name": "c", "image": "4"},
    ]


def test_nested_lists_merge_by_their_own_keys_and_others_are_replaced():
    live = pod({"name": "a", "env": [{"name": "X", "value": "1"}], "args": ["old"], "command": ["sh"]})
    change = [{"name": "a", "env": [{"name": "Y", "value": "2"}], "args": ["new"], "command": None}]
    merged = strategic_merge("Pod", live, patch_spec(containers=change))
    assert containers(merged) == [
        {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}], "args": ["new"]}
    ]


def test_an_element_is_deleted_by_directive():
    live = pod({"name": "a"}, {"name": "b"})
    merged = strategic_merge("Pod", live, patch_spec(containers=[{"name": "a", "$patch": "delete"}]))
    assert containers(merged) == [{"name": "b"}]


def test_a_whole_list_is_replaced_by_directive():
    live = pod({"name": "a"}, {"name": "b"})
    merged = strategic_merge("Pod", live, patch_spec(containers=[{"$patch": "replace"}, {"name": "c"}]))
    assert containers(merged) == [{"name": "c"}]


def test_a_map_is_replaced_or_deleted_by_directive():
    live = pod(labels={"a": "1", "b": "2"})
    replaced = strategic_merge("Pod", live, {"metadata": {"labels": {"$patch": "replace", "c": "3"}}})
    assert replaced["metadata"]["labels"] == {"c": "3"}
    deleted = strategic_merge("Pod", live, {"metadata": {"labels": {"$patch": "delete"}}})
    assert "labels" not in deleted["metadata"]


def test_scalars_are_added_to_and_deleted_from_a_set():
    live = pod(finalizers=["a", "b"])
    merged = strategic_merge("Pod", live, {"metadata": {"finalizers": ["c", "a"]}})
    assert merged["metadata"]["finalizers"] == ["a", "b", "c"]
    merged = strategic_merge("Pod", live, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})
    assert merged["metadata"]["finalizers"] == ["b"]


def test_the_order_of_elements_can_be_set():
    live = pod({"name": "a"}, {"name": "b"}, {"name": "c"})
    order = [{"name": "c"}, {"name": "a"}, {"name": "b"}]
    merged = strategic_merge(
        "Pod",
        live,
        {"spec": {"$setElementOrder/containers": order, "containers": [{"name": "a", "image": "1"}]}},
    )
    assert [one["name"] for one in containers(merged)] == ["c", "a", "b"]
    merged = strategic_merge("Pod", live, {"spec": {"$setElementOrder/containers": order}})
    assert [one["name"] for one in containers(merged)] == ["c", "a", "b"]


def test_keys_that_are_not_retained_are_removed():
    live = {
        "metadata": {"name": "d"},
        "spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
    }
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic_merge("Deployment", live, patch)["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("schema", "patch", "code"),
    [
        (None, {}, 415),
        ("Pod", [], 400),
        ("Pod", {"spec": {"containers": [{"image": "without a name"}]}}, 400),
        ("Pod", {"spec": {"containers": ["text"]}}, 400),
        ("Pod", {"spec": {"$patch": "explode"}}, 400),
        ("Pod", {"spec": {"$retainKeys": "type"}}, 400),
    ],
)
def test_patches_that_cannot_be_applied_are_refused(schema, patch, code):
    with pytest.raises(ApiError) as error:
        strategic_merge(schema, pod({"name": "a"}), patch)
    assert error.value.code == code


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_LABELS = st.dictionaries(_NAMES, st.sampled_from(["1", "2", "3"]), max_size=4)
_CONTAINER = st.fixed_dictionaries(
    {"name": _NAMES},
    optional={
        "image": st.sampled_from(["i1", "i2"]),
        "args": st.lists(_NAMES, max_size=3),
        "env": st.lists(
            st.fixed_dictionaries({"name": _NAMES, "value": _NAMES}),
            max_size=3,
            unique_by=lambda one: one["name"],
        ),
    },
)
_CONTAINERS = st.lists(_CONTAINER, max_size=4, unique_by=lambda one: one["name"])
_PODS = st.builds(
    lambda labels, listed: {"metadata": {"labels": labels}, "spec": {"containers": listed}},
    _LABELS,
    _CONTAINERS,
)


@given(live=_PODS, patch=_PODS)
def test_a_merge_is_idempotent_and_changes_neither_side(live, patch):
    live_before, patch_before = copy.deepcopy(live), copy.deepcopy(patch)
    once = strategic_merge("Pod", live, patch)
    assert (live, patch) == (live_before, patch_before)
    assert strategic_merge("Pod", once, patch) == once


@given(live=_PODS, patch=_PODS)
def test_fields_of_a_patch_take_effect_and_all_others_stay(live, patch):
    merged = strategic_merge("Pod", live, patch)
    assert merged["metadata"]["labels"] == live["metadata"]["labels"] | patch["metadata"]["labels"]
    before = {one["name"]: one for one in live["spec"]["containers"]}
    patched = {one["name"]: one for one in patch["spec"]["containers"]}
    after = {one["name"]: one for one in merged["spec"]["containers"]}
    assert set(after) == set(before) | set(patched)
    for name, one in after.items():
        for key in ("image", "args"):
            assert one.get(key) == patched.get(name, {}).get(key, before.get(name, {}).get(key))
        values = {
            env["name"]: env["value"]
            for side in (before, patched)
            for env in side.get(name, {}).get("env", ())
        }
        assert {env["name"]: env["value"] for env in one.get("env", ())} == values
