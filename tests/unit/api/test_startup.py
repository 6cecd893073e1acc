"""A node may lose its startup taint once its agent has described it and its kubelet offers its mode's resources."""

from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.startup_taint import STARTUP_TAINT, has_startup_taint, lacks
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit

GPU = (Device(0, "GPU-1", 16160),)


def node(mode: str = "share", described: NodeMode | None = NodeMode.SHARE, **offered: Any) -> dict[str, Any]:
    amounts = {
        "mem": names.GPU_MEM,
        "count": names.GPU_COUNT,
        "core": names.GPU_CORE,
        "whole": names.GPU_WHOLE,
    }
    annotations = (
        {} if described is None else {names.ANN_DEVICES: devices_annotation(described, MemoryUnit.GIB, GPU)}
    )
    return {
        "metadata": {"name": "n", "labels": {names.LABEL_MODE: mode}, "annotations": annotations},
        "status": {"allocatable": {amounts[key]: value for key, value in offered.items()}},
    }


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (node(mem="15", count="1"), ""),
        (node("core_mem", NodeMode.CORE_MEM, mem="15", count="1", core="100"), ""),
        (node("topology", NodeMode.TOPOLOGY, whole="1"), ""),
        (node(described=None, mem="15", count="1"), "no node agent"),
        (node("cgpu", mem="15", count="1"), "not switched to mode cgpu"),
        (node(mem="15"), f"offer {names.GPU_COUNT}"),
        (node(mem="0", count="1"), f"offer {names.GPU_MEM}"),
        (node(mem="much", count="1"), "not a valid quantity"),
        (node("core_mem", NodeMode.CORE_MEM, mem="15", count="1"), f"offer {names.GPU_CORE}"),
        (node("topology", NodeMode.TOPOLOGY), f"offer {names.GPU_WHOLE}"),
        (node("default", NodeMode.DEFAULT), "offers no gpushare resource"),
        (node("sideways", mem="15", count="1"), "sideways"),
    ],
)
def test_missing_parts_are_reported(made: dict[str, Any], word: str) -> None:
    found = lacks(decode_node(made))
    assert (word in found) if word else not found


def test_only_our_taint_counts() -> None:
    tainted = {
        "metadata": {"name": "n"},
        "spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]},
    }
    assert has_startup_taint(msgspec.json.encode(tainted))
    talk = {"metadata": {"name": "n", "annotations": {"a": STARTUP_TAINT}}, "spec": {"taints": None}}
    assert not has_startup_taint(msgspec.json.encode(talk))
    assert not has_startup_taint(b'{"metadata": {"name": "n"}}')
