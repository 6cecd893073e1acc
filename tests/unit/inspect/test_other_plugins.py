"""Nodes whose GPUs another device plugin serves: shown with ``--all``, in no sum, and never twice."""

import json
from typing import Any, cast

import msgspec
import pytest

from gpushare.inspect.arguments import parse
from gpushare.inspect.errors import UsageError
from gpushare.inspect.render import render
from gpushare.inspect.sources.kubectl import Kubectl, Round
from tests.unit.inspect.clusters import device, node
from tests.unit.inspect.schema import faults


def served(name: str, labels: dict[str, str] | None = None, **offers: str) -> dict[str, Any]:
    """A node of NVIDIA's plugin; ``offers``: part of the resource after ``nvidia.com/``."""
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {
            "capacity": {
                "cpu": "8",
                **{f"nvidia.com/{resource}": amount for resource, amount in offers.items()},
            },
            "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
        },
    }


OURS = cast("dict[str, Any]", msgspec.to_builtins(node("ours", "10.0.0.1", [device(0)])))
OTHERS = [
    served("mig", {"nvidia.com/mig.strategy": "mixed"}, **{"mig-1g.10gb": "7"}),
    served("none", gpu="0"),
    served("sliced", {"nvidia.com/gpu.sharing-strategy": "time-slicing"}, gpu="8"),
    served("whole", {"nvidia.com/gpu.sharing-strategy": "none"}, gpu="8"),
]


class _Read:
    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self._nodes = nodes

    def finish(self) -> tuple[bytes, bytes]:
        return json.dumps({"items": self._nodes}).encode(), b'{"items": []}'


def shown(nodes: list[dict[str, Any]], *arguments: str) -> tuple[str, tuple[str, ...]]:
    view = render(Kubectl(program="none"), parse(list(arguments)), cast("Round", _Read(nodes)))
    return view.text, view.remarks


def test_they_have_their_own_table_with_their_kind_of_sharing() -> None:
    without, _ = shown([OURS, *OTHERS])
    text, remarks = shown([OURS, *OTHERS], "--all")
    assert remarks == ()
    assert text.startswith(without), "sums are those of our nodes"
    assert [line.split() for line in text[len(without) :].splitlines()[1:]] == [
        ["NAME", "IPADDRESS", "MANAGED", "BY", "ANOTHER", "PLUGIN", "SHARING"],
        ["mig", "10.0.0.9", "nvidia.com/mig-1g.10gb:", "7", "MIG", "mixed"],
        ["sliced", "10.0.0.9", "nvidia.com/gpu:", "8", "time-slicing"],
        ["whole", "10.0.0.9", "nvidia.com/gpu:", "8", "whole", "GPUs"],
    ]


def test_the_document_lists_them_only_with_the_flag() -> None:
    document = json.loads(shown([OURS, *OTHERS], "--all", "-o", "json")[0])
    assert not faults(document)
    assert [one["name"] for one in document["nodes"]] == ["ours"]
    assert document["otherNodes"][1] == {
        "name": "sliced",
        "address": "10.0.0.9",
        "offers": {"nvidia.com/gpu": 8},
        "sharing": "time-slicing",
    }
    assert "otherNodes" not in json.loads(shown([OURS, *OTHERS], "-o", "json")[0])


def test_a_node_served_by_both_is_in_one_table_with_a_warning() -> None:
    both = json.loads(json.dumps(OURS))
    both["status"]["capacity"]["nvidia.com/gpu"] = "1"
    text, remarks = shown([both], "--all")
    assert remarks == (
        "warning: node ours: another device plugin also offers its GPUs (nvidia.com/gpu: 1); `gpushare doctor` says what to do",
    )
    assert text == shown([OURS])[0]


@pytest.mark.parametrize("arguments", [["--all", "n1"], ["--all", "--pods"], ["--all", "--why", "pod"]])
def test_the_flag_applies_to_the_table_of_nodes(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="--all applies to the table of nodes"):
        parse(arguments)
