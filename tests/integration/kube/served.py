"""A real HTTP server whose responses are scripted, one for each request."""

import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

AnswerFn = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Request:
    """A request as the server received it."""

    method: str
    path: str
    headers: Any
    body: bytes
    peer: object

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """The server's script: the next response is taken from ``answers``, ``{}`` when there is none left."""

    url: str = ""
    answers: deque[AnswerFn] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)

    def answer(self, *answers: AnswerFn) -> None:
        self.answers.extend(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        self.requests.append(Request(request.method, request.raw_path, request.headers, body, peer))
        return await (self.answers.popleft() if self.answers else responds({}))(request)


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """A server on a free port of this machine."""
    served = Served()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    server = TestServer(app, skip_url_asserts=True)
    await server.start_server(ssl=tls, shutdown_timeout=0.05)
    served.url = str(server.make_url("")).rstrip("/")
    try:
        yield served
    finally:
        await server.close()


def responds(content: object, status: int = 200, **headers: str) -> AnswerFn:
    """Answer with JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers_sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=json.dumps(content).encode(), status=status, headers=headers_sent)

    return answer


def refuses(status: int, reason: str = "Refused", message: str = "no", **headers: str) -> AnswerFn:
    """Answer with a ``Status``."""
    return responds(
        {"kind": "Status", "code": status, "reason": reason, "message": message}, status, **headers
    )


def hangs_up(request: web.Request) -> Awaitable[web.StreamResponse]:
    """Close the connection without a response."""

    async def answer() -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return answer()


def begins(*pieces: bytes, then: Callable[[], Awaitable[object]] | None = None) -> AnswerFn:
    """Answer 200 with these pieces, wait for ``then``, and cut the connection in the middle."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then is not None:
            await then()
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


def streams(*pieces: bytes) -> AnswerFn:
    """Answer 200 with these pieces and end properly."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    return answer
