"""Bodies of kube-scheduler are read in either spelling, and answers have Go's names."""

import json
from typing import Any

import pytest

from gpushare.scheduler.server import protocol

POD = {"metadata": {"name": "a", "namespace": "default", "uid": "u"}, "spec": {"containers": []}}
NODES = {"metadata": {}, "items": [{"metadata": {"name": "n1"}, "extra": 1}, {"metadata": {"name": "n2"}}]}


@pytest.mark.parametrize(
    "body",
    [
        {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]},
        {"pod": POD, "nodenames": ["n1", "n2"]},
        {"Pod": POD, "Nodes": NODES, "NodeNames": None},
        {"pod": POD, "nodes": NODES},
    ],
)
def test_a_filter_body_of_any_scheduler_is_read(body: dict[str, Any]) -> None:
    args = protocol.read_args(json.dumps(body).encode())
    assert args.pod.key == "default/a"
    assert args.names() == ["n1", "n2"]


def test_names_are_answered_with_names() -> None:
    args = protocol.read_args(json.dumps({"Pod": POD, "NodeNames": ["n1", "n2", "n3"]}).encode())
    assert json.loads(protocol.filter_answer(args, ["n1"], {"n2": "full"}, {"n3": "too small"})) == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {"n2": "full"},
        "FailedAndUnresolvableNodes": {"n3": "too small"},
        "Error": "",
    }


def test_full_nodes_are_answered_with_those_very_nodes() -> None:
    args = protocol.read_args(json.dumps({"Pod": POD, "Nodes": NODES}).encode())
    answer = json.loads(protocol.filter_answer(args, ["n1"], {"n2": "full"}, {}))
    assert answer["Nodes"] == {"metadata": {}, "items": [{"metadata": {"name": "n1"}, "extra": 1}]}
    assert answer["NodeNames"] is None


def test_a_body_without_any_node_has_no_names() -> None:
    assert (
        protocol.read_args(json.dumps({"Pod": POD, "Nodes": None, "NodeNames": None}).encode()).names() == []
    )


@pytest.mark.parametrize(
    "body",
    [
        {"PodName": "a", "PodNamespace": "default", "PodUID": "u", "Node": "n1"},
        {"podName": "a", "podNamespace": "default", "podUID": "u", "node": "n1"},
    ],
)
def test_a_bind_body_is_read_in_either_spelling(body: dict[str, str]) -> None:
    args = protocol.read_binding(json.dumps(body).encode())
    assert (args.key, args.uid, args.node) == ("default/a", "u", "n1")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"Pod": 3}', b"\xff"])
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(protocol.WireError, match="not an ExtenderArgs object"):
        protocol.read_args(body)
    with pytest.raises(protocol.WireError, match="not an ExtenderBindingArgs object"):
        protocol.read_binding(body)
