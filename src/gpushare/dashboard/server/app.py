"""The dashboard's HTTP interface, as an ASGI application: the page, what it asks for, and its stream of news. Read-only."""

import asyncio
import base64
import gzip
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import parse_qs

import msgspec

from gpushare.dashboard.server.assets import Asset
from gpushare.dashboard.server.auth import Guard
from gpushare.dashboard.server.event_stream import Stream, TooManyPages
from gpushare.httpserver.exchange import JSON, TEXT, Receive, Refusal, Scope, Send, read_body
from gpushare.httpserver.probes import Probes

logger = logging.getLogger(__name__)

#: No other host, no code in the page, no frame around it.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_ALWAYS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_PROBES: Final = ("/healthz", "/readyz", "/metrics")
_BINARY: Final = b"application/octet-stream"
_MOST_LOGIN_BYTES: Final = 8192
_LEAST_COMPRESSED: Final = 1024
#: A wrong token is answered after this long, one after the other; more who wait for that are sent away.
WRONG_S: Final = 1.0
_MOST_WRONG: Final = 16
#: A sign of life where nothing happens; a page that hears nothing for longer takes the connection for lost.
HEARTBEAT_S: Final = 10.0
#: A page that takes nothing for so long is cut off.
_STUCK_S: Final = 30.0

Headers = tuple[tuple[bytes, bytes], ...]


class Asked(msgspec.Struct, frozen=True):
    """A request for a part of the data: its query's parameters, the first of each name."""

    parameters: dict[str, str]

    def parameter(self, name: str) -> str:
        """Raises ``Refusal`` where it is missing."""
        if name not in self.parameters:
            raise Refusal(400, f"the parameter {name} is missing")
        return self.parameters[name]


class Answers(Protocol):
    """What answers requests for data: path below ``/api/`` → type and body; raises ``Refusal``."""

    async def answer(self, path: str, asked: Asked) -> tuple[bytes, bytes]:
        """Type and body."""

    def whole(self) -> bytes:
        """Everything as it is now, as the page takes it: the answer to ``snapshot``."""


class _Login(msgspec.Struct):
    token: str


class DashboardApp:
    """ASGI. ``sleep`` waits after a wrong token."""

    def __init__(
        self,
        assets: dict[str, Asset],
        guard: Guard,
        answers: Answers,
        stream: Stream,
        probes: Probes,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._assets = assets
        self._guard = guard
        self._answers = answers
        self._stream = stream
        self._probes = probes
        self._sleep = sleep
        self._wrong = asyncio.Lock()
        self._wrong_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry: one HTTP request."""
        if scope["path"] in _PROBES:
            await self._probes(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
        except Refusal as refusal:
            kind: Headers = ((b"content-type", TEXT), (b"cache-control", b"no-store"))
            if refusal.status == 401:
                kind += ((b"www-authenticate", b"Bearer"),)
            await _respond(send, refusal.status, kind, refusal.text.encode() + b"\n")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        method: str = scope["method"]
        if path in ("/login", "/logout"):
            if method != "POST":
                raise Refusal(405, f"{path} is for POST")
            await self._log(scope, receive, send, out=path == "/logout")
            return
        if method not in ("GET", "HEAD"):
            raise Refusal(405, "nothing can be changed here: GET alone")
        if not path.startswith("/api/"):
            await self._asset(scope, send, path)
            return
        if not self._guard.admits(scope["headers"]):
            if self._guard.is_guess(scope["headers"]):
                await self._punish()
            raise Refusal(401, "log in first, or send the token: Authorization: Bearer TOKEN")
        asked = Asked(
            {
                name: values[0]
                for name, values in parse_qs(
                    scope["query_string"].decode("latin-1"), keep_blank_values=True
                ).items()
            }
        )
        if path == "/api/events":
            await self._events(scope, receive, send, asked)
            return
        kind, body = await self._answers.answer(path.removeprefix("/api/"), asked)
        headers: Headers = ((b"content-type", kind), (b"cache-control", b"no-store"))
        if len(body) >= _LEAST_COMPRESSED and _takes_gzip(scope):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers += ((b"content-encoding", b"gzip"),)
        await _respond(send, 200, headers, body)

    async def _asset(self, scope: Scope, send: Send, path: str) -> None:
        asset = self._assets.get(path)
        if asset is None:
            raise Refusal(404, f"nothing at {path}")
        headers: Headers = (
            (b"content-type", asset.kind),
            (b"cache-control", b"no-cache"),
            (b"etag", asset.tag),
            (b"vary", b"accept-encoding"),
        )
        if any(name == b"if-none-match" and asset.tag in value for name, value in scope["headers"]):
            await _respond(send, 304, headers, b"")
        elif _takes_gzip(scope):
            await _respond(send, 200, (*headers, (b"content-encoding", b"gzip")), asset.compressed)
        else:
            await _respond(send, 200, headers, asset.body)

    # --- login ----------------------------------------------------------------------------------

    async def _log(self, scope: Scope, receive: Receive, send: Send, *, out: bool) -> None:
        body = await read_body(receive, _MOST_LOGIN_BYTES)
        # A page of another site can send forms, but not this type without our leave.
        if _header(scope, b"content-type").partition(b";")[0].strip() != JSON:
            raise Refusal(415, "send JSON (content-type: application/json)")
        if out:
            cookie = self._guard.no_cookie()
        else:
            try:
                token = msgspec.json.decode(body, type=_Login).token.strip()
            except (msgspec.MsgspecError, UnicodeDecodeError):
                raise Refusal(400, 'send {"token": "…"}') from None
            if not self._guard.knows(token.encode()):
                await self._punish()
                raise Refusal(401, "that is not the token")
            cookie = self._guard.cookie(secure=_header(scope, b"x-forwarded-proto") == b"https")
        await _respond(send, 204, ((b"set-cookie", cookie), (b"cache-control", b"no-store")), b"")

    async def _punish(self) -> None:
        if self._wrong_waiting >= _MOST_WRONG:
            raise Refusal(429, "too many wrong tokens at once; try again later")
        self._wrong_waiting += 1
        try:
            async with self._wrong:
                await self._sleep(WRONG_S)
        finally:
            self._wrong_waiting -= 1

    # --- the stream -----------------------------------------------------------------------------

    async def _events(self, scope: Scope, receive: Receive, send: Send, asked: Asked) -> None:
        last_id = _header(scope, b"last-event-id").decode("latin-1") or asked.parameters.get("last", "")
        try:
            page = self._stream.listen(last_id)
        except TooManyPages:
            raise Refusal(503, "too many pages are open; close some") from None
        gone = asyncio.create_task(_until_gone(receive, page.end))
        try:
            # At once: what happens from now on is queued for the page already.
            whole = self._answers.whole() if page.anew else b""
            anew_from = self._stream.last_id.encode()
            headers = [
                *_ALWAYS,
                (b"content-type", b"text/event-stream"),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _pass_on(send, b": listening\n\n")
            if whole:
                # In this connection: another request might be answered by another replica, whose numbers are not ours.
                data = base64.b64encode(await asyncio.to_thread(gzip.compress, whole, 1))
                await _pass_on(send, b"id: %s\nevent: snapshot\ndata: %s\n\n" % (anew_from, data))
            while (wire := await page.next(HEARTBEAT_S)) is not None:
                # Whoever shows an old cookie or token does not listen on.
                if not self._guard.admits(scope["headers"]):
                    break
                await _pass_on(send, wire or b"event: alive\ndata: {}\n\n")
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            logger.info("a page took nothing for %.0f s and was cut off", _STUCK_S)
        finally:
            self._stream.leave(page)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)


async def _pass_on(send: Send, wire: bytes) -> None:
    async with asyncio.timeout(_STUCK_S):
        await send({"type": "http.response.body", "body": wire, "more_body": True})


async def _until_gone(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()


async def _respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = () if status in (204, 304) else ((b"content-length", b"%d" % len(body)),)
    await send({"type": "http.response.start", "status": status, "headers": [*_ALWAYS, *headers, *length]})
    await send({"type": "http.response.body", "body": body})


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found


def _takes_gzip(scope: Scope) -> bool:
    return b"gzip" in _header(scope, b"accept-encoding")


def as_json(value: object) -> tuple[bytes, bytes]:
    """Type and body of a value as JSON."""
    return JSON, msgspec.json.encode(value)


def as_binary(body: bytes) -> tuple[bytes, bytes]:
    """Type and body of bytes."""
    return _BINARY, body
