"""Label and field selectors."""

import pytest

from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.kinds.selectors import (
    parse_labels,
    predicate,
    selector_requirements,
    selector_text,
)


def selects(text, labels):
    return all(one.matches(labels) for one in parse_labels(text))


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("a=1", {"a": "1"}, {"a": "2"}),
        ("a==1", {"a": "1"}, {}),
        ("a!=1", {}, {"a": "1"}),
        ("a", {"a": ""}, {"b": ""}),
        ("!a", {"b": ""}, {"a": ""}),
        ("a in (1,2)", {"a": "2"}, {"a": "3"}),
        ("a in (1,2)", {"a": "1"}, {}),
        ("a notin (1,2)", {"a": "3"}, {"a": "1"}),
        ("a notin (1)", {}, {"a": "1"}),
        ("a in ()", {"a": ""}, {"a": "1"}),
        ("a=", {"a": ""}, {"a": "1"}),
        ("a>5", {"a": "6"}, {"a": "5"}),
        ("a<5", {"a": "4"}, {"a": "x"}),
        ("x.io/a-b_c=1,b!=2", {"x.io/a-b_c": "1"}, {"x.io/a-b_c": "1", "b": "2"}),
        (" a = 1 , b ", {"a": "1", "b": ""}, {"a": "1"}),
        ("", {}, None),
    ],
)
def test_label_selectors(text, yes, no):
    assert selects(text, yes)
    assert no is None or not selects(text, no)


@pytest.mark.parametrize("text", ["a b", "a in", "a in (1", "=1", "a=1,", ",", "a!", "a>b", "a/b/c=1", "a=é"])
def test_label_selectors_that_cannot_be_read_are_refused(text):
    with pytest.raises(ApiError) as error:
        parse_labels(text)
    assert error.value.code == 400


def test_an_absent_selector_selects_nothing_and_an_empty_one_everything():
    assert selector_requirements(None) is None
    assert selector_requirements({}) == ()


def test_a_selector_object_reads_and_writes_as_text():
    selector = {
        "matchLabels": {"a": "1"},
        "matchExpressions": [
            {"key": "b", "operator": "In", "values": ["2", "3"]},
            {"key": "c", "operator": "Exists"},
            {"key": "d", "operator": "DoesNotExist"},
            {"key": "e", "operator": "NotIn", "values": ["4"]},
        ],
    }
    text = selector_text(selector)
    assert text == "a=1,b in (2,3),c,!d,e notin (4)"
    assert parse_labels(text) == selector_requirements(selector)


@pytest.mark.parametrize(
    ("text", "obj", "expected"),
    [
        ("spec.nodeName=n", {"spec": {"nodeName": "n"}}, True),
        ("spec.nodeName=", {"spec": {}}, True),
        ("spec.nodeName!=", {"spec": {"nodeName": "n"}}, True),
        ("status.phase!=Failed,status.phase!=Succeeded", {"status": {"phase": "Failed"}}, False),
        ("metadata.name=a\\,b", {"metadata": {"name": "a,b"}}, True),
        ("spec.hostNetwork=false", {"spec": {}}, True),
    ],
)
def test_field_selectors(text, obj, expected):
    matches = predicate("", text, "pods")
    assert matches is not None
    assert matches(obj) is expected


def test_fields_that_cannot_be_selected_by_are_reported_by_name():
    with pytest.raises(ApiError, match=r"field label not supported: spec\.color"):
        predicate("", "spec.color=red", "pods")
    with pytest.raises(ApiError, match="invalid field selector"):
        predicate("", "nonsense", "pods")
    assert predicate("", "spec.color=red", "widgets.example.dev", ("spec.color",)) is not None


def test_no_selector_gives_no_predicate():
    assert predicate("", "", "pods") is None
