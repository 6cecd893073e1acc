from typing import Any

import pytest

from gpushare.kubescheduler.filters import Wanted, ignored_wishes
from gpushare.kubescheduler.fit_error import fit_error
from gpushare.kubescheduler.node_usage import NodeState, Occupancy
from gpushare.kubescheduler.resources import amounts_of, requests_of
from gpushare.kubescheduler.scores import best, score
from gpushare_playground.objects import Json
from tests.unit.playground.kubescheduler.pods import a_node, a_pod


def occupancy(*nodes: Json) -> Occupancy:
    made = Occupancy()
    for node in nodes:
        made.set_node(node)
    return made


def state_of(node: Json, *pods: Json) -> NodeState:
    made = occupancy(node)
    for pod in pods:
        made.place(pod, node["metadata"]["name"])
    [state] = made
    return state


def containers(*amounts: dict[str, str]) -> list[Json]:
    return [{"name": f"c{i}", "resources": {"requests": one}} for i, one in enumerate(amounts)]


def test_amounts_are_exact_and_rounded_up() -> None:
    assert amounts_of({"cpu": "100m", "memory": "1.5Ki", "x/y": "3"}) == {
        "cpu": 100,
        "memory": 1536,
        "x/y": 3,
    }
    assert amounts_of({"cpu": "0.0001"}) == {"cpu": 1}
    assert amounts_of({"cpu": "lots"}) == {}


def test_a_pod_requests_the_most_that_runs_at_the_same_time() -> None:
    spec: dict[str, Any] = {
        "containers": containers({"x/y": "2"}, {"x/y": "3"}),
        "initContainers": [
            {"name": "early", "resources": {"limits": {"x/y": "4"}}},
            {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"x/y": "1"}}},
            {"name": "late", "resources": {"limits": {"x/y": "9"}}},
        ],
        "overhead": {"x/y": "1"},
    }
    assert requests_of({"metadata": {}, "spec": spec}) == {"x/y": 11}


def test_requests_of_the_pod_replace_those_of_its_containers() -> None:
    spec: dict[str, Any] = {
        "containers": containers({"cpu": "2", "x/y": "3"}, {"cpu": "3"}),
        "resources": {"limits": {"cpu": "9", "memory": "1Ki"}, "requests": {"cpu": "4"}},
        "overhead": {"cpu": "250m"},
    }
    assert requests_of({"metadata": {}, "spec": spec}) == {"cpu": 4250, "memory": 1024, "x/y": 3}


def test_requests_win_over_limits_and_default_to_them() -> None:
    resources = {"limits": {"cpu": "2", "x/y": "1"}, "requests": {"cpu": "1"}}
    pod = {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": resources}]}}
    assert requests_of(pod) == {"cpu": 1000, "x/y": 1}


def test_all_short_resources_are_named() -> None:
    state = state_of(a_node(gpu_mem="15", pods="1"), a_pod("other", requests={"aliyun.com/gpu-mem": "8"}))
    wanted = Wanted(a_pod(requests={"aliyun.com/gpu-mem": "8", "memory": "32Gi", "cpu": "9"}))
    assert wanted.refusals(state) == [
        "Too many pods",
        "Insufficient cpu",
        "Insufficient memory",
        "Insufficient aliyun.com/gpu-mem",
    ]


def test_a_resource_that_the_node_does_not_have_is_insufficient() -> None:
    assert Wanted(a_pod(requests={"x/y": "1"})).refusals(state_of(a_node())) == ["Insufficient x/y"]
    assert Wanted(a_pod(requests={"x/y": "1"}), {"x/y"}).refusals(state_of(a_node())) == []
    assert Wanted(a_pod(requests={"x/y": "0"})).refusals(state_of(a_node())) == []


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_keeps_out_pods_that_do_not_tolerate_it(toleration: Json, fits: bool) -> None:
    refusals = Wanted(a_pod(tolerations=[toleration])).refusals(state_of(a_node(taints=[TAINT])))
    assert refusals == ([] if fits else ["node(s) had untolerated taint(s)"])


def test_a_prefer_no_schedule_taint_keeps_no_pod_out() -> None:
    taint = {**TAINT, "effect": "PreferNoSchedule"}
    assert Wanted(a_pod()).refusals(state_of(a_node(taints=[taint]))) == []


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    node = a_node()
    node["spec"]["unschedulable"] = True
    assert Wanted(a_pod()).refusals(state_of(node)) == ["node(s) were unschedulable"]
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert Wanted(a_pod(tolerations=[toleration])).refusals(state_of(node)) == []


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "In", "values": ["b"]}, False),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "other", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "gpus", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "gpus", "operator": "Lt", "values": ["4"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["3"]}, False),
        ({"key": "zone", "operator": "Odd"}, False),
    ],
)
def test_required_node_affinity(expression: Json, fits: bool) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    state = state_of(a_node(labels={"zone": "a", "gpus": "4"}))
    refusals = Wanted(a_pod(affinity=affinity)).refusals(state)
    assert refusals == ([] if fits else ["node(s) didn't match Pod's node affinity/selector"])


def test_node_selector_and_field_terms() -> None:
    state = state_of(a_node(labels={"zone": "a"}))
    assert Wanted(a_pod(nodeSelector={"zone": "a"})).refusals(state) == []
    assert Wanted(a_pod(nodeSelector={"zone": "b"})).refusals(state)
    field = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}, {}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert Wanted(a_pod(affinity=affinity)).refusals(state)


def test_a_host_port_is_taken_once_per_address() -> None:
    def with_port(name: str, host: str | None) -> Json:
        port = {"containerPort": 80, "hostPort": 80} | ({"hostIP": host} if host else {})
        return a_pod(name, containers=[{"name": "c", "ports": [port]}])

    state = state_of(a_node(), with_port("holder", "10.0.0.1"))
    assert Wanted(with_port("other", "10.0.0.2")).refusals(state) == []
    taken = ["node(s) didn't have free ports for the requested pod ports"]
    assert Wanted(with_port("same", "10.0.0.1")).refusals(state) == taken
    assert Wanted(with_port("all", None)).refusals(state) == taken


def test_pods_come_and_go_and_the_sums_follow() -> None:
    nodes = occupancy(a_node(gpu_mem="15"))
    pod = a_pod(requests={"aliyun.com/gpu-mem": "8"})
    nodes.place(pod, "n1", assumed=True)
    assert nodes.is_assumed("uid-p")
    nodes.place({**pod, "spec": {**pod["spec"], "nodeName": "n1"}})
    assert not nodes.forget("uid-p")
    [state] = nodes
    assert state.used == {"aliyun.com/gpu-mem": 8}
    assert nodes.remove("uid-p")
    assert not nodes.remove("uid-p")
    assert state.used == {}


def test_pods_that_came_before_their_node_are_counted_when_it_comes() -> None:
    nodes = Occupancy()
    nodes.place(a_pod(requests={"cpu": "2"}), "n1")
    nodes.set_node(a_node())
    state = nodes.node("n1")
    assert state is not None
    assert state.used == {"cpu": 2000}
    nodes.remove_node("n1")
    assert nodes.remove("uid-p")


def test_the_emptier_node_and_the_preferred_one_score_higher() -> None:
    nodes = occupancy(a_node("a"), a_node("b"), a_node("c", labels={"fast": "yes"}))
    nodes.place(a_pod("load", requests={"cpu": "4", "memory": "8Gi"}), "a")
    states = list(nodes)
    points = score(Wanted(a_pod(requests={"cpu": "1"})), states)
    assert points[1] == points[2] > points[0]
    preferred = [{"weight": 10, "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    points = score(Wanted(a_pod(affinity=affinity)), states)
    assert best(states, points, lambda: 0.99).name == "c"


def test_equal_nodes_are_chosen_at_random() -> None:
    states = list(occupancy(a_node("a"), a_node("b")))
    assert [best(states, [5, 5], lambda value=value: value).name for value in (0.0, 0.6, 1.0)] == [
        "a",
        "b",
        "b",
    ]


def test_reasons_are_counted_and_sorted_as_text() -> None:
    reasons = [["Insufficient cpu", "Too many pods"], ["Insufficient cpu"], ["a single GPU is needed"]]
    expected = "0/3 nodes are available: 1 Too many pods, 1 a single GPU is needed, 2 Insufficient cpu."
    assert fit_error(3, reasons) == expected
    assert fit_error(2, []) == "0/2 nodes are available:"


def test_fields_that_are_not_evaluated_are_named() -> None:
    spec = {
        "affinity": {"podAntiAffinity": {"x": 1}},
        "volumes": [{"persistentVolumeClaim": {"claimName": "c"}}],
    }
    assert ignored_wishes(a_pod(**spec)) == ["affinity.podAntiAffinity", "persistentVolumeClaim"]
    assert ignored_wishes(a_pod()) == []
