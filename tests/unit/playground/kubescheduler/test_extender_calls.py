"""The extender's protocol, over real HTTP against a scripted server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gpushare_playground.kubescheduler.extender import Extender, ExtenderError
from tests.unit.playground.kubescheduler.pods import a_pod

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer, **settings: Any) -> AsyncIterator[Extender]:
    app = web.Application()
    app.router.add_post("/gpushare/{verb}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession() as http:
            yield Extender(f"http://127.0.0.1:{port}/gpushare/", http, **settings)
    finally:
        await runner.cleanup()


def answering(body: object, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(body), status=status)

    return answer


GPU_POD = a_pod(requests={"aliyun.com/gpu-mem": "8"})


async def test_filter_sends_the_whole_pod_and_the_names_under_gos_keys() -> None:
    seen: list[tuple[str, str, object]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers["Content-Type"], await request.json()))
        return web.json_response({"NodeNames": ["b"], "FailedNodes": {"a": "full"}, "Error": ""})

    async with serving(answer) as extender:
        result = await extender.filter(GPU_POD, ["a", "b"])
    assert result.node_names == ["b"]
    assert result.failed_nodes == {"a": "full"}
    body = {"Pod": GPU_POD, "Nodes": None, "NodeNames": ["a", "b"]}
    assert seen == [("/gpushare/filter", "application/json", body)]


async def test_points_are_scaled_to_the_in_tree_scores_and_weighted() -> None:
    scored = answering([{"Host": "a", "Score": 10}, {"Host": "b", "Score": 1}])
    async with serving(scored) as extender:
        assert await extender.prioritize(GPU_POD, ["a", "b"]) == {"a": 500, "b": 50}


async def test_bind_names_the_pod_and_the_node() -> None:
    seen: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response({"Error": ""})

    async with serving(answer) as extender:
        await extender.bind(GPU_POD, "n1")
    assert seen == [{"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}]


async def test_an_error_in_the_answer_is_the_events_text() -> None:
    async with serving(answering({"Error": "no such pod"})) as extender:
        with pytest.raises(ExtenderError, match=r"^no such pod$"):
            await extender.bind(GPU_POD, "n1")
        with pytest.raises(ExtenderError, match=r"^no such pod$"):
            await extender.filter(GPU_POD, ["n1"])


async def test_a_node_that_was_not_offered_fails_the_cycle() -> None:
    async with serving(answering({"NodeNames": ["other"]})) as extender:
        with pytest.raises(ExtenderError, match='claims a filtered node "other" which is not found'):
            await extender.filter(GPU_POD, ["n1"])


async def test_another_status_and_a_body_that_is_no_json_are_errors() -> None:
    async with serving(answering({}, status=503)) as extender:
        with pytest.raises(
            ExtenderError, match=r"failed filter with extender at URL http://.*/filter, code 503"
        ):
            await extender.filter(GPU_POD, ["n1"])
    async with serving(answering("text")) as extender:
        for call in (
            extender.filter(GPU_POD, []),
            extender.prioritize(GPU_POD, []),
            extender.bind(GPU_POD, "n"),
        ):
            with pytest.raises(ExtenderError, match="/gpushare/"):
                await call


async def test_an_extender_that_is_down_is_reported_as_by_go() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        async with aiohttp.ClientSession() as http:
            extender = Extender(f"http://127.0.0.1:{port}/gpushare", http)
            with pytest.raises(ExtenderError) as caught:
                await extender.filter(GPU_POD, ["n1"])
    url = f"http://127.0.0.1:{port}/gpushare/filter"
    assert str(caught.value) == f'Post "{url}": dial tcp 127.0.0.1:{port}: connect: connection refused'


async def test_an_extender_that_does_not_answer_times_out() -> None:
    cancelled = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await cancelled.wait()
        return web.Response()

    async with serving(answer, timeout_s=0.05) as extender:
        with pytest.raises(ExtenderError, match="context deadline exceeded"):
            await extender.filter(GPU_POD, ["n1"])
        cancelled.set()


async def test_a_connection_that_is_cut_is_the_end_of_the_answer() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with serving(answer) as extender:
        with pytest.raises(ExtenderError, match="EOF"):
            await extender.filter(GPU_POD, ["n1"])
