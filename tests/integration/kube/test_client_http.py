"""What the client sends for each of its methods, and how it handles the responses."""

import asyncio

import pytest

from gpushare.kube.auth.access import Access
from gpushare.kube.client.client import Client
from gpushare.kube.client.errors import ApiError, InvalidName, MalformedAnswer
from gpushare.kube.client.session import MERGE_PATCH, Session
from tests.integration.kube.served import Served, refuses, responds, serving

POD = {"metadata": {"name": "a", "namespace": "ml", "uid": "u"}, "spec": {"containers": []}, "status": {}}
NODE = {"metadata": {"name": "n1"}, "status": {"capacity": {"aliyun.com/gpu-mem": "15"}}}


async def test_a_bind_is_one_write_with_uid_node_and_annotations() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        await Client(session).bind(namespace="ml", name="a", uid="u", node="n1", annotations={"k": "v"})
    (request,) = served.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/ml/pods/a/binding")
    assert request.headers["Content-Type"] == "application/json"
    assert request.json == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "namespace": "ml", "uid": "u", "annotations": {"k": "v"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


async def test_a_bind_is_never_repeated_even_if_the_server_requests_a_retry() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(refuses(429, Retry_After="0"))
        with pytest.raises(ApiError):
            await Client(session).bind(namespace="ml", name="a", uid="u", node="n1", annotations={})
    assert len(served.requests) == 1


async def test_concurrent_binds_share_the_pool() -> None:
    async with serving() as served, Session(Access(served.url), connections=8) as session:
        client = Client(session)
        binds = (
            client.bind(namespace="ml", name=f"p{count}", uid="u", node="n1", annotations={})
            for count in range(64)
        )
        await asyncio.gather(*binds)
    assert len({request.path for request in served.requests}) == 64
    assert len({request.peer for request in served.requests}) <= 8


async def test_a_pod_is_read_annotated_by_uid_and_reported_missing() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        client = Client(session)
        served.answer(responds(POD), responds(POD), refuses(404, "NotFound"))
        assert (await client.get_pod("ml", "a")).key == "ml/a"
        await client.annotate_pod("ml", "a", {"k": "v", "gone": None}, uid="u")
        with pytest.raises(ApiError) as caught:
            await client.get_pod("ml", "b")
    assert caught.value.not_found
    read, written, _ = served.requests
    assert (read.method, read.path) == ("GET", "/api/v1/namespaces/ml/pods/a")
    assert (written.method, written.headers["Content-Type"]) == ("PATCH", MERGE_PATCH)
    assert written.json == {"metadata": {"uid": "u", "annotations": {"k": "v", "gone": None}}}


async def test_pods_are_listed_over_pages_with_their_selectors() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        client = Client(session)
        served.answer(
            responds({"metadata": {"continue": "next"}, "items": [POD]}),
            responds({"metadata": {}, "items": [POD]}),
        )
        found = await client.list_pods(field_selector="spec.nodeName=n1", label_selector="a=b")
        served.answer(responds({"metadata": {}, "items": None}))
        assert await client.list_pods(namespace="ml") == []
    assert [pod.key for pod in found] == ["ml/a", "ml/a"]
    first = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&labelSelector=a%3Db&limit=500"
    assert [request.path for request in served.requests] == [
        first,
        f"{first}&continue=next",
        "/api/v1/namespaces/ml/pods?limit=500",
    ]


async def test_quota_usage_is_written_into_the_status_of_its_tree() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(responds({}))
        await Client(session).report_quotas("kube-system", "tree", {"state": "InForce"}, uid="u")
    (written,) = served.requests
    path = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees/tree/status"
    assert (written.method, written.path) == ("PATCH", path)
    assert written.json == {"metadata": {"uid": "u"}, "status": {"state": "InForce"}}


async def test_nodes_are_listed_annotated_and_their_capacity_is_patched() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        client = Client(session)
        served.answer(responds({"metadata": {}, "items": [NODE]}))
        assert len(await client.list_nodes(label_selector="ack.node.gpu.schedule")) == 1
        await client.annotate_node("n1", {"gpushare.dev/devices": "{}", "old": None})
        await client.annotate_node(
            "n1", {"gpushare.dev/devices": None}, labels={"gpushare.dev/described": None}
        )
        await client.patch_node_capacity("n1", {"aliyun.com/gpu-count": "4", "aliyun.com/gpu-mem": None})
        await client.set_node_condition("n1", "GPUShareReady", {"status": "True"})
        await client.set_node_condition("n1", "GPUShareReady", None)
    paths = [request.path for request in served.requests]
    assert paths == [
        "/api/v1/nodes?labelSelector=ack.node.gpu.schedule&limit=500",
        "/api/v1/nodes/n1",
        "/api/v1/nodes/n1",
        *["/api/v1/nodes/n1/status"] * 3,
    ]
    assert [request.json for request in served.requests[4:]] == [
        {"status": {"conditions": [{"type": "GPUShareReady", "status": "True"}]}},
        {"status": {"conditions": [{"$patch": "delete", "type": "GPUShareReady"}]}},
    ]
    assert served.requests[1].json == {
        "metadata": {"annotations": {"gpushare.dev/devices": "{}", "old": None}}
    }
    assert served.requests[2].json == {
        "metadata": {
            "annotations": {"gpushare.dev/devices": None},
            "labels": {"gpushare.dev/described": None},
        }
    }
    resources = {"aliyun.com/gpu-count": "4", "aliyun.com/gpu-mem": None}
    assert served.requests[3].json == {"status": {"capacity": resources, "allocatable": resources}}


async def test_pods_are_created_reported_in_events_and_deleted_by_uid() -> None:
    pod = {"metadata": {"name": "s", "namespace": "ml"}, "spec": {}}
    async with serving() as served, Session(Access(served.url)) as session:
        client = Client(session)
        await client.create_pod(pod)
        await client.set_condition("ml", "s", {"type": "PodScheduled"}, uid="u")
        await client.delete_pod("ml", "s", uid="u")
    made, patched, deleted = served.requests
    assert (made.method, made.path, made.json) == ("POST", "/api/v1/namespaces/ml/pods", pod)
    assert (patched.method, patched.path) == ("PATCH", "/api/v1/namespaces/ml/pods/s/status")
    assert patched.json == {"metadata": {"uid": "u"}, "status": {"conditions": [{"type": "PodScheduled"}]}}
    assert (deleted.method, deleted.path) == ("DELETE", "/api/v1/namespaces/ml/pods/s")
    assert deleted.json["preconditions"] == {"uid": "u"}
    assert deleted.json["gracePeriodSeconds"] == 0


async def test_taints_are_read_and_written_against_the_version_read() -> None:
    taint = {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-11-22T10:00:00Z"}
    node = {"metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {"taints": [taint]}}
    async with serving() as served, Session(Access(served.url)) as session:
        client = Client(session)
        served.answer(responds({"kind": "NodeList", "metadata": {}, "items": [node]}))
        (found,) = await client.list_tainted("n1")
        assert found.spec.taints == [taint]
        await client.set_taints("n1", [taint], resource_version=found.metadata.resource_version)
    read, written = served.requests
    assert read.path == "/api/v1/nodes?fieldSelector=metadata.name%3Dn1&limit=500"
    assert (written.method, written.path) == ("PATCH", "/api/v1/nodes/n1")
    assert written.json == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [taint]}}


async def test_success_with_an_unexpected_body_is_a_malformed_answer_error() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        client = Client(session)
        served.answer(responds({"metadata": 7}))
        with pytest.raises(MalformedAnswer, match="/api/v1/namespaces/ml/pods/a: unexpected response"):
            await client.get_pod("ml", "a")
        served.answer(responds({"metadata": {}, "items": [{"metadata": 7}]}))
        with pytest.raises(MalformedAnswer, match="unexpected item in the response"):
            await client.list_pods()
        served.answer(responds([]))
        with pytest.raises(MalformedAnswer, match="the answer is no list"):
            await client.list_nodes()


async def test_an_impossible_name_causes_no_request() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        with pytest.raises(InvalidName):
            await Client(session).bind(namespace="..", name="a", uid="u", node="n", annotations={})
    assert isinstance(served, Served)
    assert served.requests == []
