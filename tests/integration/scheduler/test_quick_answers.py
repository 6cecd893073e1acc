"""Requests that are answered past ASGI: over real connections the two paths must be identical byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from gpushare.httpserver.exchange import JSON, Receive, Refusal, read_body
from gpushare.httpserver.fast_path import QuickProtocol, VerbFn
from gpushare.httpserver.limits import BoundedProtocol
from gpushare.httpserver.probes import Exposition, Probes
from gpushare.httpserver.server import Server, bind, server_of

DEADLINE_S = 60.0
ServerProtocol = type[BoundedProtocol]
both_ways = pytest.mark.parametrize("http", [QuickProtocol, BoundedProtocol], ids=["quick", "ASGI"])


class App(Probes):
    """Echoes the body, in several ways; ``handled`` are the verbs that ran, ``past`` the paths that bypass ASGI."""

    def __init__(self) -> None:
        super().__init__(lambda: "", Exposition())
        self.handled: list[str] = []
        self.past: list[str] = []
        self.reached, self.release = asyncio.Event(), asyncio.Event()
        self._verbs: dict[str, VerbFn] = {
            "/echo": self._echo,
            "/later": self._later,
            "/refuses": self._refuses,
            "/breaks": self._breaks,
            "/breaks-later": self._breaks_later,
        }

    def quick(self, path: bytes) -> VerbFn | None:
        verb = self._verbs.get(path.decode())
        if verb is not None:
            self.past.append(path.decode())
        return verb

    async def answer(self, method: str, path: str, receive: Receive) -> tuple[bytes, bytes]:
        if method != "POST":
            return await super().answer(method, path, receive)
        if (verb := self._verbs.get(path)) is None:
            raise Refusal(404, "nothing here")
        answer = verb(await read_body(receive, 10_000_000))
        return JSON, answer if isinstance(answer, bytes) else await answer

    def _echo(self, body: bytes) -> bytes:
        self.handled.append("echo")
        return b'{"echo": "%s"}' % body

    def _later(self, body: bytes) -> Coroutine[Any, Any, bytes]:
        async def coming() -> bytes:
            self.handled.append("later")
            self.reached.set()
            await self.release.wait()
            return self._echo(body)

        return coming()

    def _refuses(self, body: bytes) -> bytes:
        raise Refusal(400, f"no: {body.decode()}")

    def _breaks(self, body: bytes) -> bytes:
        raise ZeroDivisionError

    async def _breaks_later(self, body: bytes) -> bytes:
        await asyncio.sleep(0)
        raise ZeroDivisionError


class Talk:
    """One connection to a served ``App``."""

    def __init__(self, app: App, server: Server, port: int) -> None:
        self.app, self.server, self.port = app, server, port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def answer(self) -> bytes:
        """The next answer as it came; empty at the end of the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            return end.partial
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    async def ask(self, *requests: bytes) -> list[bytes]:
        for one in requests:
            self.writer.write(one)
        return [await self.answer() for _ in requests]


@asynccontextmanager
async def talking(http: ServerProtocol, stop_s: int = 5) -> AsyncIterator[Talk]:
    """A connection to an ``App`` that is served with these settings."""
    app, bound = App(), bind("127.0.0.1", 0)
    bound.listen(16)
    server = server_of(app, stop_s=stop_s, protocol=http)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    talk = Talk(app, server, bound.getsockname()[1])
    async with asyncio.timeout(DEADLINE_S):
        await talk.open()
        try:
            yield talk
        finally:
            app.release.set()
            talk.writer.close()
            server.should_exit = True
            await serving


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: x", *headers]
    if not any("transfer-encoding" in header.lower() for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def on_uvloop(test: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Run as the extender does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test(*arguments))  # type: ignore[arg-type]


REQUESTS = {
    "plain": [post("/echo", b"a")],
    "kept": [
        post("/echo", b"a"),
        post("/refuses", b"b"),
        post("/echo", b"c"),
        b"GET /healthz HTTP/1.1\r\n\r\n",
    ],
    "empty": [post("/echo", b"")],
    "large": [post("/echo", b"x" * 300_000)],
    "above what goes past ASGI": [post("/echo", b"x" * 5_000_000)],
    "query": [post("/echo?a=b", b"a")],
    "escaped": [post("/%65cho", b"a")],
    "unknown": [post("/other", b"a"), post("/echo/", b"b")],
    "chunked": [post("/echo", b"3\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked")],
    "breaks": [post("/breaks", b"a"), post("/echo", b"a")],
    "breaks later": [post("/breaks-later", b"a"), post("/echo", b"a")],
    "close": [post("/echo", b"a", "Connection: close"), post("/echo", b"a")],
    "refused and closed": [post("/refuses", b"a", "Connection: close")],
    "old": [post("/echo", b"a", version="1.0"), post("/echo", b"a")],
    "old and kept": [post("/echo", b"a", "Connection: keep-alive", version="1.0")],
    "upgrade": [post("/echo", b"", "Connection: upgrade", "Upgrade: h2c")],
    "no length": [b"POST /echo HTTP/1.1\r\nHost: x\r\n\r\n"],
    "no HTTP": [b"hello\r\n\r\n"],
    "broken length": [b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n"],
    "two lengths": [b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na"],
}


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "pipelined"])
@pytest.mark.parametrize("requests", REQUESTS.values(), ids=REQUESTS.keys())
def test_the_answers_are_the_same(requests: list[bytes], at_once: bool) -> None:
    async def answers(http: ServerProtocol) -> list[bytes]:
        async with talking(http) as talk:
            if at_once:
                return await talk.ask(*requests)
            return [answer for one in requests for answer in await talk.ask(one)]

    responses: dict[str, list[bytes]] = {}

    async def compare() -> None:
        responses["quick"] = await answers(QuickProtocol)
        responses["ASGI"] = await answers(BoundedProtocol)

    on_uvloop(compare)
    assert responses["quick"] == responses["ASGI"]


def test_only_plain_requests_bypass_asgi() -> None:
    async def check() -> None:
        async with talking(QuickProtocol) as talk:
            plain = await talk.ask(post("/echo", b"a"), post("/refuses", b"b"))
            asgi_paths: list[str] = []
            app_answer = talk.app.answer

            async def recording_answer(method: str, path: str, receive: Receive) -> tuple[bytes, bytes]:
                asgi_paths.append(path)
                return await app_answer(method, path, receive)

            talk.app.answer = recording_answer  # type: ignore[method-assign]
            await talk.ask(
                post("/echo", b"a"), post("/echo", b"1\r\na\r\n0\r\n\r\n", "Transfer-Encoding: chunked")
            )
        assert plain[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert asgi_paths == ["/echo"]

    on_uvloop(check)


@both_ways
def test_a_body_in_pieces_is_reassembled(http: ServerProtocol) -> None:
    async def check() -> None:
        async with talking(http) as talk:
            request = post("/echo", b"abcdef")
            for place in range(0, len(request), 7):
                talk.writer.write(request[place : place + 7])
                await talk.writer.drain()
                await asyncio.sleep(0)
            assert (await talk.answer()).endswith(b'{"echo": "abcdef"}')

    on_uvloop(check)


@both_ways
def test_a_pipelined_request_waits_for_the_slow_one_before_it(http: ServerProtocol) -> None:
    async def check() -> None:
        async with talking(http) as talk:
            talk.writer.write(post("/later", b"1") + post("/echo", b"2") + post("/later", b"3"))
            await talk.app.reached.wait()
            assert talk.app.handled == ["later"]
            talk.app.release.set()
            answers = [await talk.answer() for _ in range(3)]
        assert [answer[-3:-2] for answer in answers] == [b"1", b"2", b"3"]
        assert talk.app.handled == ["later", "echo", "echo", "later", "echo"]

    on_uvloop(check)


@both_ways
def test_a_stopping_server_answers_pending_requests_first(http: ServerProtocol) -> None:
    async def check() -> None:
        async with talking(http) as talk:
            talk.writer.write(post("/later", b"1"))
            await talk.app.reached.wait()
            talk.server.should_exit = True
            while talk.server.servers[0].is_serving():
                await asyncio.sleep(0)
            talk.app.release.set()
            answer = await talk.answer()
            assert answer.endswith(b'{"echo": "1"}')
            assert b"connection: close" in answer
            assert await talk.answer() == b""

    on_uvloop(check)


@both_ways
def test_a_disconnecting_caller_aborts_no_request(http: ServerProtocol) -> None:
    async def check() -> None:
        async with talking(http) as talk:
            talk.writer.write(post("/later", b"1"))
            await talk.app.reached.wait()
            talk.writer.transport.abort()
            await talk.open()
            await talk.ask(post("/echo", b"2"))
            talk.app.release.set()
            while talk.app.handled.count("echo") < 2:
                await asyncio.sleep(0)
            await talk.ask(post("/echo", b"3"))
        assert talk.app.handled == ["later", "echo", "echo", "echo"]

    on_uvloop(check)


@both_ways
def test_a_server_out_of_time_answers_500(http: ServerProtocol) -> None:
    async def check() -> None:
        async with talking(http, stop_s=0) as talk:
            talk.writer.write(post("/later", b"1"))
            await talk.app.reached.wait()
            talk.server.should_exit = True
            assert (await talk.answer()).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
            assert await talk.answer() == b""

    on_uvloop(check)
