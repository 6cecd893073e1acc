"""A placeholder pod requests what its pod requests, on other nodes of the right kind, and is read back unchanged."""

from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.crd.placeholder_pod import (
    UNSCHEDULABLE,
    Likeness,
    PlaceholderPod,
    decode_placeholder,
    obstacle,
    placeholder_for,
)
from gpushare.api.node.hosting import decode_guest

TYPE = "node.kubernetes.io/instance-type"
LIKENESS = Likeness(frozenset({"n1", "n2"}), TYPE, frozenset({"gpu.large"}))
OURS = [
    {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]},
    {"key": TYPE, "operator": "In", "values": ["gpu.large"]},
]


def pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"limits": {names.GPU_MEM: "8"}}}
    return {
        "metadata": {"name": "large", "namespace": "team", "uid": "u-1"},
        "spec": {"containers": [container], **spec},
    }


def made(likeness: Likeness = LIKENESS, **spec: Any) -> dict[str, Any]:
    return placeholder_for(decode_guest(msgspec.json.encode(pod(**spec))), likeness, "placeholders")


def terms(manifest: dict[str, Any]) -> Any:
    required = manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


def test_it_requests_the_same_under_other_names_and_is_never_scheduled() -> None:
    found = made()
    assert found["metadata"] == {
        "name": "stand-in-u-1",
        "namespace": "placeholders",
        "labels": {names.LABEL_STANDS_FOR: "u-1"},
        "annotations": {names.ANN_STANDS_FOR: "team/large"},
    }
    assert found["spec"]["schedulerName"] == names.PLACEHOLDER_SCHEDULER
    (container,) = found["spec"]["containers"]
    assert container["resources"]["limits"] == {names.GPU_MEM: "8"}
    assert container["image"] != "x"
    assert terms(found) == [OURS]


def test_it_has_its_pods_demands_on_nodes_too() -> None:
    demand = {"key": "zone", "operator": "In", "values": ["a"]}
    other = {"key": "disk", "operator": "Exists"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [demand]}, {"matchExpressions": [other]}]}
    found = made(
        nodeSelector={"a": "b"},
        tolerations=[{"key": "t", "operator": "Exists"}, {"operator": "Exists", "tolerationSeconds": 3}],
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        initContainers=[
            {"name": "i", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"name": "j", "image": "x"},
        ],
    )
    assert found["spec"]["nodeSelector"] == {"a": "b"}
    assert found["spec"]["tolerations"] == [{"key": "t", "operator": "Exists"}, {"operator": "Exists"}]
    assert terms(found) == [[demand, *OURS], [other, *OURS]]
    sidecar, plain = found["spec"]["initContainers"]
    assert (sidecar["restartPolicy"], sidecar["resources"]["requests"]) == ("Always", {"cpu": "1"})
    assert "restartPolicy" not in plain
    assert plain["resources"] == {}


def test_it_is_read_back_unchanged() -> None:
    found = made()
    found["metadata"]["uid"] = "s-1"
    raw = msgspec.json.encode(found)
    expected = PlaceholderPod("stand-in-u-1", "s-1", "u-1", LIKENESS)
    assert decode_placeholder(raw) == ("placeholders/stand-in-u-1", expected)
    found["status"] = {"conditions": [{**UNSCHEDULABLE, "message": "m"}]}
    found["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    read = decode_placeholder(msgspec.json.encode(found))
    assert read is not None
    assert (read[1].unschedulable, read[1].leaving, read[1].likeness) == (True, True, LIKENESS)


def test_a_pod_without_the_label_is_no_placeholder_and_one_with_the_label_only_has_no_demands() -> None:
    assert decode_placeholder(msgspec.json.encode(pod())) is None
    bare = {"metadata": {"name": "s", "namespace": "n", "labels": {names.LABEL_STANDS_FOR: "u"}}}
    nothing = Likeness(frozenset(), "", frozenset())
    for spec in (
        {},
        {"affinity": {}},
        {"affinity": {"nodeAffinity": {}}},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
    ):
        found = decode_placeholder(msgspec.json.encode({**bare, "spec": spec}))
        assert found is not None
        assert found[1].likeness == nothing


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({}, ""),
        ({"affinity": {"nodeAffinity": {"x": 1}, "podAffinity": None}}, ""),
        ({"affinity": {"podAntiAffinity": {"x": 1}}}, "pod affinity"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "cannot copy"),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, ""),
        ({"nodeSelector": {"kubernetes.io/hostname": "n1"}}, "a node by name"),
        ({"hostNetwork": True}, "cannot copy"),
        ({"overhead": {"cpu": "1"}}, "cannot copy"),
        ({"schedulingGates": [{"name": "g"}]}, "cannot copy"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "cannot copy"),
    ],
)
def test_a_demand_that_it_cannot_express_is_an_obstacle(spec: dict[str, Any], word: str) -> None:
    found = obstacle(decode_guest(msgspec.json.encode(pod(**spec))))
    assert (word in found) if word else not found
