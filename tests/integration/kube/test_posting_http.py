"""Small POSTs take a shorter path than others: over real connections the two must look the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gpushare.kube.auth.access import Access
from gpushare.kube.auth.tls import tls_context
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.kube.client.session import Session
from tests.integration.kube.served import AnswerFn, begins, hangs_up, refuses, responds, serving
from tests.integration.kube.test_session_tls import CA_PEM, secured

PODS = "/api/v1/pods"
SMALL, LARGE = b'{"a": 1}', b'{"a": "' + b"x" * 100_000 + b'"}'
both_ways = pytest.mark.parametrize("body", [SMALL, LARGE], ids=["short way", "long way"])


@asynccontextmanager
async def raw(*answers: bytes) -> AsyncIterator[str]:
    """A server that sends these bytes, one after the other, for each request of one connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@both_ways
async def test_the_same_is_sent_to_the_same_place(body: bytes) -> None:
    async with serving() as served:
        access = Access(served.url + "/prefix/", token="t", impersonate=(("Impersonate-User", "ü"),))
        async with Session(access) as session:
            served.answer(responds({"done": 1}, 201))
            assert await session.request("POST", PODS, params={"a": "b c"}, body=body) == b'{"done": 1}'
    (request,) = served.requests
    assert (request.method, request.path, request.body) == ("POST", "/prefix/api/v1/pods?a=b+c", body)
    assert request.headers["Host"] == served.url.removeprefix("http://")
    assert request.headers["Authorization"] == "Bearer t"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Content-Length"] == str(len(body))
    assert request.headers["Impersonate-User"] == "ü"
    assert len(request.headers) == 7


@both_ways
async def test_both_paths_share_the_connections(body: bytes) -> None:
    async with serving() as served, Session(Access(served.url), connections=2) as session:
        await session.request("GET", PODS)
        await asyncio.gather(*(session.request("POST", PODS, body=body) for _ in range(10)))
        await session.request("GET", PODS)
    assert len(served.requests) == 12
    assert len({request.peer for request in served.requests}) <= 2


@both_ways
async def test_refusals_raise_the_same_errors(body: bytes) -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(refuses(409, "Conflict", "bound already"), refuses(503, Retry_After="3"))
        with pytest.raises(ApiError, match="bound already") as conflict:
            await session.request("POST", PODS, body=body)
        with pytest.raises(ApiError) as busy:
            await session.request("POST", PODS, body=body)
    assert conflict.value.conflict
    assert busy.value.retry_after_s == 3.0
    assert len({request.peer for request in served.requests}) == 1


@both_ways
async def test_an_interim_response_is_not_the_response(body: bytes) -> None:
    answer = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"
    async with raw(answer) as url, Session(Access(url)) as session:
        assert await session.request("POST", PODS, body=body) == b"{}"


@both_ways
async def test_a_connection_closed_by_the_server_is_not_reused(body: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with raw(answer) as url, Session(Access(url)) as session:
        assert [await session.request("POST", PODS, body=body) for _ in range(3)] == [b"{}"] * 3


@both_ways
async def test_a_response_delimited_by_the_end_of_its_connection_is_complete(body: bytes) -> None:
    async with raw(b"HTTP/1.1 200 OK\r\n\r\n{}") as url, Session(Access(url)) as session:
        assert [await session.request("POST", PODS, body=body) for _ in range(2)] == [b"{}"] * 2


@both_ways
@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (b"SSH-2.0-x\r\n\r\n", None),
        (b"", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", None),
    ],
)
async def test_a_broken_response_raises_the_same_error(body: bytes, answer: bytes, sent: bool | None) -> None:
    async with raw(answer) as url, Session(Access(url)) as session:
        with pytest.raises(Unreachable) as caught:
            await session.request("POST", PODS, body=body)
    assert caught.value.sent is sent


@both_ways
async def test_a_cancelled_request_leaves_no_response_for_the_next_one(body: bytes) -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        reached, release = asyncio.Event(), asyncio.Event()
        served.answer(waits(reached, release), responds({"of": "the second"}))
        first = asyncio.create_task(session.request("POST", PODS, body=body))
        await reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await session.request("POST", PODS, body=body) == b'{"of": "the second"}'
        release.set()
    assert served.requests[0].peer != served.requests[1].peer


def waits(reached: asyncio.Event, release: asyncio.Event) -> AnswerFn:
    async def answer(request: web.Request) -> web.StreamResponse:
        reached.set()
        await release.wait()
        return await hangs_up(request)

    return answer


@both_ways
async def test_a_response_cut_by_the_timeout_leaves_the_outcome_unknown(body: bytes) -> None:
    release = asyncio.Event()
    async with serving() as served, Session(Access(served.url)) as session:
        await session.request("GET", PODS)
        served.answer(begins(b'{"a":', then=release.wait))
        with pytest.raises(Unreachable, match="no answer in time") as caught:
            await session.request("POST", PODS, body=body, timeout_s=0.2)
        release.set()
    assert caught.value.sent is None


async def test_a_request_that_never_got_a_connection_is_reported_as_not_sent() -> None:
    reached, release = asyncio.Event(), asyncio.Event()
    async with serving() as served, Session(Access(served.url), connections=1) as session:
        served.answer(waits(reached, release))
        first = asyncio.create_task(session.request("POST", PODS, body=SMALL))
        await reached.wait()
        with pytest.raises(Unreachable, match="no connection in time") as caught:
            await session.request("POST", PODS, body=SMALL, timeout_s=0.2)
        release.set()
        with pytest.raises(Unreachable):
            await first
    assert caught.value.sent is False
    assert len(served.requests) == 1


@both_ways
async def test_invalid_header_values_are_not_sent(body: bytes) -> None:
    async with serving() as served, Session(Access(served.url, token="a\r\nX-Injected: b")) as session:
        with pytest.raises(ValueError, match="header"):
            await session.request("POST", PODS, body=body)
    assert served.requests == []


@both_ways
async def test_credentials_in_the_address_are_sent(body: bytes) -> None:
    async with serving() as served, Session(Access(served.url.replace("://", "://u:p@"))) as session:
        await session.request("POST", PODS, body=body)
    assert served.requests[0].headers["Authorization"] == "Basic dTpw"


@both_ways
async def test_a_closed_session_sends_nothing(body: bytes) -> None:
    async with serving() as served:
        async with Session(Access(served.url)) as session:
            pass
        with pytest.raises(RuntimeError, match="closed"):
            await session.request("POST", PODS, body=body)
    assert served.requests == []


@both_ways
async def test_the_next_connection_uses_renewed_tls_settings(body: bytes) -> None:
    async with secured("127.0.0.1") as served, Session(Access(served.url, ca=CA_PEM)) as session:
        await session.request("POST", PODS, body=body)
        await session.request("POST", PODS, body=body)
        session._credentials.tls = tls_context(session.access)
        await session.request("POST", PODS, body=body)
    first, second, third = (request.peer for request in served.requests)
    assert first == second != third
