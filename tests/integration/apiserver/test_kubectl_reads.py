"""kubectl get in all its forms, describe, wait, rollout, raw and discovery against the playground's API server."""

import asyncio
import json

import pytest
import yaml

from tests.integration.apiserver.conftest import COMMAND_S


async def test_get_pods_shows_the_usual_columns(kubectl, bound_pod):
    await bound_pod("p", "a", "b")
    lines = (await kubectl("get", "pods")).out.splitlines()
    assert lines[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert lines[1].split()[:4] == ["p", "2/2", "Running", "0"]
    wide = (await kubectl("get", "pods", "-o", "wide")).out.splitlines()
    assert wide[0].split("  ")[-1].strip() == "READINESS GATES"
    assert wide[1].split()[5:7] == ["10.0.0.1", "n1"]


async def test_get_nodes_shows_status_roles_and_version(kubectl, api, kubelet):
    node = kubelet.node()
    node["metadata"]["labels"]["node-role.kubernetes.io/worker"] = ""
    await api("POST", "/api/v1/nodes", node, code=201)
    columns = (await kubectl("get", "nodes", "-o", "wide")).out.splitlines()
    assert columns[0].split()[:6] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION", "INTERNAL-IP"]
    assert columns[1].split()[:3] == ["n1", "Ready", "worker"]
    assert columns[1].split()[4:6] == ["v1.36.3", "127.0.0.1"]


@pytest.mark.parametrize(
    ("create", "get", "heading"),
    [
        (("job", "x", "--image=i:1"), "jobs", "NAME   STATUS    COMPLETIONS   DURATION   AGE"),
        (("deployment", "x", "--image=i:1"), "deployments", "NAME   READY   UP-TO-DATE   AVAILABLE   AGE"),
        (("configmap", "x"), "configmaps", "NAME   DATA   AGE"),
        (("namespace", "x"), "namespaces", "NAME              STATUS   AGE"),
        (("serviceaccount", "x"), "serviceaccounts", "NAME   AGE"),
        (
            ("priorityclass", "x", "--value=5"),
            "priorityclasses",
            "NAME                      VALUE        GLOBAL-DEFAULT   AGE   PREEMPTIONPOLICY",
        ),
    ],
)
async def test_get_shows_each_kind_in_its_own_columns(kubectl, create, get, heading):
    await kubectl("create", *create)
    assert (await kubectl("get", get)).out.splitlines()[0].rstrip() == heading


async def test_get_leases_and_events_in_their_own_columns(kubectl, api):
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}
    await api("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease, code=201)
    assert (await kubectl("get", "leases")).out.splitlines()[1].split()[:2] == ["l", "me"]
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "apiVersion": "v1", "name": "p", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "gpushare",
        "reportingInstance": "g-0",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "bound to n1",
    }
    await api("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event, code=201)
    lines = (await kubectl("get", "events")).out.splitlines()
    assert lines[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert lines[1].split()[1:] == ["Normal", "Scheduled", "pod/p", "bound", "to", "n1"]
    assert "bound to n1" in (await kubectl("events", "--for", "pod/p")).out
    # Defaults are written out, as by a real API server, so the usual way to sort works.
    assert "bound to n1" in (await kubectl("get", "events", "--sort-by=.lastTimestamp")).out


async def test_get_in_every_output_form(kubectl, make_pod):
    await kubectl.apply(make_pod())
    assert (await kubectl("get", "pod", "p", "-o", "json")).json["metadata"]["name"] == "p"
    assert yaml.safe_load((await kubectl("get", "pod", "p", "-o", "yaml")).out)["kind"] == "Pod"
    assert (await kubectl("get", "pods", "-o", "name")).out == "pod/p\n"
    path = "jsonpath={.items[*].spec.schedulerName}"
    assert (await kubectl("get", "pods", "-o", path)).out == "ack-co-scheduler"
    columns = "custom-columns=N:.metadata.name,MEM:.spec.containers[0].resources.limits.aliyun\\.com/gpu-mem"
    assert (await kubectl("get", "pods", "-o", columns)).out.split() == ["N", "MEM", "p", "3"]
    template = "go-template={{range .items}}{{.status.phase}}{{end}}"
    assert (await kubectl("get", "pods", "-o", template)).out == "Pending"
    assert (await kubectl("get", "pod", "p", "--show-labels")).out.split()[-1] == "app=p"
    assert (await kubectl("get", "pods", "--sort-by=.metadata.name", "-A", "--no-headers")).out.split()[
        1
    ] == "p"


async def test_get_selects_by_labels_and_by_fields(kubectl, make_pod, bound_pod):
    await bound_pod("p")
    await kubectl.apply(make_pod("q", schedulerName="other"), make_pod("r", labels={"tier": "x"}))

    async def names(*arguments: str) -> list[str]:
        return (await kubectl("get", "pods", "-o", "name", *arguments)).out.split()

    assert await names("-l", "app=p") == ["pod/p"]
    assert await names("-l", "app in (p,q),app!=q") == ["pod/p"]
    assert await names("-l", "!app") == ["pod/r"]
    assert await names("--field-selector", "spec.nodeName=n1") == ["pod/p"]
    assert await names("--field-selector", "status.phase!=Running") == ["pod/q", "pod/r"]
    assert await names("--field-selector", "spec.schedulerName=other") == ["pod/q"]
    assert await names("--field-selector", "metadata.name=r,metadata.namespace=default") == ["pod/r"]
    refused = await kubectl("get", "pods", "--field-selector", "spec.color=red", code=1)
    assert "field label not supported: spec.color" in refused.err


@pytest.mark.parametrize("flag", ["-w", "--watch-only"])
async def test_get_watch_shows_a_pod_created_changed_and_deleted(kubectl, api, make_pod, flag):
    await kubectl.apply(make_pod("old"))
    process = await kubectl.start("get", "pods", flag)

    async def row() -> list[str]:
        async with asyncio.timeout(COMMAND_S):
            return (await process.stdout.readline()).decode().split()

    if flag == "-w":
        assert (await row())[0] == "NAME"
        assert (await row())[:3] == ["old", "0/1", "Pending"]
    else:
        # Nothing arrives until something changes; touch until it is watching.
        patches = 0
        next_row = asyncio.ensure_future(row())
        while not next_row.done():
            patches += 1
            patch = {"metadata": {"labels": {"n": str(patches)}}}
            path = "/api/v1/namespaces/default/pods/old"
            await api("PATCH", path, patch, media="application/merge-patch+json", code=200)
        assert next_row.result()[0] == "NAME"
        assert (await row())[0] == "old"
    await kubectl("delete", "pod", "old")
    found = await row()
    while found[0] == "old" and found[2] != "Pending":
        found = await row()
    assert found[0] == "old"


async def test_describe_a_pod_with_its_events(kubectl, api, bound_pod):
    pod = await bound_pod()
    event = {
        "metadata": {"name": "p.1"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default", "uid": pod["metadata"]["uid"]},
        "reason": "FailedScheduling",
        "message": "no single GPU has 8 GiB free",
        "type": "Warning",
        "source": {"component": "ack-co-scheduler"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }
    await api("POST", "/api/v1/namespaces/default/events", event, code=201)
    text = (await kubectl("describe", "pod", "p")).out
    assert "Node:             n1/" in text
    assert "aliyun.com/gpu-mem:  3" in text
    assert "ack-co-scheduler  no single GPU has 8 GiB free" in text


async def test_describe_a_node_with_its_pods_and_lease(kubectl, bound_pod):
    await bound_pod()
    text = (await kubectl("describe", "node", "n1")).out
    assert "ack.node.gpu.schedule=share" in text
    assert "aliyun.com/gpu-mem:  15" in text
    allocated = text[text.index("Allocated resources:") :]
    assert ["aliyun.com/gpu-mem", "3", "3"] in [line.split() for line in allocated.splitlines()]


@pytest.mark.parametrize("kind", ["deploy", "job", "ns", "cm", "quota", "sa", "svc"])
async def test_describe_other_kinds(kubectl, kind):
    made = {
        "deploy": ("deployment", "x", "--image=i:1"),
        "job": ("job", "x", "--image=i:1"),
        "ns": ("namespace", "x"),
        "cm": ("configmap", "x"),
        "quota": ("quota", "x", "--hard=pods=2"),
        "sa": ("serviceaccount", "x"),
        "svc": ("service", "clusterip", "x", "--tcp=80"),
    }
    await kubectl("create", *made[kind])
    assert "x" in (await kubectl("describe", kind, "x")).out.splitlines()[0]


async def test_wait_for_creation_condition_field_and_deletion(kubectl, api, make_pod):
    waiting = asyncio.ensure_future(kubectl("wait", "--for=create", "pod/p", "--timeout=60s"))
    await kubectl.apply(make_pod())
    assert "condition met" in (await waiting).out
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    ready = asyncio.ensure_future(kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s"))
    running = asyncio.ensure_future(
        kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/p", "--timeout=60s")
    )
    path = "/api/v1/namespaces/default/pods/p/status"
    await api("PATCH", path, {"status": status}, media="application/strategic-merge-patch+json", code=200)
    assert "condition met" in (await ready).out
    assert "condition met" in (await running).out
    gone = asyncio.ensure_future(kubectl("wait", "--for=delete", "pod/p", "--timeout=60s"))
    await kubectl("delete", "pod", "p", "--wait=false")
    await gone


async def test_discovery_version_and_raw(kubectl):
    resources = (await kubectl("api-resources", "-o", "name")).out.split()
    assert {"pods", "jobs.batch", "leases.coordination.k8s.io", "events.events.k8s.io"} <= set(resources)
    versions = (await kubectl("api-versions")).out.split()
    assert {"v1", "apps/v1", "batch/v1", "events.k8s.io/v1", "policy/v1"} <= set(versions)
    version = (await kubectl("version", "-o", "json")).json["serverVersion"]
    assert (version["major"], version["minor"]) == ("1", "36")
    assert (await kubectl("get", "--raw", "/readyz")).out == "ok"
    assert (await kubectl("get", "--raw", "/api/v1/nodes")).json["kind"] == "NodeList"
    assert "running at" in (await kubectl("cluster-info")).out
    assert (await kubectl("auth", "can-i", "create", "pods")).out.strip() == "yes"
    assert "playground-admin" in (await kubectl("auth", "whoami")).out


async def test_explain_shows_fields_and_their_types(kubectl):
    text = (await kubectl("explain", "pod.spec.containers")).out
    assert "image\t<string>" in text
    assert "name\t<string> -required-" in text


async def test_a_custom_definition_serves_its_kind_with_columns_defaults_and_errors(kubectl):
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                },
            },
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1},
        ],
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [version],
        },
    }
    widget = {
        "apiVersion": "example.dev/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 3},
    }
    await kubectl.apply(definition)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.example.dev", "--timeout=10s")
    await kubectl.apply(widget)
    assert (await kubectl("get", "wd", "-o", "wide")).out.split() == ["NAME", "SIZE", "MODE", "w", "3", "a"]
    refused = await kubectl.apply({**widget, "spec": {"size": 0, "mode": "c"}}, code=1)
    assert "spec.size in body should be greater than or equal to 1" in refused.err
    assert 'spec.mode: Unsupported value: "c": supported values: "a", "b"' in refused.err
    unknown = await kubectl.apply({**widget, "spec": {"size": 1, "colour": "red"}}, code=1)
    assert 'unknown field "spec.colour"' in unknown.err
    assert (await kubectl("get", "wd", "w", "-o", "jsonpath={.spec}")).json == {"mode": "a", "size": 3}
    await kubectl("delete", "crd", "widgets.example.dev")
    assert "the server could not find the requested resource" in (await kubectl("get", "wd", code=1)).err


async def test_a_named_user_has_its_own_kubeconfig(kubectl, server):
    config = server.kubeconfig_of("scheduler")
    result = await kubectl("auth", "whoami", "-o", "json", f"--kubeconfig={config}")
    assert json.loads(result.out)["status"]["userInfo"]["username"] == "scheduler"
