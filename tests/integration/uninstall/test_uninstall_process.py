"""``gpushare uninstall`` over HTTP: its requests, its exit, and clear messages on bad input."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from aiohttp import web

from gpushare.__main__ import main
from gpushare.api import names
from gpushare.kube.auth.access import Access
from gpushare.kube.client.errors import ApiError, MalformedAnswer
from gpushare.kube.client.session import Session
from gpushare.uninstall.__main__ import _until_signalled, clean
from gpushare.uninstall.api import Agents, ApiCluster, OwnObjects
from gpushare.uninstall.cleaner import Outcome, Pace
from tests.integration.kube.served import Request, Served, responds, serving

AGENTS = Agents("gpu", "gpushare-device-plugin-ds", "app.kubernetes.io/name=gpushare-device-plugin")
NONE = {"metadata": {}, "items": []}
QUICK = Pace(look_s=0.01, agents_s=1.0, kubelet_s=0.0, quiet_s=0.0, patience_s=20.0)
DEADLINE_S = 60.0


class Api:
    """One described node, no agents, DaemonSets of their name in ``installed``; patches are accepted."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.dirty = True
        self.allowed = True
        self.installed: tuple[str, ...] = ()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self.allowed:
            return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)
        if request.method == "GET" and request.path == "/apis/apps/v1/daemonsets":
            assert request.query["fieldSelector"] == "metadata.name=gpushare-device-plugin-ds"
            found = [{"metadata": {"namespace": namespace}} for namespace in self.installed]
            return web.json_response({"metadata": {}, "items": found})
        if request.method == "GET" and request.path.endswith("/pods"):
            return web.json_response(NONE)
        if request.method == "GET" and "/clusterroles/" in request.path:
            return web.json_response({"metadata": {"uid": "u-1"}})
        if request.method == "GET":
            return web.json_response({"metadata": {}, "items": [self._node()]})
        if request.method == "PATCH" and request.path.endswith("/nodes/n1/status"):
            self.dirty = False
        return web.json_response({})

    def _node(self) -> object:
        capacity = {names.GPU_MEM: "60"} if self.dirty else {}
        metadata = {"name": "n1", "annotations": {names.ANN_DEVICES: "{}"}}
        return {"metadata": metadata, "status": {"capacity": capacity}}

    def requests(self, method: str) -> list[Request]:
        return [request for request in self.served.requests if request.method == method]


def scripted(served: Served) -> Api:
    api = Api(served)
    served.answers = _Endless(api.answer)  # type: ignore[assignment]
    return api


class _Endless:
    """A script whose every response is the same function."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __bool__(self) -> bool:
        return True

    def popleft(self) -> object:
        return self._answer


async def test_nodes_are_cleaned_and_its_own_objects_are_removed_with_its_cluster_role() -> None:
    async with serving() as served:
        api = scripted(served)
        async with asyncio.timeout(DEADLINE_S):
            outcome = await clean(Access(served.url), AGENTS, QUICK, "gpushare-uninstall")
    assert outcome is Outcome.CLEAN
    patched = [(request.path, request.json) for request in api.requests("PATCH")]
    tied = {
        "metadata": {
            "ownerReferences": [
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRole",
                    "name": "gpushare-uninstall",
                    "uid": "u-1",
                }
            ]
        }
    }
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    assert patched[:5] == [
        (f"{rbac}/clusterrolebindings/gpushare-uninstall", tied),
        (f"{rbac}/namespaces/gpu/roles/gpushare-uninstall", tied),
        (f"{rbac}/namespaces/gpu/rolebindings/gpushare-uninstall", tied),
        ("/api/v1/namespaces/gpu/serviceaccounts/gpushare-uninstall", tied),
        ("/apis/apps/v1/namespaces/gpu/deployments/gpushare-uninstall", tied),
    ]
    resources = {names.GPU_MEM: None}
    assert patched[5:] == [
        ("/api/v1/nodes/n1/status", {"status": {"capacity": resources, "allocatable": resources}}),
        (
            "/api/v1/nodes/n1/status",
            {"status": {"conditions": [{"$patch": "delete", "type": names.CONDITION_READY}]}},
        ),
        (
            "/api/v1/nodes/n1",
            {
                "metadata": {
                    "annotations": {names.ANN_DEVICES: None, names.ANN_ISOLATION: None},
                    "labels": {names.LABEL_DESCRIBED: "true"},
                }
            },
        ),
        (
            "/api/v1/nodes/n1",
            {
                "metadata": {
                    "annotations": {names.ANN_DEVICES: None, names.ANN_ISOLATION: None},
                    "labels": {names.LABEL_DESCRIBED: None},
                }
            },
        ),
    ]
    slices = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3Dgpushare.dev"
    role = f"{rbac}/clusterroles/gpushare-uninstall"
    assert [request.path for request in api.requests("DELETE")] == [slices, role]
    pods = next(request.path for request in api.requests("GET") if "/namespaces/gpu/pods?" in request.path)
    assert "gpushare-device-plugin" in pods


async def test_run_by_hook_it_waits_for_its_permissions_and_stays_until_it_is_stopped() -> None:
    async with serving() as served:
        api = scripted(served)
        api.allowed = False
        running = asyncio.create_task(_until_signalled(Access(served.url), AGENTS, QUICK, "own"))
        async with asyncio.timeout(DEADLINE_S):
            while not served.requests:
                await asyncio.sleep(0)
            api.allowed = True
            while not api.requests("DELETE"):
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            assert await running == 0


async def test_run_by_hand_it_exits_with_the_refusal() -> None:
    async with serving() as served:
        scripted(served).allowed = False
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ApiError, match="403"):
                await clean(Access(served.url), AGENTS, QUICK, "own")
            quick = Pace(look_s=0.01, patience_s=0.2)
            assert await _until_signalled(Access(served.url), AGENTS, quick, None) == 1


async def test_run_by_hand_it_exits_when_nodes_are_clean() -> None:
    async with serving() as served:
        scripted(served)
        async with asyncio.timeout(DEADLINE_S):
            assert await _until_signalled(Access(served.url), AGENTS, QUICK, None) == 0


async def test_nodes_of_agents_in_another_namespace_are_left_alone_and_it_removes_itself() -> None:
    async with serving() as served:
        api = scripted(served)
        api.installed = ("kube-system",)
        async with asyncio.timeout(DEADLINE_S):
            outcome = await clean(Access(served.url), AGENTS, QUICK, "gpushare-uninstall")
    assert outcome is Outcome.INSTALLED_AGAIN
    assert not [request.path for request in api.requests("PATCH") if "/nodes/" in request.path]
    assert [request.path.rpartition("/")[2] for request in api.requests("DELETE")] == ["gpushare-uninstall"]


async def test_a_daemon_set_that_is_being_deleted_is_not_installed() -> None:
    deleted = {"metadata": {"namespace": "gpu", "deletionTimestamp": "2026-11-21T00:00:00Z"}}
    there = {"metadata": {"namespace": "kube-system", "uid": "u"}}
    async with serving() as served, Session(Access(served.url)) as session:
        cluster = ApiCluster(session, AGENTS)
        for items, place in (
            ([], None),
            ([deleted], None),
            ([there], "kube-system"),
            ([deleted, there], "kube-system"),
        ):
            served.answer(responds({"metadata": {}, "items": items}))
            assert await cluster.installed_in() == place
        served.answer(responds({"reason": "Forbidden"}, status=403), responds({"items": 3}))
        with pytest.raises(ApiError):
            await cluster.installed_in()
        with pytest.raises(MalformedAnswer, match="unexpected response"):
            await cluster.installed_in()


async def test_a_second_run_after_removal_succeeds() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        own = OwnObjects(session, "gpu", "own")
        served.answer(
            responds({"reason": "NotFound"}, status=404), responds({"reason": "Forbidden"}, status=403)
        )
        await own.remove()
        with pytest.raises(ApiError):
            await own.remove()


def test_without_an_api_server_it_reports_the_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
            }
        )
    )
    assert main(["uninstall", "--kubeconfig", str(kubeconfig), "--timeout", "0.1"]) == 1
    assert main(["uninstall", "--kubeconfig", str(kubeconfig), "--context", "other"]) == 2
    assert "other" in capsys.readouterr().err


def test_bad_input_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["uninstall", "--settle-time", "-1"]) == 2
    assert (
        "gpushare uninstall: --settle-time -1: give seconds (5, 500ms, 5m) from 0 to 86400"
        in capsys.readouterr().err
    )
    assert main(["uninstall", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
