"""The fields table: kinds, canonical quantities, unknown and mistyped fields, protobuf."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.quantity import parse_quantity
from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.kinds.resources import Registry
from gpushare_playground.apiserver.wire import protobuf
from gpushare_playground.apiserver.wire.fields import (
    FieldTypeError,
    canonical_quantity,
    settle,
    struct_fields,
    table,
)


def test_every_type_that_a_field_names_is_in_the_table():
    for struct in table().values():
        for name, kind in struct.fields.items():
            while kind.item is not None:
                kind = kind.item
            assert kind.form != "struct" or kind.name in table(), f"{struct.name}.{name}"


def test_every_merge_key_is_a_field_of_its_elements():
    for struct in table().values():
        for name, kind in struct.fields.items():
            if kind.merge_keys:
                assert set(kind.merge_keys) <= set(struct_fields(kind.item.name)), f"{struct.name}.{name}"


def test_no_two_fields_of_a_type_share_a_number():
    for struct in table().values():
        numbers = [kind.number for kind in struct.fields.values() if kind.number]
        assert len(numbers) == len(set(numbers)), struct.name


def test_every_kind_with_a_schema_is_in_the_table():
    assert [one.kind for one in Registry() if one.schema and one.schema not in table()] == []


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("1000m", "1"), (3, "3"), ("0.5", "500m"), ("1.5Gi", "1536Mi"), ("1024Ki", "1Mi"), ("2000", "2k"),
        ("1e3", "1e3"), ("0", "0"), ("-5", "-5"), ("0.1Gi", "107374182400m"), (0.25, "250m"), (" 4 ", "4"),
        ("100Mi", "100Mi"), ("1E", "1E"), ("12e6", "12e6"),
    ],
)  # fmt: skip
def test_quantities_are_shown_in_canonical_form(written, canonical):
    assert canonical_quantity(written, "x") == canonical


@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3", "u"]),
)
def test_the_canonical_form_has_the_same_value_and_is_its_own_canonical_form(number, suffix):
    text = canonical_quantity(f"{number}{suffix}", "x")
    assert parse_quantity(text) == parse_quantity(f"{number}{suffix}")
    assert canonical_quantity(text, "x") == text


def test_unknown_fields_are_named_and_dropped_nulls_and_empty_lists_go():
    pod = {
        "metadata": {"name": "p", "labels": {}, "colour": 1},
        "spec": {
            "nodeName": None,
            "securityContext": {},
            "containers": [{"name": "c", "imag": "x", "args": []}],
        },
    }
    settled, unknown = settle("Pod", pod)
    assert unknown == ["metadata.colour", "spec.containers[0].imag"]
    assert settled == {
        "metadata": {"name": "p"},
        "spec": {"securityContext": {}, "containers": [{"name": "c"}]},
    }


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"containers": {}}, "spec.containers"),
        ({"containers": ["c"]}, "spec.containers[0]"),
        ({"nodeName": 5}, "spec.nodeName"),
        ({"hostNetwork": "yes"}, "spec.hostNetwork"),
        ({"priority": "1"}, "spec.priority"),
        ({"priority": True}, "spec.priority"),
        ({"nodeSelector": []}, "spec.nodeSelector"),
        ({"nodeSelector": {"a": 1}}, "spec.nodeSelector[a]"),
        ({"overhead": {"cpu": "much"}}, "spec.overhead[cpu]"),
        ({"overhead": {"cpu": []}}, "spec.overhead[cpu]"),
        ("text", "spec"),
    ],
)
def test_fields_of_a_wrong_type_are_named(spec, path):
    with pytest.raises(FieldTypeError) as error:
        settle("Pod", {"spec": spec})
    assert error.value.path == path


def test_kinds_without_a_table_keep_everything_but_wrong_metadata():
    settled, unknown = settle(None, {"metadata": {"name": "x", "odd": 1}, "anything": {"goes": None}})
    assert settled == {"metadata": {"name": "x"}, "anything": {"goes": None}}
    assert unknown == ["metadata.odd"]


def length_delimited(number, content):
    return bytes(((number << 3) | 2, len(content))) + content


def config_map(content):
    type_meta = length_delimited(1, b"v1") + length_delimited(2, b"ConfigMap")
    return b"k8s\x00" + length_delimited(1, type_meta) + length_delimited(2, content)


def test_a_protobuf_body_is_read_by_field_numbers():
    entry = length_delimited(1, b"key") + length_delimited(2, b"value")
    metadata = length_delimited(1, b"cm") + length_delimited(3, b"")
    body = config_map(length_delimited(1, metadata) + length_delimited(2, entry) + bytes((4 << 3, 1)))
    assert protobuf.decode(body, Registry().schema_of) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cm"},
        "data": {"key": "value"},
        "immutable": True,
    }


@given(st.binary(max_size=60))
def test_the_protobuf_reader_reads_or_refuses_any_bytes(content):
    for body in (content, b"k8s\x00" + content, config_map(content)):
        with contextlib.suppress(ApiError):
            assert isinstance(protobuf.decode(body, Registry().schema_of), dict)
