"""ResourcePolicies as users write them, and pods as policies see them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpushare.admission.rules.request_rules import RECORDS
from gpushare.api import names
from gpushare.api.crd.resource_policy import (
    Kind,
    MalformedPolicy,
    TryNext,
    amounts_of,
    decode_policy,
    duration_s,
    policy_pod_of,
    seconds_of,
)
from gpushare.api.objects import decode_pod
from tests.unit.scheduler.resource_policy.policy_samples import policy, written

CHECKOUT = Path(__file__).parents[3]

DOCUMENTED = """
metadata: {name: test, namespace: default, uid: u, generation: 3, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  selector: {key1: value1}
  strategy: prefer
  units:
  - nodeSelector: {unit: first}
    podLabels: {key1: value1}
    podAnnotations: {key1: value1}
    resource: ecs
  - {nodeSelector: {unit: second}, max: 10, resource: ecs}
  - resource: eci
  preemptPolicy: AfterAllUnits
  ignorePreviousPod: false
  ignoreTerminatingPod: true
  matchLabelKeys: [pod-template-hash]
  whenTryNextUnits: {policy: TimeoutOrExceedMax, timeout: 1m}
"""


def test_the_documented_policy_is_read() -> None:
    read = decode_policy(json.dumps(yaml.safe_load(DOCUMENTED)).encode())
    assert (read.key, read.generation, read.created) == ("default/test", 3, 1_767_225_600.0)
    assert read.selects({"key1": "value1", "other": "x"})
    assert not read.selects({"key1": "value2"})
    assert [unit.kind for unit in read.units] == [Kind.ECS, Kind.ECS, Kind.ECI]
    assert [unit.most_pods for unit in read.units] == [None, 10, None]
    assert (read.try_next, read.timeout_s, read.label_keys) == (TryNext.TIMEOUT, 60.0, ("pod-template-hash",))
    assert (read.preempts_before_next, read.ignores_previous, read.ignores_terminating) == (
        False,
        False,
        True,
    )
    assert read.units[0].is_carried({"key1": "value1"}, {"key1": "value1"})
    assert not read.units[0].is_carried({"key1": "value1"}, {})
    assert read.reference().api_version == "scheduling.alibabacloud.com/v1alpha1"


def test_omitted_fields_have_the_documented_defaults() -> None:
    read = decode_policy(b'{"metadata": {"name": "a", "namespace": "b"}, "spec": {"units": [{}]}}')
    assert read.selects({})
    assert (read.try_next, read.timeout_s) == (TryNext.LACK, 900.0)
    assert (read.preempts_before_next, read.ignores_previous, read.ignores_terminating) == (
        False,
        False,
        True,
    )
    assert (read.units[0].kind, read.units[0].is_capped, read.created) == (Kind.ECS, False, 0.0)


def test_amounts_are_read_in_kubernetes_notation() -> None:
    [unit] = policy({"maxResources": {"cpu": "1500m", "memory": "1Ki", "x": 2}}).units
    assert unit.most == {"cpu": 1500, "memory": 1_024_000, "x": 2000}
    assert unit.is_capped


def test_units_that_are_waited_for_are_marked_and_the_marker_is_not_put_on_pods() -> None:
    word = {names.LABEL_WAIT_FOR_SCALING: "true"}
    units = policy({"podLabels": {**word, "a": "b"}}, {"resource": "elastic"}, {}).units
    assert [unit.waits for unit in units] == [True, True, False]
    assert units[0].pod_labels == {"a": "b"}


def test_virtual_nodes_are_recognized_by_their_label() -> None:
    real, virtual = policy({}, {"resource": "acs", "nodeSelector": {}}).units
    assert real.has_node({"pool": "a"})
    assert not real.has_node({"pool": "a", "type": "virtual-kubelet"})
    assert virtual.has_node({"type": "virtual-kubelet"})
    assert not virtual.has_node({})


@pytest.mark.parametrize(
    ("units", "spec", "words"),
    [
        ([], {}, "0 units"),
        ([{}], {"strategy": "required"}, "strategy is 'required'"),
        ([{}], {"preemptPolicy": "Never"}, "preemptPolicy is 'Never'"),
        ([{}], {"whenTryNextUnits": {"timeout": "soon"}}, "write a duration such as 15m"),
        ([{"max": -1}], {}, "unit 1: max is -1"),
        ([{"maxResources": {"cpu": "much"}}], {}, "maxResources cpu"),
        ([{"podLabels": {"app": "y"}}], {}, "podLabels sets app"),
        ([{"podLabels": {"h": "y"}}], {"matchLabelKeys": ["h"]}, "podLabels sets h"),
        *(
            ([{"podAnnotations": {key: "y"}}], {}, f"podAnnotations sets {key}, which only gpushare or")
            for key in (*RECORDS, "gpushare.dev/x", "kubernetes.io/config.mirror", "scheduler.alpha.k8s.io/x")
        ),
        *(
            (
                [{"podLabels": {key: "y"}}],
                {},
                f"podLabels sets {key}, which says what a pod requests or holds",
            )
            for key in (*RECORDS, names.LABEL_POD_APART, "aliyun.com/gpu-count", "ack.gpushare.placement")
        ),
    ],
)
def test_invalid_values_are_refused_with_their_path(
    units: list[Any], spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(MalformedPolicy, match=words):
        decode_policy(written(*units, **spec))


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_policy(written({}, whenTryNextUnits={"policy": "Never"}))


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("1h30m", 5400), ("1.5s", 1.5), ("250ms", 0.25), ("1m1s1ms", 61.001)]
)
def test_durations_are_in_gos_format(text: str, seconds: float) -> None:
    assert duration_s(text, "x") == pytest.approx(seconds)


def test_invalid_times_are_the_epoch() -> None:
    assert [seconds_of(text) for text in (None, "", "yesterday")] == [0.0, 0.0, 0.0]


def test_a_pods_amounts_are_counted_as_in_kubernetes() -> None:
    def container(**more: Any) -> dict[str, Any]:
        return {"name": "c", **more}

    pod = decode_pod(
        {
            "metadata": {"name": "p"},
            "spec": {
                "initContainers": [container(resources={"requests": {"cpu": "3"}})],
                "containers": [
                    container(resources={"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "500m"}}),
                    container(),
                ],
                "overhead": {"cpu": "10m", "pods": "1"},
            },
        }
    )
    assert amounts_of(pod) == {"cpu": 3010, "memory": 1000, "pods": 1000}


def test_only_what_policies_need_is_stored_of_a_pod() -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]
    raw = {
        "metadata": {
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "annotations": {"long": "x" * 2000, "short": "y"},
        },
        "spec": {"nodeName": "node"},
        "status": {"conditions": conditions, "nominatedNodeName": "other"},
    }
    pod = policy_pod_of(decode_pod(raw))
    assert (pod.key, pod.node, pod.nominated, pod.annotations) == ("n/p", "node", "other", {"short": "y"})
    assert (pod.scheduled, pod.created, pod.leaving) == (1_767_225_600.0, 0.0, False)
    assert policy_pod_of(decode_pod({"metadata": {"name": "p"}})).scheduled == 0.0


@pytest.mark.parametrize(
    ("scheduler", "owner", "strays"),
    [
        ("default-scheduler", "ReplicaSet", True),
        ("default-scheduler", "DaemonSet", False),
        ("default-scheduler", "Node", False),
        ("ack-co-scheduler", "ReplicaSet", False),
        ("", "ReplicaSet", False),
    ],
)
def test_pods_of_other_schedulers_are_strays_unless_made_for_one_node(
    scheduler: str, owner: str, strays: bool
) -> None:
    owners = [{"kind": owner, "name": "o", "uid": "u", "controller": True}]
    raw = {"metadata": {"name": "p", "ownerReferences": owners}, "spec": {"schedulerName": scheduler}}
    assert policy_pod_of(decode_pod(raw)).strays is strays


@pytest.mark.parametrize("definition", ["resourcepolicies.yaml", "elasticquotatree.yaml"])
def test_the_package_and_the_chart_have_the_same_definition(definition: str) -> None:
    chart = CHECKOUT / "charts/ack-co-scheduler/templates/crds" / definition
    copy = CHECKOUT / "src/gpushare/kube/kinds" / definition
    assert chart.read_text() == copy.read_text()


def test_the_schema_has_the_accepted_words() -> None:
    chart = yaml.safe_load(
        (CHECKOUT / "charts/ack-co-scheduler/templates/crds/resourcepolicies.yaml").read_text()
    )
    spec = chart["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(spec["units"]["items"]["properties"]["resource"]["enum"]) == {one.value for one in Kind}
    assert set(spec["whenTryNextUnits"]["properties"]["policy"]["enum"]) == {one.value for one in TryNext}
