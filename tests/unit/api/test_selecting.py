"""Node labels that a pod requires and no node can have are reported with a suggestion."""

from typing import Any

import pytest

from gpushare.api.objects import decode_pod
from gpushare.reasons.mistakes.selectors import mistyped, unmet


def affinity(*requirements: tuple[str, str, list[str] | None]) -> dict[str, Any]:
    expressions = [{"key": key, "operator": how, "values": values} for key, how, values in requirements]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]} for one in expressions]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def reports(**spec: Any) -> list[str]:
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
def test_an_impossible_value_is_reported_with_the_closest_possible_one(
    key: str, value: str, meant: str
) -> None:
    tail = f"requires {key}={value}, which no node can have: write {meant}"
    assert reports(nodeSelector={"zone": "a", key: value}) == [f"its nodeSelector {tail}"]
    assert reports(affinity=affinity((key, "In", ["share", value] if "sched" in key else [value]))) == [
        f"its node affinity {tail}"
    ]


def test_an_unknown_node_label_is_named() -> None:
    assert reports(nodeSelector={"ack.node.gpu.scheduler": "cgpu"}) == [
        "its nodeSelector names label ack.node.gpu.scheduler, which is unknown: write ack.node.gpu.schedule"
    ]
    assert reports(affinity=affinity(("ack.node.gpu.x", "In", ["y"]))) == [
        "its node affinity names label ack.node.gpu.x, which is unknown: "
        "write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod"
    ]


def test_existing_labels_and_foreign_ones_are_ignored() -> None:
    key = "ack.node.gpu.schedule"
    modes = ("default", "share", "cgpu", "core_mem", "mps", "topology", "dra")
    assert [text for mode in modes for text in reports(nodeSelector={key: mode})] == []
    assert (
        reports(nodeSelector={"ack.node.gpu.placement": "spread", "ack.node.gpu.max-pod": "3", "gpu": "x"})
        == []
    )
    assert (
        reports(affinity=affinity((key, "NotIn", ["core-mem"]), (key, "Exists", None), ("zone", "In", ["x"])))
        == []
    )
    assert (
        reports()
        == reports(affinity={"podAntiAffinity": {"x": []}})
        == reports(affinity={"nodeAffinity": {}})
        == []
    )


def test_a_preference_excludes_no_node() -> None:
    wish = {"preference": {"matchExpressions": [{"key": "ack.node.gpu.x", "operator": "Exists"}]}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    assert reports(affinity=preferred) == []
    assert unmet(decode_pod({"spec": {"affinity": preferred}})) == [
        "node affinity names labels that no node can have: "
        "ack.node.gpu.x (write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod)"
    ]


def test_each_is_reported_once_and_none_that_a_node_has() -> None:
    key = "ack.node.gpu.schedule"
    spec = {"nodeSelector": {key: "core-mem"}, "affinity": affinity((key, "In", ["x"]), (key, "In", ["x"]))}
    assert len(reports(**spec)) == 2
    assert mistyped(decode_pod({"spec": spec}), {(key, "core-mem"), (key, "x")}) == []


def test_thousands_of_values_cost_no_more_than_a_few() -> None:
    key = "ack.node.gpu.schedule"
    values = [f"core-mem-{number}" for number in range(5000)]
    assert reports(affinity=affinity((key, "In", values))) == [
        f"its node affinity requires {key}={value}, which no node can have: write core_mem"
        for value in values[:3]
    ]
    # Beyond the first values nothing is compared.
    assert reports(affinity=affinity((key, "In", [*["share"] * 50, "x"]))) == []
    assert reports(affinity=affinity(("zone", "In", ["a"] * 50), (key, "In", ["x"]))) != []


def test_an_endless_value_is_cut() -> None:
    (of_value,) = reports(nodeSelector={"ack.node.gpu.schedule": "core-mem" * 10_000})
    (of_key,) = reports(nodeSelector={"ack.node.gpu.schedule" + "x" * 10_000: "share"})
    assert "core-memcore-mem" in of_value
    assert max(len(of_value), len(of_key)) < 300
