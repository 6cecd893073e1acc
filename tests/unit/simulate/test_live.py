"""A living cluster is read page by page, and kinds that may not be there are taken for empty."""

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
    """What is read of a server that answers paths (with their query) so."""

    async def answered(request: web.Request) -> web.StreamResponse:
        status, body = reply(request.path_qs)
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")

    async with serving() as served:
        served.answer(*[answered] * 40)
        return await read_cluster(Access(served.url)), served.requests


def listed(*names: str, following: str = "") -> tuple[int, object]:
    return 200, {
        "metadata": {"continue": following},
        "items": [{"metadata": {"name": name}} for name in names],
    }


def lacking(path: str) -> tuple[int, object]:
    if path.startswith("/api/v1/nodes"):
        return listed("b") if "continue=" in path else listed("a", following="more")
    if path.startswith("/api/v1/pods"):
        return listed("p")
    return (403 if "namespaces" in path else 404), {"kind": "Status", "message": "no", "code": 404}


async def test_nodes_and_pods_are_read_and_what_is_not_there_is_empty() -> None:
    state, asked = await read(lacking)
    assert [node["metadata"]["name"] for node in state.nodes] == ["a", "b"]
    assert [pod["kind"] for pod in state.pods] == ["Pod"]
    assert state.policies == state.quota_trees == state.priority_classes == state.namespaces == ()
    assert {one.method for one in asked} == {"GET"}
    assert any("status.phase!=Succeeded" in one.path or "Succeeded" in one.path for one in asked)


async def test_of_jobs_those_that_have_ended_are_kept() -> None:
    def reply(path: str) -> tuple[int, object]:
        if "/jobs" not in path:
            return lacking(path)
        ended = {"conditions": [{"type": "Complete", "status": "True"}]}
        jobs = [{"metadata": {"name": "done"}, "status": ended}, {"metadata": {"name": "runs"}}]
        return 200, {"metadata": {}, "items": jobs}

    state, _ = await read(reply)
    assert [one["metadata"]["name"] for one in state.jobs] == ["done"]
    assert (await read(lacking))[0].jobs == ()


async def test_an_expired_list_is_read_again_and_abandoned_in_the_end() -> None:
    tried: list[str] = []

    def reply(path: str) -> tuple[int, object]:
        if path.startswith("/api/v1/pods"):
            tried.append(path)
            if len(tried) == 1:
                return 410, {"kind": "Status", "reason": "Expired", "message": "old", "code": 410}
        return lacking(path)

    state, _ = await read(reply)
    assert len(state.pods) == 1

    def expired(path: str) -> tuple[int, object]:
        return (410, {"kind": "Status", "code": 410}) if path.startswith("/api/v1/pods") else lacking(path)

    with pytest.raises(ApiError):
        await read(expired)


async def test_nodes_that_may_not_be_read_are_an_error() -> None:
    def forbidden(path: str) -> tuple[int, object]:
        return 403, {"kind": "Status", "reason": "Forbidden", "message": "nodes is forbidden", "code": 403}

    with pytest.raises(ApiError, match="nodes is forbidden"):
        await read(forbidden)


def test_reading_needs_no_terminal_and_no_other_loop() -> None:
    state, _ = asyncio.run(read(lacking))
    assert len(state.nodes) == 2
