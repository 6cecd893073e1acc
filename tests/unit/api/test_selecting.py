"""Labels of nodes that a pod wants and that no node can have are named with what to write."""

from typing import Any

import pytest

from gpushare.api.objects import decode_pod
from gpushare.reasons.mistakes.selectors import mistyped, unmet


def affinity(*requirements: tuple[str, str, list[str] | None]) -> dict[str, Any]:
    expressions = [{"key": key, "operator": how, "values": values} for key, how, values in requirements]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]} for one in expressions]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def said(**spec: Any) -> list[str]:
    return mistyped(decode_pod({"spec": spec}))


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("ack.node.gpu.schedule", "core-mem", "core_mem"),
        ("ack.node.gpu.schedule", "CoreMem", "core_mem"),
        ("ack.node.gpu.schedule", "CGPU", "cgpu"),
        ("ack.node.gpu.schedule", "shared", "share"),
        ("ack.node.gpu.schedule", "topolgy", "topology"),
        ("ack.node.gpu.schedule", "x", "default, share, cgpu, core_mem, mps, topology or dra"),
        ("ack.node.gpu.placement", "bin-pack", "binpack"),
        ("ack.node.gpu.placement", "", "binpack, spread or fragmentation"),
    ],
)
def test_a_value_that_no_node_can_have_is_named_with_the_nearest_that_one_can(
    key: str, value: str, meant: str
) -> None:
    tail = f"requires {key}={value}, which no node can have: write {meant}"
    assert said(nodeSelector={"zone": "a", key: value}) == [f"its nodeSelector {tail}"]
    assert said(affinity=affinity((key, "In", ["share", value] if "sched" in key else [value]))) == [
        f"its node affinity {tail}"
    ]


def test_an_unknown_node_label_is_named() -> None:
    assert said(nodeSelector={"ack.node.gpu.scheduler": "cgpu"}) == [
        "its nodeSelector names label ack.node.gpu.scheduler, which is unknown: write ack.node.gpu.schedule"
    ]
    assert said(affinity=affinity(("ack.node.gpu.x", "In", ["y"]))) == [
        "its node affinity names label ack.node.gpu.x, which is unknown: "
        "write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod"
    ]


def test_existing_labels_and_foreign_ones_are_ignored() -> None:
    key = "ack.node.gpu.schedule"
    modes = ("default", "share", "cgpu", "core_mem", "mps", "topology", "dra")
    assert [text for mode in modes for text in said(nodeSelector={key: mode})] == []
    assert (
        said(nodeSelector={"ack.node.gpu.placement": "spread", "ack.node.gpu.max-pod": "3", "gpu": "x"}) == []
    )
    assert (
        said(affinity=affinity((key, "NotIn", ["core-mem"]), (key, "Exists", None), ("zone", "In", ["x"])))
        == []
    )
    assert (
        said() == said(affinity={"podAntiAffinity": {"x": []}}) == said(affinity={"nodeAffinity": {}}) == []
    )


def test_a_preference_keeps_no_pod_off_a_node() -> None:
    wish = {"preference": {"matchExpressions": [{"key": "ack.node.gpu.x", "operator": "Exists"}]}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    assert said(affinity=preferred) == []
    assert unmet(decode_pod({"spec": {"affinity": preferred}})) == [
        "node affinity names labels that no node can have: "
        "ack.node.gpu.x (write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod)"
    ]


def test_each_is_reported_once_and_none_that_a_node_does_have() -> None:
    key = "ack.node.gpu.schedule"
    spec = {"nodeSelector": {key: "core-mem"}, "affinity": affinity((key, "In", ["x"]), (key, "In", ["x"]))}
    assert len(said(**spec)) == 2
    assert mistyped(decode_pod({"spec": spec}), {(key, "core-mem"), (key, "x")}) == []
