"""Whether another node takes a pod: never claimed if it is unknown."""

from typing import Any

import msgspec
import pytest

from gpushare.api.node.hosting import Guest, HostingNode, decode_guest, decode_hosting, objection


def node(**spec: Any) -> HostingNode:
    status = {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "5", "aliyun.com/gpu-mem": "16"}}
    meta = {"name": "n", "labels": {"zone": "a"}}
    return decode_hosting(msgspec.json.encode({"metadata": meta, "spec": spec, "status": status}))


def pod(cpu: str = "1", *, init: list[dict[str, Any]] | None = None, **spec: Any) -> Guest:
    resources = {"limits": {"aliyun.com/gpu-mem": "4", "cpu": "9"}, "requests": {"cpu": cpu}}
    containers = [{"name": "c", "resources": resources}, {"name": "plain"}]
    made = {"containers": containers, "initContainers": init, **spec}
    return decode_guest(msgspec.json.encode({"metadata": {"name": "p", "uid": "u"}, "spec": made}))


TAINT = {"key": "shut", "value": "yes", "effect": "NoSchedule"}


def test_a_node_with_room_takes_an_ordinary_pod() -> None:
    anywhere = [{"name": "t", "projected": {"sources": []}}, {"name": "e", "emptyDir": {}}]
    assert objection(pod(volumes=anywhere, nodeSelector={"zone": "a"}), node(), [], new=True) == ""
    assert objection(pod("0"), node(), [pod("2")], new=True) == ""


@pytest.mark.parametrize(
    "demand",
    [
        {"affinity": {"podAntiAffinity": {}}},
        {"topologySpreadConstraints": [{"maxSkew": 1}]},
        {"hostNetwork": True},
        {"resourceClaims": [{"name": "x"}]},
        {"resources": {"limits": {"cpu": "1"}}},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        {"containers": [{"name": "c", "ports": [{"containerPort": 80}, {"hostPort": 80}]}]},
    ],
)
def test_a_pod_with_unexamined_demands_goes_to_no_other_node(demand: dict[str, Any]) -> None:
    particular = decode_guest(
        msgspec.json.encode({"metadata": {"name": "p"}, "spec": {"containers": [], **demand}})
    )
    assert "requests resources other than CPU and memory" in objection(particular, node(), [], new=True)
    assert objection(particular, node(), [], new=False) == ""


def test_cordons_and_taints_apply_to_the_pods_own_node_too() -> None:
    for new in (False, True):
        assert objection(pod(), node(unschedulable=True), [], new=new) == "node n is cordoned"
        assert "taint shut" in objection(pod(), node(taints=[TAINT]), [], new=new)
    soft = node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])
    assert objection(pod(), soft, [], new=True) == ""


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"key": "shut", "value": "yes"}, True),
        ({"key": "shut", "operator": "", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "shut", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "shut", "value": "no"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "yes"}, False),
        ({"key": "shut", "operator": "Gt", "value": "yes"}, False),
    ],
)
def test_tolerations_match_as_in_kubernetes(toleration: dict[str, str], covers: bool) -> None:
    reason = objection(pod(tolerations=[toleration]), node(taints=[TAINT]), [], new=False)
    assert (reason == "") is covers


def test_labels_and_every_resource_count() -> None:
    assert "label zone" in objection(pod(nodeSelector={"zone": "b"}), node(), [], new=True)
    assert "too little cpu" in objection(pod("1500m"), node(), [pod("501m")], new=True)
    assert "too little pods" in objection(pod("0"), node(), [pod("0")] * 5, new=True)
    assert "too little aliyun.com/gpu-mem" in objection(pod("0"), node(), [pod("0")] * 4, new=True)
    assert "too little cpu" in objection(pod("1500m", overhead={"cpu": "600m"}), node(), [], new=True)


def test_init_containers_and_sidecars_count_as_in_kubernetes() -> None:
    def wants(cpu: str, **more: str) -> dict[str, Any]:
        return {"name": "i", "resources": {"limits": {"cpu": cpu}}, **more}

    def reason(*init: dict[str, Any]) -> str:
        return objection(pod("1", init=list(init)), node(), [], new=True)

    assert reason(wants("2"), wants("1900m")) == ""
    assert reason(wants("2001m")) == "node n has too little cpu"
    assert reason(wants("1", restartPolicy="Always")) == ""
    assert reason(wants("1001m", restartPolicy="Always")) == "node n has too little cpu"
    assert reason(wants("500m", restartPolicy="Always"), wants("1500m")) == ""
    assert reason(wants("500m", restartPolicy="Always"), wants("1501m")) == "node n has too little cpu"


def test_requests_of_the_pod_replace_those_of_its_containers() -> None:
    there = pod("100m", resources={"requests": {"cpu": "1500m"}, "limits": {"cpu": "9"}})
    assert objection(pod("500m"), node(), [there], new=True) == ""
    assert objection(pod("501m"), node(), [there], new=True) == "node n has too little cpu"
    assert objection(pod("1500m"), node(), [pod("1", resources={"limits": {"cpu": "500m"}})], new=True) == ""


def test_unreadable_values_are_an_objection() -> None:
    assert "cannot be read" in objection(pod("none"), node(), [], new=True)
