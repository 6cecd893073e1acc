"""The dashboard's HTTP interface, a read-only ASGI application: the page, its data, and its stream of updates."""

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

#: No resources of other hosts, no inline scripts, no embedding in frames.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_COMMON_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_PROBES: Final = ("/healthz", "/readyz", "/metrics")
_BINARY: Final = b"application/octet-stream"
_MAX_LOGIN_BYTES: Final = 8192
_MIN_COMPRESSED_BYTES: Final = 1024
#: Delay of the answer to a wrong token, one request after the other; beyond ``_MAX_WRONG`` waiting requests are refused.
WRONG_TOKEN_DELAY_S: Final = 1.0
_MAX_WRONG: Final = 16
#: Interval of heartbeats in an idle stream; a page that receives nothing for longer reconnects.
HEARTBEAT_S: Final = 10.0
#: A page that accepts no data for this long is disconnected.
_SEND_TIMEOUT_S: Final = 30.0

Headers = tuple[tuple[bytes, bytes], ...]


class Query(msgspec.Struct, frozen=True):
    """A request for data: its query parameters, the first of each name."""

    parameters: dict[str, str]

    def parameter(self, name: str) -> str:
        """The value of a parameter; raises ``Refusal`` if it is missing."""
        if name not in self.parameters:
            raise Refusal(400, f"the parameter {name} is missing")
        return self.parameters[name]


class Answers(Protocol):
    """Answers requests for data below ``/api/``; raises ``Refusal``."""

    async def answer(self, path: str, query: Query) -> tuple[bytes, bytes]:
        """Content type and body for ``path`` below ``/api/``."""

    def whole(self) -> bytes:
        """The current state of everything, in the page's format: the answer to ``snapshot``."""


class _Login(msgspec.Struct):
    token: str


class DashboardApp:
    """The ASGI application. ``sleep`` delays answers to wrong tokens."""

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
        self._wrong_lock = asyncio.Lock()
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
            await self._log_in_or_out(scope, receive, send, out=path == "/logout")
            return
        if method not in ("GET", "HEAD"):
            raise Refusal(405, "read-only: only GET is allowed")
        if not path.startswith("/api/"):
            await self._asset(scope, send, path)
            return
        if not self._guard.admits(scope["headers"]):
            if self._guard.is_guess(scope["headers"]):
                await self._delay_wrong_token()
            raise Refusal(401, "log in first, or send the token: Authorization: Bearer TOKEN")
        query = Query(
            {
                name: values[0]
                for name, values in parse_qs(
                    scope["query_string"].decode("latin-1"), keep_blank_values=True
                ).items()
            }
        )
        if path == "/api/events":
            await self._events(scope, receive, send, query)
            return
        kind, body = await self._answers.answer(path.removeprefix("/api/"), query)
        headers: Headers = ((b"content-type", kind), (b"cache-control", b"no-store"))
        if len(body) >= _MIN_COMPRESSED_BYTES and _accepts_gzip(scope):
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
        elif _accepts_gzip(scope):
            await _respond(send, 200, (*headers, (b"content-encoding", b"gzip")), asset.compressed)
        else:
            await _respond(send, 200, headers, asset.body)

    # --- login ----------------------------------------------------------------------------------

    async def _log_in_or_out(self, scope: Scope, receive: Receive, send: Send, *, out: bool) -> None:
        body = await read_body(receive, _MAX_LOGIN_BYTES)
        # A page of another site can send forms, but not this content type without CORS permission.
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
                await self._delay_wrong_token()
                raise Refusal(401, "wrong token")
            cookie = self._guard.cookie(secure=_header(scope, b"x-forwarded-proto") == b"https")
        await _respond(send, 204, ((b"set-cookie", cookie), (b"cache-control", b"no-store")), b"")

    async def _delay_wrong_token(self) -> None:
        if self._wrong_waiting >= _MAX_WRONG:
            raise Refusal(429, "too many wrong tokens at once; try again later")
        self._wrong_waiting += 1
        try:
            async with self._wrong_lock:
                await self._sleep(WRONG_TOKEN_DELAY_S)
        finally:
            self._wrong_waiting -= 1

    # --- the stream -----------------------------------------------------------------------------

    async def _events(self, scope: Scope, receive: Receive, send: Send, query: Query) -> None:
        last_id = _header(scope, b"last-event-id").decode("latin-1") or query.parameters.get("last", "")
        try:
            page = self._stream.listen(last_id)
        except TooManyPages:
            raise Refusal(503, "too many pages are open; close some") from None
        disconnected = asyncio.create_task(_wait_for_disconnect(receive, page.end))
        try:
            # Without an await in between: later updates are already in the page's queue.
            snapshot = self._answers.whole() if page.needs_snapshot else b""
            snapshot_id = self._stream.last_id.encode()
            headers = [
                *_COMMON_HEADERS,
                (b"content-type", b"text/event-stream"),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _send_part(send, b": listening\n\n")
            if snapshot:
                # In this connection: another request might reach another replica, which numbers updates differently.
                data = base64.b64encode(await asyncio.to_thread(gzip.compress, snapshot, 1))
                await _send_part(send, b"id: %s\nevent: snapshot\ndata: %s\n\n" % (snapshot_id, data))
            while (wire := await page.next(HEARTBEAT_S)) is not None:
                # End the stream once the cookie expires or the token changes.
                if not self._guard.admits(scope["headers"]):
                    break
                await _send_part(send, wire or b"event: alive\ndata: {}\n\n")
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            logger.info("disconnected a page that accepted no data for %.0f s", _SEND_TIMEOUT_S)
        finally:
            self._stream.leave(page)
            disconnected.cancel()
            await asyncio.gather(disconnected, return_exceptions=True)


async def _send_part(send: Send, wire: bytes) -> None:
    async with asyncio.timeout(_SEND_TIMEOUT_S):
        await send({"type": "http.response.body", "body": wire, "more_body": True})


async def _wait_for_disconnect(receive: Receive, on_disconnect: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    on_disconnect()


async def _respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = () if status in (204, 304) else ((b"content-length", b"%d" % len(body)),)
    await send(
        {"type": "http.response.start", "status": status, "headers": [*_COMMON_HEADERS, *headers, *length]}
    )
    await send({"type": "http.response.body", "body": body})


def _header(scope: Scope, name: bytes) -> bytes:
    content: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return content


def _accepts_gzip(scope: Scope) -> bool:
    return b"gzip" in _header(scope, b"accept-encoding")


def as_json(value: object) -> tuple[bytes, bytes]:
    """Content type and body of a value as JSON."""
    return JSON, msgspec.json.encode(value)


def as_binary(body: bytes) -> tuple[bytes, bytes]:
    """Content type and body of binary data."""
    return _BINARY, body
