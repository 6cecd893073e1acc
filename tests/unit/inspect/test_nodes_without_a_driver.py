"""A node whose driver does not work is named with the cause that its agent reports, in every form of the output."""

import json
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.objects import Node, NodeCondition
from gpushare.inspect.errors import InspectError
from tests.unit.inspect.clusters import device, node
from tests.unit.inspect.test_whole_gpu_nodes import shown

CAUSE = "NVML: Driver Not Loaded. Run `nvidia-smi` as root on the node to load it"
FAULT = f"node has no working GPU ({CAUSE})"
SHARES = node("a", "10.0.0.1", [device(0)])


def broken(*, described: bool) -> Node:
    """With GPUs that the agent knows from before, or without any."""
    made = node("b", "10.0.0.2", [device(0, healthy=False, reason="Driver Not Loaded")], advertised=described)
    if not described:
        assert made.metadata.annotations
        del made.metadata.annotations[names.ANN_DEVICES]
    made.status.conditions = [NodeCondition(names.CONDITION_READY, "False", "DriverFailed", CAUSE)]
    return msgspec.convert(msgspec.to_builtins(made), Node)


@pytest.mark.parametrize("words", [(), ("-o", "wide"), ("-d",)])
def test_a_node_without_gpus_is_a_warning_with_the_cause(words: tuple[str, ...]) -> None:
    text, _ = shown(SHARES, words=words)
    assert shown(SHARES, broken(described=False), words=words) == (text, (f"warning: node b: {FAULT}",))


def test_labels_and_chart_are_not_mentioned_if_no_node_works() -> None:
    _, remarks = shown(broken(described=False))
    assert remarks == (f"warning: node b: {FAULT}",)


def test_a_node_requested_by_name_is_answered_with_the_cause() -> None:
    with pytest.raises(InspectError, match=r"^node b: node has no working GPU \(NVML: Driver Not Loaded\."):
        shown(broken(described=False), words=("b",))


def test_gpus_known_from_before_stay_in_the_table() -> None:
    text, remarks = shown(broken(described=True))
    assert "0/15" in text
    assert remarks[0] == f"warning: node b is included, and accepts no new pods: {FAULT}"


@pytest.mark.parametrize("described", [True, False])
def test_json_has_the_cause(described: bool) -> None:
    document: dict[str, Any] = json.loads(shown(broken(described=described), words=("-o", "json"))[0])
    assert [one["closed"] for one in document["nodes"]] == [FAULT] * described
    assert document["warnings"] == [
        f"node b is included, and accepts no new pods: {FAULT}" if described else f"node b: {FAULT}"
    ]
