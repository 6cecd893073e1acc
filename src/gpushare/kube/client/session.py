"""HTTP to the API server: a pool of persistent connections, credentials, and errors.

It retries requests rejected with 401, once, with a renewed credential (the server did not act on them); reads and idempotent requests after
429 or 503 with a ``Retry-After``; and reads, immediately, on a persistent connection that was closed. A write with unknown outcome is
never retried here; ``Unreachable.sent`` reports it to the caller.
"""

import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import msgspec
from multidict import CIMultiDict
from yarl import URL

from gpushare import __version__
from gpushare.kube.auth.access import Access
from gpushare.kube.auth.credentials import Credentials
from gpushare.kube.backoff import chance
from gpushare.kube.client.errors import ApiError, InvalidName, OversizeLine, Unreachable
from gpushare.kube.client.fast_aiohttp import aiohttp
from gpushare.kube.client.posting import Posts
from gpushare.kube.clock import SYSTEM_CLOCK, Clock

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
"""Merges lists of named elements, such as the conditions of a node, by name."""
LINE_LIMIT_BYTES = 16 * 1024 * 1024
"""Maximum line of a watch in bytes; etcd limits an object to 1.5 MiB, some servers allow more."""
_CONNECT_TIMEOUT_S = 5.0
_WATCH_CONNECT_TIMEOUT_S = 30.0
_KEEP_ALIVE_S = 45.0
"""Below the idle timeout of common load balancers (60 s), so that they do not close a connection under a bind."""
_NO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_SHOWN_CHARACTERS = 300


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int = 0


class _Status(msgspec.Struct):
    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


def segment(name: str) -> str:
    """``name`` as a path segment. Raises ``InvalidName``."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InvalidName(repr(name), "cannot name a Kubernetes object")
    return quote(name, safe="")


def status_error(status: int, body: bytes, path: str, retry_after_s: float | None = None) -> ApiError:
    """The error in a ``Status`` object, or in another body, such as that of a proxy."""
    try:
        answer = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = _Status()
    if answer.kind != "Status":
        text = " ".join(body[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").split())[:_SHOWN_CHARACTERS]
        return ApiError(status, "", text or "no explanation", path, retry_after_s=retry_after_s)
    if retry_after_s is None and answer.details is not None and answer.details.retry_after_seconds > 0:
        retry_after_s = float(answer.details.retry_after_seconds)
    return ApiError(answer.code or status, answer.reason, answer.message, path, retry_after_s=retry_after_s)


class Session:
    """A session with one API server: ``async with Session(access) as session``.

    ``connections`` limits parallel requests; further ones wait. ``part`` appears in audit logs
    (``User-Agent: gpushare/VERSION (PART)``). Entering raises ``KubeconfigError`` if certificate or key are unusable.
    """

    def __init__(
        self, access: Access, *, clock: Clock = SYSTEM_CLOCK, connections: int = 128, part: str = ""
    ) -> None:
        self.access = access
        self._agent = f"gpushare/{__version__}" + (f" ({part})" if part else "")
        self.server_date = ""
        """The ``Date`` header of the last response."""
        self._clock = clock
        self._connections = connections
        self._base = access.server.rstrip("/")
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._headers: dict[str, CIMultiDict[str]] = {}
        self._heads: dict[str, bytes | None] = {}
        self._headers_generation = -1
        self._request_options: dict[str, Any] = {"allow_redirects": False}
        if access.tls_server_name:
            self._request_options["server_hostname"] = access.tls_server_name
        if access.proxy:
            self._request_options["proxy"] = access.proxy

    async def __aenter__(self) -> Self:
        self._credentials = Credentials(self.access, self._clock)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=30
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_HEADERS,
        )
        plain = not self.access.proxy and URL(self._base).user is None
        self._posts = Posts(self._http, self._base, self.access.tls_server_name) if plain else None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10.0,
        idempotent: bool | None = None,
    ) -> bytes:
        """The body of the response, within ``timeout_s`` seconds in all.

        ``path`` begins with a slash and is used unchanged (see ``segment``). ``idempotent``: whether the request may be retried when the
        server requests it (default: reads only). Raises ``ApiError``, ``Unreachable``, ``CredentialError``.
        """
        target = _target(path, params)
        deadline = self._clock.monotonic() + timeout_s
        renewed = False
        remaining_s = timeout_s
        while True:
            status, retry_after, answer, generation = await self._exchange(
                method, target, path, body, content_type, remaining_s
            )
            if 200 <= status < 300:
                return answer
            if status == 401 and not renewed:
                renewed = True
                if await self._credentials.refused(generation):
                    continue
            error = status_error(status, answer, path, _retry_after_s(retry_after))
            if status not in (429, 503) or error.retry_after_s is None:
                raise error
            if not (method == "GET" if idempotent is None else idempotent):
                raise error
            wait_s = error.retry_after_s + chance() * min(1.0, timeout_s / 10.0)
            remaining_s = deadline - self._clock.monotonic() - wait_s
            if remaining_s <= 0.0:
                raise error
            await self._clock.sleep(wait_s)

    async def stream(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        idle_timeout_s: float,
        line_limit_bytes: int = LINE_LIMIT_BYTES,
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a watch as they arrive, without line ends, until the server ends it.

        An incomplete last line is dropped. Raises ``ApiError``, ``CredentialError``, ``OversizeLine`` and ``Unreachable``, the latter also
        after ``idle_timeout_s`` seconds without data.
        """
        url = self._url(_target(path, params))
        renewed = False
        timeout = aiohttp.ClientTimeout(
            total=None,
            # With a proxy's answer and TLS; ``sock_read`` begins after them.
            connect=min(idle_timeout_s, _WATCH_CONNECT_TIMEOUT_S),
            sock_connect=_CONNECT_TIMEOUT_S,
            sock_read=idle_timeout_s,
        )
        while True:
            headers = await self._fresh_headers("")
            generation = self._credentials.generation
            try:
                async with self._http.get(
                    url, headers=headers, timeout=timeout, ssl=self._tls, **self._request_options
                ) as response:
                    if response.status == 200:
                        _enable_keep_alive(response)
                        async with aclosing(_lines(response.content, path, line_limit_bytes)) as lines:
                            async for line in lines:
                                yield line
                        return
                    answer = await response.read()
                    status, retry_after = response.status, response.headers.get("Retry-After")
            except (aiohttp.ClientError, OSError) as error:
                raise self._unreachable(error, "GET", path) from error
            if status != 401 or renewed or not await self._credentials.refused(generation):
                raise status_error(status, answer, path, _retry_after_s(retry_after))
            renewed = True

    @property
    def _tls(self) -> ssl.SSLContext | bool:
        context = self._credentials.tls
        return True if context is None else context

    def _url(self, target: str) -> URL:
        # Already encoded: building and normalizing a URL would cost more than everything else here.
        return URL(self._base + target, encoded=True)

    async def _fresh_headers(self, content_type: str) -> CIMultiDict[str]:
        credentials = self._credentials
        if credentials.stale():
            await credentials.renew()
        if self._headers_generation != credentials.generation:
            self._headers_generation = credentials.generation
            self._headers.clear()
            self._heads.clear()
        headers = self._headers.get(content_type)
        if headers is None:
            headers = self._headers[content_type] = self._make_headers(content_type)
        return headers

    def _make_headers(self, content_type: str) -> CIMultiDict[str]:
        pairs = [("Accept", "application/json"), ("User-Agent", self._agent)]
        if self._credentials.authorization:
            pairs.append(("Authorization", self._credentials.authorization))
        if content_type:
            pairs.append(("Content-Type", content_type))
        return CIMultiDict([*pairs, *self.access.impersonate])

    def _head(self, posts: Posts, content_type: str, headers: CIMultiDict[str]) -> bytes | None:
        if content_type not in self._heads:
            self._heads[content_type] = posts.head(headers.items())
        return self._heads[content_type]

    def _timeout(self, total_s: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(total_s)
        if timeout is None:
            if len(self._timeouts) > 16:
                self._timeouts.clear()
            # The connection timeout is a little shorter, to distinguish it from a lost response.
            timeout = self._timeouts[total_s] = aiohttp.ClientTimeout(
                total=total_s,
                connect=total_s * 0.9,
                sock_connect=min(_CONNECT_TIMEOUT_S, total_s * 0.9),
                ceil_threshold=1e9,
            )
        return timeout

    async def _exchange(
        self, method: str, target: str, path: str, body: bytes | None, content_type: str, left_s: float
    ) -> tuple[int, str | None, bytes, int]:
        """Send one request: status, ``Retry-After``, body, and the generation of the credential used."""
        headers = await self._fresh_headers(content_type if body is not None else "")
        generation = self._credentials.generation
        try:
            if method == "POST" and body is not None and (posts := self._posts) and posts.takes(target, body):
                head = self._head(posts, content_type, headers)
                if head is not None:
                    posted = await posts.post(target, head, body, self._timeout(left_s), tls=self._tls)
                    return *posted, generation
            async with self._http.request(
                method,
                self._url(target),
                data=body,
                headers=headers,
                timeout=self._timeout(left_s),
                ssl=self._tls,
                **self._request_options,
            ) as response:
                status = response.status
                self.server_date = response.headers.get("Date", "")
                answer = await response.read()
                if status < 300:
                    return status, None, answer, generation
                return status, response.headers.get("Retry-After"), answer, generation
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error, method, path) from error

    def _unreachable(self, error: Exception, method: str, path: str) -> Unreachable:
        sent, problem = _outcome(error)
        subject = f"{method} {path}"
        return Unreachable(
            subject, f"{problem} (API server {self._base}, from {self.access.source})", sent=sent
        )


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def _outcome(error: Exception) -> tuple[bool | None, str]:
    """Whether the server may have received a request that failed with ``error``, and a message."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            reason = error.certificate_error
            return (
                False,
                f"its certificate is not trusted: {reason}; check certificate-authority and tls-server-name",
            )
        case aiohttp.ClientConnectorSSLError():
            return False, f"TLS failed: {error.os_error}; check that the address speaks TLS"
        case aiohttp.ClientConnectorDNSError():
            return False, f"its name cannot be resolved: {error.os_error}; check the server's address"
        case aiohttp.ClientProxyConnectionError():
            return (
                False,
                f"the proxy cannot be reached: {error.os_error}; check proxy-url or the environment's proxy",
            )
        case aiohttp.ClientConnectorError():
            return False, f"no connection: {error.os_error}; check that it runs and that its address is right"
        case aiohttp.ClientHttpProxyError():
            return False, f"the proxy refused: {error.status} {error.message}; check proxy-url"
        case aiohttp.ConnectionTimeoutError():
            return False, "no connection in time; check that it runs and that nothing blocks the way"
        case aiohttp.ClientPayloadError():
            return True, "the answer was cut"
        case TimeoutError():
            return None, "no answer in time"
        case _:
            return None, f"the connection was lost: {str(error) or type(error).__name__}"


def _retry_after_s(value: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header; dates, which the API server does not send, are ignored."""
    return float(value) if value is not None and value.isdigit() else None


async def _lines(content: aiohttp.StreamReader, path: str, limit_bytes: int) -> AsyncGenerator[bytes, None]:
    # aiohttp's line limit is far below the size of an object, so lines are split here.
    partial: list[bytes] = []
    partial_bytes = 0
    async for piece in content.iter_any():
        first, *others = piece.split(b"\n")
        partial.append(first)
        partial_bytes += len(first)
        if partial_bytes > limit_bytes:
            raise OversizeLine(path, f"a line of the watch is longer than {limit_bytes} bytes")
        if others:
            line = b"".join(partial)
            if line:
                yield line
            for line in others[:-1]:
                if line:
                    yield line
            partial, partial_bytes = [others[-1]], len(others[-1])


def _enable_keep_alive(response: aiohttp.ClientResponse) -> None:
    """Enable TCP keep-alive, so that a vanished peer is noticed within a minute."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is not None:
        with suppress(OSError, AttributeError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
