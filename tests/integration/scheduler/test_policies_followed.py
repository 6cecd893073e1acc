"""The extender beside an API server: policies come, change and go, and kube-scheduler 1.36 asks about pods without GPUs."""

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


class Beside:
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
        """As kube-scheduler 1.36 asks: the whole pod, no nodes but their names."""
        pod = await self.read(f"{PODS}/{name}")
        pod.pop("apiVersion", None)
        pod.pop("kind", None)
        answer = await self.verb("filter", {"Pod": pod, "Nodes": None, "NodeNames": NODES})
        assert answer["Error"] == ""
        assert answer["Nodes"] is None
        return list(answer["NodeNames"] or [])

    async def offered(self, name: str, *nodes: str) -> None:
        """Ask until just these nodes are left."""

        async def so() -> bool:
            return await self.filter(name) == list(nodes)

        await until(so)

    async def bind(self, name: str, node: str) -> str:
        uid = (await self.read(f"{PODS}/{name}"))["metadata"]["uid"]
        body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        return str((await self.verb("bind", body))["Error"])

    async def cost(self, name: str, wanted: str) -> None:
        """Wait until the pod has that deletion cost."""

        async def so() -> bool:
            annotations = (await self.read(f"{PODS}/{name}"))["metadata"].get("annotations") or {}
            return str(annotations.get(names.ANN_DELETION_COST, "")) == wanted

        await until(so)

    async def summary(self, name: str, wanted: str) -> None:
        """Wait until the policy's status says so."""

        async def so() -> bool:
            status = (await self.read(f"{POLICIES}/{name}")).get("status") or {}
            return str(status.get("summary", "")) == wanted

        await until(so)


async def until(reached: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await reached():
            await asyncio.sleep(0)


@pytest.fixture
async def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Beside]:
    monkeypatch.setattr(watch, "_ABSENT_S", 0.05)
    monkeypatch.setattr(watch, "_PRESENT_S", 0.05)
    monkeypatch.setattr(status_writer, "_EVERY_S", 0.05)
    monkeypatch.setattr(status_writer, "_SEEN_S", 0.5)
    async with (
        ApiServer(tmp_path / "api", users=("extender",)) as server,
        Session(load_access(str(server.kubeconfig_path))) as session,
        aiohttp.ClientSession() as http,
    ):
        made = Beside(server, session, http, tmp_path)
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


async def test_policies_work_from_the_moment_when_the_cluster_knows_them_until_it_does_not(
    beside: Beside,
) -> None:
    await beside.pod("p")
    assert await beside.filter("p") == NODES
    await define(beside.server.kubeconfig_path)
    await beside.policy("x", in_pool("a", max=1), in_pool("b"))
    await beside.offered("p", "a1")
    assert await beside.bind("p", "a1") == ""
    await beside.pod("q")
    await beside.offered("q", "b1")
    refused = await beside.bind("q", "a1")
    assert "ResourcePolicy default/x" in refused
    assert "no unit has room for the pod on node a1" in refused
    await beside.summary("x", "1/1, 0")
    await beside.cost("p", "200")
    await beside.api.request("DELETE", DEFINITION)
    await beside.offered("q", *NODES)
    await beside.cost("p", "")


async def test_a_node_that_went_while_the_cluster_knew_no_policies_is_in_no_unit(beside: Beside) -> None:
    async def unknown() -> bool:
        return "policy-nodes" not in await beside.figures("gpushare_scheduler_watched_objects")

    for summary in ("0, 0", "0 (no node), 0"):
        await define(beside.server.kubeconfig_path)
        await beside.policy("x", in_pool("a"), in_pool("b"))
        await beside.summary("x", summary)
        for kind in (
            "resourcepolicies.scheduling.alibabacloud.com",
            "elasticquotatrees.scheduling.sigs.k8s.io",
        ):
            await beside.api.request("DELETE", f"{DEFINITION.rpartition('/')[0]}/{kind}")
        await until(unknown)
        if summary == "0, 0":
            await beside.api.request("DELETE", "/api/v1/nodes/a1")


async def test_a_scrape_has_the_state_of_every_watch_including_quotas_and_policies(beside: Beside) -> None:
    trouble, objects = "gpushare_scheduler_watch_failing", "gpushare_scheduler_watched_objects"
    assert await beside.figures(trouble) == {"nodes": 0, "pods": 0, "elasticquotatrees": 0, "podgroups": 0}
    await beside.pod("p")
    await define(beside.server.kubeconfig_path)
    await beside.policy("x", in_pool("a"))
    # The pod asks for no GPU: it is known to the policies alone.
    all_of_them = {"pods": 0, "nodes": 2, "elasticquotatrees": 0, "podgroups": 0}
    all_of_them |= {"resourcepolicies": 1, "policy-nodes": 2, "policy-pods": 1}

    async def complete() -> bool:
        return await beside.figures(objects) == all_of_them

    await until(complete)
    assert await beside.figures(trouble) == dict.fromkeys(all_of_them, 0)


async def test_changes_of_policies_nodes_and_pods_are_followed(beside: Beside) -> None:
    await define(beside.server.kubeconfig_path)
    await beside.pod("early", nodeName="a1")
    await beside.policy("x", in_pool("a", max=1), in_pool("b"))
    await beside.pod("p")
    await beside.offered("p", "b1")
    await beside.cost("early", "200")
    await beside.summary("x", "1/1, 0")
    await beside.change(f"{POLICIES}/x", {"spec": {"units": [in_pool("b"), in_pool("a")]}})
    await beside.cost("early", "100")
    await beside.summary("x", "0, 1")
    await beside.change("/api/v1/nodes/a1", {"metadata": {"labels": {"pool": "b"}}})
    await beside.summary("x", "1, 0 (no node)")
    now = json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
    await beside.api.request("DELETE", f"{PODS}/early", body=now.encode())
    await beside.summary("x", "0, 0 (no node)")
    await beside.api.request("DELETE", "/api/v1/nodes/a1")
    await beside.offered("p", "b1")


async def test_an_extender_that_starts_again_knows_the_units_and_cleans_up_after_policies_that_went(
    beside: Beside,
) -> None:
    await define(beside.server.kubeconfig_path)
    await beside.policy("x", in_pool("a", max=1), in_pool("b"))
    await beside.pod("one")
    await beside.offered("one", "a1")
    assert await beside.bind("one", "a1") == ""
    await beside.stop()
    await beside.start()
    await beside.pod("two")
    assert await beside.filter("two") == ["b1"]
    await beside.stop()
    await beside.api.request("DELETE", f"{POLICIES}/x")
    await beside.start()
    await beside.cost("one", "")


async def test_unreadable_policies_are_reported_and_not_applied(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watches = watch.PolicyWatches(None, beside.api)  # type: ignore[arg-type]
    refusals = [ApiError(500, "", "tired", ""), ApiError(403, "Forbidden", "not you", "")]

    async def refuse(*args: Any, **kwargs: Any) -> bytes:
        raise refusals.pop(0)

    monkeypatch.setattr(beside.api, "request", refuse)
    assert not await watches._kind_exists()
    assert "may not be read" in caplog.text
