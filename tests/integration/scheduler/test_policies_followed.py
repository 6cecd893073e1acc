"""The extender with an API server: policies are created, changed and deleted, and kube-scheduler
1.36 sends pods without GPUs.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.session import MERGE_PATCH, Session
from gpushare.scheduler.main import serve
from gpushare.scheduler.plugins.resource_policy import status_writer, watch
from gpushare.scheduler.settings import Settings
from gpushare_playground.apiserver import ApiServer
from gpushare_playground.cluster.definitions import define

DEADLINE_S = 30.0
PODS = "/api/v1/namespaces/default/pods"
POLICIES = f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/namespaces/default/{names.POLICY_PLURAL}"
DEFINITION = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/resourcepolicies.scheduling.alibabacloud.com"
)
NODES = ["a1", "b1"]


class Cluster:
    """An API server, and the extender in the same loop."""

    def __init__(
        self, server: ApiServer, session: Session, http: aiohttp.ClientSession, folder: Path
    ) -> None:
        self.server = server
        self.api = session
        self._http = http
        self._port_file = folder / "port"
        self._serving: asyncio.Task[None] | None = None

    async def start(self, lease: tuple[str, str] | None = None) -> None:
        self._port_file.unlink(missing_ok=True)
        access = load_access(str(self.server.kubeconfig_of("extender")))
        settings = Settings(port=0, port_file=self._port_file, lease=lease)
        self._serving = asyncio.create_task(serve(access, settings))

        async def ready() -> bool:
            assert self._serving is not None
            if self._serving.done():
                self._serving.result()
            if not self._port_file.exists():
                return False
            async with self._http.get(f"{self.url}/readyz") as answer:
                return answer.status == 200

        await until(ready)

    async def stop(self) -> None:
        if self._serving is not None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(self._serving, DEADLINE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port_file.read_text().strip()}"

    async def figures(self, name: str) -> dict[str, float]:
        """A gauge in the extender's scrape, by kind."""
        async with self._http.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        return {
            sample.labels["kind"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    async def verb(self, verb: str, body: dict[str, Any]) -> Any:
        async with self._http.post(f"{self.url}/gpushare/{verb}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def create(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        return dict(json.loads(await self.api.request("POST", path, body=json.dumps(item).encode())))

    async def read(self, path: str) -> dict[str, Any]:
        return dict(json.loads(await self.api.request("GET", path)))

    async def change(self, path: str, patch: dict[str, Any]) -> None:
        await self.api.request("PATCH", path, body=json.dumps(patch).encode(), content_type=MERGE_PATCH)

    async def pod(self, name: str, **more: Any) -> dict[str, Any]:
        spec = {"schedulerName": names.SCHEDULER_NAME, "containers": [{"name": "c", "image": "i"}], **more}
        meta = {"name": name, "namespace": "default", "labels": {"app": "x"}}
        return await self.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    async def policy(self, name: str, *units: dict[str, Any]) -> None:
        meta = {"name": name, "namespace": "default"}
        spec = {"selector": {"app": "x"}, "units": list(units)}
        kind = {"apiVersion": f"{names.POLICY_GROUP}/{names.POLICY_VERSION}", "kind": "ResourcePolicy"}
        await self.create(POLICIES, {**kind, "metadata": meta, "spec": spec})

    async def filter(self, name: str) -> list[str]:
        """A request as of kube-scheduler 1.36: the whole pod, nodes only by name."""
        pod = await self.read(f"{PODS}/{name}")
        pod.pop("apiVersion", None)
        pod.pop("kind", None)
        answer = await self.verb("filter", {"Pod": pod, "Nodes": None, "NodeNames": NODES})
        assert answer["Error"] == ""
        assert answer["Nodes"] is None
        return list(answer["NodeNames"] or [])

    async def offered(self, name: str, *nodes: str) -> None:
        """Poll until just these nodes are left."""

        async def reached() -> bool:
            return await self.filter(name) == list(nodes)

        await until(reached)

    async def bind(self, name: str, node: str) -> str:
        uid = (await self.read(f"{PODS}/{name}"))["metadata"]["uid"]
        body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        return str((await self.verb("bind", body))["Error"])

    async def cost(self, name: str, wanted: str) -> None:
        """Wait until the pod has that deletion cost."""

        async def reached() -> bool:
            annotations = (await self.read(f"{PODS}/{name}"))["metadata"].get("annotations") or {}
            return str(annotations.get(names.ANN_DELETION_COST, "")) == wanted

        await until(reached)

    async def summary(self, name: str, wanted: str) -> None:
        """Wait for that summary in the policy's status."""

        async def reached() -> bool:
            status = (await self.read(f"{POLICIES}/{name}")).get("status") or {}
            return str(status.get("summary", "")) == wanted

        await until(reached)


async def until(reached: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await reached():
            await asyncio.sleep(0)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(watch, "_ABSENT_S", 0.05)
    monkeypatch.setattr(watch, "_PRESENT_S", 0.05)
    monkeypatch.setattr(status_writer, "_EVERY_S", 0.05)
    monkeypatch.setattr(status_writer, "_SEEN_S", 0.5)
    async with (
        ApiServer(tmp_path / "api", users=("extender",)) as server,
        Session(load_access(str(server.kubeconfig_path))) as session,
        aiohttp.ClientSession() as http,
    ):
        made = Cluster(server, session, http, tmp_path)
        for name in NODES:
            meta = {"name": name, "labels": {"pool": name[0]}}
            await made.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        await made.start()
        try:
            yield made
        finally:
            await made.stop()


def in_pool(letter: str, **more: Any) -> dict[str, Any]:
    return {"nodeSelector": {"pool": letter}, **more}


async def test_policies_apply_only_while_their_definition_exists(
    cluster: Cluster,
) -> None:
    await cluster.pod("p")
    assert await cluster.filter("p") == NODES
    await define(cluster.server.kubeconfig_path)
    await cluster.policy("x", in_pool("a", max=1), in_pool("b"))
    await cluster.offered("p", "a1")
    assert await cluster.bind("p", "a1") == ""
    await cluster.pod("q")
    await cluster.offered("q", "b1")
    refused = await cluster.bind("q", "a1")
    assert "ResourcePolicy default/x" in refused
    assert "no unit has capacity for the pod on node a1" in refused
    await cluster.summary("x", "1/1, 0")
    await cluster.cost("p", "200")
    await cluster.api.request("DELETE", DEFINITION)
    await cluster.offered("q", *NODES)
    await cluster.cost("p", "")


async def test_a_node_deleted_while_the_policy_definition_was_gone_is_in_no_unit(cluster: Cluster) -> None:
    async def unknown() -> bool:
        return "policy-nodes" not in await cluster.figures("gpushare_scheduler_watched_objects")

    for summary in ("0, 0", "0 (no node), 0"):
        await define(cluster.server.kubeconfig_path)
        await cluster.policy("x", in_pool("a"), in_pool("b"))
        await cluster.summary("x", summary)
        for kind in (
            "resourcepolicies.scheduling.alibabacloud.com",
            "elasticquotatrees.scheduling.sigs.k8s.io",
        ):
            await cluster.api.request("DELETE", f"{DEFINITION.rpartition('/')[0]}/{kind}")
        await until(unknown)
        if summary == "0, 0":
            await cluster.api.request("DELETE", "/api/v1/nodes/a1")


async def test_a_scrape_has_the_state_of_every_watch_including_quotas_and_policies(cluster: Cluster) -> None:
    trouble, objects = "gpushare_scheduler_watch_failing", "gpushare_scheduler_watched_objects"
    assert await cluster.figures(trouble) == {"nodes": 0, "pods": 0, "elasticquotatrees": 0, "podgroups": 0}
    await cluster.pod("p")
    await define(cluster.server.kubeconfig_path)
    await cluster.policy("x", in_pool("a"))
    # The pod requests no GPU: only the policies watch it.
    all_of_them = {"pods": 0, "nodes": 2, "elasticquotatrees": 0, "podgroups": 0}
    all_of_them |= {"resourcepolicies": 1, "policy-nodes": 2, "policy-pods": 1}

    async def complete() -> bool:
        return await cluster.figures(objects) == all_of_them

    await until(complete)
    assert await cluster.figures(trouble) == dict.fromkeys(all_of_them, 0)


async def test_changes_of_policies_nodes_and_pods_are_followed(cluster: Cluster) -> None:
    await define(cluster.server.kubeconfig_path)
    await cluster.pod("early", nodeName="a1")
    await cluster.policy("x", in_pool("a", max=1), in_pool("b"))
    await cluster.pod("p")
    await cluster.offered("p", "b1")
    await cluster.cost("early", "200")
    await cluster.summary("x", "1/1, 0")
    await cluster.change(f"{POLICIES}/x", {"spec": {"units": [in_pool("b"), in_pool("a")]}})
    await cluster.cost("early", "100")
    await cluster.summary("x", "0, 1")
    await cluster.change("/api/v1/nodes/a1", {"metadata": {"labels": {"pool": "b"}}})
    await cluster.summary("x", "1, 0 (no node)")
    now = json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
    await cluster.api.request("DELETE", f"{PODS}/early", body=now.encode())
    await cluster.summary("x", "0, 0 (no node)")
    await cluster.api.request("DELETE", "/api/v1/nodes/a1")
    await cluster.offered("p", "b1")


async def test_a_restarted_extender_recovers_units_and_cleans_up_after_deleted_policies(
    cluster: Cluster,
) -> None:
    await define(cluster.server.kubeconfig_path)
    await cluster.policy("x", in_pool("a", max=1), in_pool("b"))
    await cluster.pod("one")
    await cluster.offered("one", "a1")
    assert await cluster.bind("one", "a1") == ""
    await cluster.stop()
    await cluster.start()
    await cluster.pod("two")
    assert await cluster.filter("two") == ["b1"]
    await cluster.stop()
    await cluster.api.request("DELETE", f"{POLICIES}/x")
    await cluster.start()
    await cluster.cost("one", "")


async def test_unreadable_policies_are_reported_and_not_applied(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watches = watch.PolicyWatches(None, cluster.api)  # type: ignore[arg-type]
    refusals = [ApiError(500, "", "tired", ""), ApiError(403, "Forbidden", "not you", "")]

    async def refuse(*args: Any, **kwargs: Any) -> bytes:
        raise refusals.pop(0)

    monkeypatch.setattr(cluster.api, "request", refuse)
    assert not await watches._kind_exists()
    assert "no permission to read them" in caplog.text
