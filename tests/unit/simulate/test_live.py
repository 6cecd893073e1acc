"""A live cluster is read page by page, and kinds that may be missing count as empty."""

import asyncio
import json
from collections.abc import Callable

import pytest
from aiohttp import web

from gpushare.kube.auth.access import Access
from gpushare.kube.client.errors import ApiError
from gpushare.simulate.cluster_source import read_cluster
from gpushare.simulate.snapshot import ClusterState
from tests.integration.kube.served import Request, serving

ReplyFn = Callable[[str], tuple[int, object]]


async def read(reply: ReplyFn) -> tuple[ClusterState, list[Request]]:
    """The state read from a server that answers each path (with its query) by ``reply``."""

    async def respond(request: web.Request) -> web.StreamResponse:
        status, body = reply(request.path_qs)
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")

    async with serving() as served:
        served.answer(*[respond] * 40)
        return await read_cluster(Access(served.url)), served.requests


def listed(*names: str, continue_token: str = "") -> tuple[int, object]:
    return 200, {
        "metadata": {"continue": continue_token},
        "items": [{"metadata": {"name": name}} for name in names],
    }


def bare_cluster(path: str) -> tuple[int, object]:
    if path.startswith("/api/v1/nodes"):
        return listed("b") if "continue=" in path else listed("a", continue_token="more")
    if path.startswith("/api/v1/pods"):
        return listed("p")
    return (403 if "namespaces" in path else 404), {"kind": "Status", "message": "no", "code": 404}


async def test_nodes_and_pods_are_read_and_missing_kinds_are_empty() -> None:
    state, requests = await read(bare_cluster)
    assert [node["metadata"]["name"] for node in state.nodes] == ["a", "b"]
    assert [pod["kind"] for pod in state.pods] == ["Pod"]
    assert state.policies == state.quota_trees == state.priority_classes == state.namespaces == ()
    assert {one.method for one in requests} == {"GET"}
    assert any("status.phase!=Succeeded" in one.path or "Succeeded" in one.path for one in requests)


async def test_only_finished_jobs_are_kept() -> None:
    def reply(path: str) -> tuple[int, object]:
        if "/jobs" not in path:
            return bare_cluster(path)
        status = {"conditions": [{"type": "Complete", "status": "True"}]}
        jobs = [{"metadata": {"name": "done"}, "status": status}, {"metadata": {"name": "runs"}}]
        return 200, {"metadata": {}, "items": jobs}

    state, _ = await read(reply)
    assert [one["metadata"]["name"] for one in state.jobs] == ["done"]
    assert (await read(bare_cluster))[0].jobs == ()


async def test_an_expired_list_is_read_again_and_finally_abandoned() -> None:
    attempts: list[str] = []

    def reply(path: str) -> tuple[int, object]:
        if path.startswith("/api/v1/pods"):
            attempts.append(path)
            if len(attempts) == 1:
                return 410, {"kind": "Status", "reason": "Expired", "message": "old", "code": 410}
        return bare_cluster(path)

    state, _ = await read(reply)
    assert len(state.pods) == 1

    def expired(path: str) -> tuple[int, object]:
        return (
            (410, {"kind": "Status", "code": 410}) if path.startswith("/api/v1/pods") else bare_cluster(path)
        )

    with pytest.raises(ApiError):
        await read(expired)


async def test_nodes_that_may_not_be_read_are_an_error() -> None:
    def forbidden(path: str) -> tuple[int, object]:
        return 403, {"kind": "Status", "reason": "Forbidden", "message": "nodes is forbidden", "code": 403}

    with pytest.raises(ApiError, match="nodes is forbidden"):
        await read(forbidden)


def test_reading_needs_no_terminal_and_no_other_loop() -> None:
    state, _ = asyncio.run(read(bare_cluster))
    assert len(state.nodes) == 2
