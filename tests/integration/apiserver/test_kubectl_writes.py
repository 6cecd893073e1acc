"""kubectl create, apply, patch, label, scale, delete against the playground's API server."""

import json

import pytest

CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "cm"},
    "data": {"a": "1", "b": "2"},
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "d"}},
        "template": {
            "metadata": {"labels": {"app": "d"}},
            "spec": {
                "containers": [
                    {"name": "a", "image": "x:1", "env": [{"name": "ONE", "value": "1"}]},
                    {"name": "b", "image": "y:1"},
                ]
            },
        },
    },
}


async def test_apply_creates_then_changes_then_leaves_alone(kubectl):
    assert (await kubectl.apply(CONFIG_MAP)).out == "configmap/cm created\n"
    assert (await kubectl.apply(CONFIG_MAP)).out == "configmap/cm unchanged\n"
    changed = {**CONFIG_MAP, "data": {"a": "1", "c": "3"}}
    assert (await kubectl.apply(changed)).out == "configmap/cm configured\n"
    assert (await kubectl("get", "cm", "cm", "-o", "jsonpath={.data}")).json == {"a": "1", "c": "3"}


async def test_apply_merges_containers_by_name_and_keeps_what_others_set(kubectl):
    await kubectl.apply(DEPLOYMENT)
    await kubectl("scale", "deploy/d", "--replicas=5")
    await kubectl("set", "env", "deploy/d", "-c", "b", "TWO=2")
    changed = json.loads(json.dumps(DEPLOYMENT))
    changed["spec"]["template"]["spec"]["containers"][0] = {"name": "a", "image": "x:2"}
    del changed["spec"]["replicas"]
    await kubectl.apply(changed)
    spec = (await kubectl("get", "deploy", "d", "-o", "json")).json["spec"]
    first, second = spec["template"]["spec"]["containers"]
    assert (first["image"], first.get("env")) == ("x:2", None)
    assert second["env"] == [{"name": "TWO", "value": "2"}]
    assert spec["replicas"] == 1  # no longer set: back to the default


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("configmap", "made", "--from-literal=x=1"), "configmap/made created"),
        (("namespace", "made"), "namespace/made created"),
        (("deployment", "made", "--image=x:1", "--replicas=3", "--port=80"), "deployment.apps/made created"),
        (("quota", "made", "--hard=requests.aliyun.com/gpu-mem=8"), "resourcequota/made created"),
        (("pdb", "made", "--selector=a=b", "--min-available=1"), "poddisruptionbudget.policy/made created"),
    ],
)
async def test_create_with_a_typed_command_that_speaks_protobuf(kubectl, arguments, expected):
    assert (await kubectl("create", *arguments)).out.strip() == expected


async def test_typed_create_carries_every_field(kubectl):
    await kubectl("create", "deployment", "made", "--image=x:1", "--replicas=3", "--port=80")
    spec = (await kubectl("get", "deploy", "made", "-o", "json")).json["spec"]
    assert spec["replicas"] == 3
    assert spec["selector"] == {"matchLabels": {"app": "made"}}
    container = spec["template"]["spec"]["containers"][0]
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert (container["name"], container["imagePullPolicy"]) == ("x", "IfNotPresent")


async def test_run_label_annotate_and_patch_in_three_ways(kubectl):
    await kubectl("run", "p", "--image=busybox:1", "--restart=Never", "--labels=a=1")
    await kubectl("label", "pod", "p", "b=2", "a-")
    await kubectl("label", "pod", "p", "b=3", "--overwrite")
    await kubectl("annotate", "pod", "p", "note=hello")
    await kubectl("patch", "pod", "p", "-p", '{"metadata":{"labels":{"c":"4"}}}')
    await kubectl("patch", "pod", "p", "--type=merge", "-p", '{"metadata":{"labels":{"d":"5"}}}')
    operations = (
        '[{"op":"test","path":"/metadata/labels/d","value":"5"},{"op":"remove","path":"/metadata/labels/d"}]'
    )
    await kubectl("patch", "pod", "p", "--type=json", "-p", operations)
    metadata = (await kubectl("get", "pod", "p", "-o", "json")).json["metadata"]
    assert metadata["labels"] == {"b": "3", "c": "4"}
    assert metadata["annotations"] == {"note": "hello"}


async def test_patch_of_status_through_the_subresource(kubectl):
    await kubectl("run", "p", "--image=busybox:1")
    await kubectl(
        "patch", "pod", "p", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Running"}}'
    )
    assert (await kubectl("get", "pod", "p", "-o", "jsonpath={.status.phase}")).out == "Running"
    await kubectl("patch", "pod", "p", "--type=merge", "-p", '{"status":{"phase":"Failed"}}')
    assert (await kubectl("get", "pod", "p", "-o", "jsonpath={.status.phase}")).out == "Running"


async def test_scale_a_workload(kubectl):
    kind = "statefulset"
    await kubectl.apply({**DEPLOYMENT, "kind": "StatefulSet"})
    assert "scaled" in (await kubectl("scale", kind, "d", "--replicas=7", "--current-replicas=2")).out
    assert (await kubectl("get", kind, "d", "-o", "jsonpath={.spec.replicas}")).out == "7"
    refused = await kubectl("scale", kind, "d", "--replicas=1", "--current-replicas=2", code=1)
    assert "Expected replicas to be 2, was 7" in refused.err


async def test_delete_by_name_label_and_all(kubectl, make_pod):
    await kubectl.apply(make_pod("a"), make_pod("b"), make_pod("c"), make_pod("d"))
    assert 'pod "a" deleted' in (await kubectl("delete", "pod", "a")).out
    assert 'pod "b" deleted' in (await kubectl("delete", "pod", "-l", "app=b")).out
    await kubectl("delete", "pod", "--all", "--now")
    assert (await kubectl("get", "pods", "-o", "name")).out == ""


async def test_delete_of_a_running_pod_waits_for_its_kubelet(kubectl, api, bound_pod):
    await bound_pod()
    await kubectl("delete", "pod", "p", "--wait=false", "--grace-period=7")
    metadata = (await kubectl("get", "pod", "p", "-o", "json")).json["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 7
    assert (await kubectl("get", "pod", "p", "--no-headers")).out.split()[2] == "Terminating"
    body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
    await api("DELETE", "/api/v1/namespaces/default/pods/p", body, code=200)
    assert "NotFound" in (await kubectl("get", "pod", "p", code=1)).err


async def test_forced_delete_does_not_wait_for_the_kubelet(kubectl, bound_pod):
    await bound_pod()
    await kubectl("delete", "pod", "p", "--force", "--grace-period=0")
    assert "NotFound" in (await kubectl("get", "pod", "p", code=1)).err


async def test_owned_objects_are_deleted_after_their_owner(kubectl, make_pod):
    await kubectl.apply({**DEPLOYMENT, "kind": "ReplicaSet"})
    uid = (await kubectl("get", "rs", "d", "-o", "jsonpath={.metadata.uid}")).out
    owned = make_pod("owned")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "d", "uid": uid}
    owned["metadata"]["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    await kubectl.apply(owned)
    refused = await kubectl("delete", "rs", "d", "--cascade=orphan", code=1)
    assert 'propagationPolicy: Unsupported value: "Orphan"' in refused.err
    await kubectl("delete", "rs", "d")
    await kubectl("wait", "--for=delete", "pod/owned", "--timeout=10s")


async def test_delete_of_a_namespace_empties_it(kubectl, make_pod):
    await kubectl("create", "namespace", "team")
    await kubectl("apply", "-n", "team", "-f", "-", stdin=json.dumps(make_pod()))
    await kubectl("create", "configmap", "cm", "-n", "team")
    await kubectl("delete", "namespace", "team")
    assert (await kubectl("get", "pods,cm", "-A", "-o", "name")).out == ""
    assert "NotFound" in (await kubectl("get", "ns", "team", code=1)).err


async def test_a_misspelt_field_is_reported(kubectl, make_pod):
    refused = await kubectl.apply(make_pod(nodeSelektor={"a": "b"}), code=1)
    assert 'strict decoding error: unknown field "spec.nodeSelektor"' in refused.err
    warned = await kubectl.apply(make_pod(nodeSelektor={"a": "b"}), flags=("--validate=warn",))
    assert 'Warning: unknown field "spec.nodeSelektor"' in warned.err


async def test_a_changed_immutable_pod_field_is_refused_by_name(kubectl, make_pod):
    await kubectl.apply(make_pod())
    refused = await kubectl("patch", "pod", "p", "-p", '{"spec":{"nodeName":"n"}}', code=1)
    assert "pod updates may not change fields other than `spec.containers[*].image`" in refused.err


async def test_server_side_dry_run_stores_nothing(kubectl, make_pod):
    result = await kubectl.apply(make_pod(), flags=("--dry-run=server",))
    assert "created (server dry run)" in result.out
    assert "NotFound" in (await kubectl("get", "pod", "p", code=1)).err


async def test_cordon_taint_and_drain_a_node(kubectl, api, bound_pod):
    await bound_pod()
    await kubectl("cordon", "n1")
    assert "Ready,SchedulingDisabled" in (await kubectl("get", "nodes")).out
    await kubectl("uncordon", "n1")
    await kubectl("taint", "node", "n1", "gpu=full:NoSchedule")
    taints = (await kubectl("get", "node", "n1", "-o", "jsonpath={.spec.taints}")).json
    assert taints == [{"effect": "NoSchedule", "key": "gpu", "value": "full"}]
    await kubectl("drain", "n1", "--force", "--timeout=1s", code=1)
    assert (await kubectl("get", "pod", "p", "-o", "jsonpath={.metadata.deletionTimestamp}")).out
