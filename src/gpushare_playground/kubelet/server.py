"""The kubelet's HTTP server, on loopback, for the API server: logs, exec, health.

``GET /containerLogs/NS/POD/CONTAINER``, ``GET /exec/NS/POD/CONTAINER`` (WebSocket), ``/pods``,
``/healthz``. Everything but health needs the bearer token, or over TLS the API server's client certificate.
"""

import hmac
import json
import logging
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from aiohttp import web

from gpushare_playground.kubelet.errors import BadSettings, NotRunning, Waiting
from gpushare_playground.kubelet.runtime.containers import Attempt
from gpushare_playground.kubelet.runtime.execsession import PROTOCOLS, ExecSession, Streams
from gpushare_playground.kubelet.runtime.logs import LogOptions, read_log, since_seconds
from gpushare_playground.kubelet.settings import TlsFiles

_STOP_TIMEOUT_S: Final = 2.0
#: Clients with access: the group in the certificate that a cluster's API server presents to its kubelets.
_MASTERS: Final = (("organizationName", "system:masters"),)
_log = logging.getLogger(__name__)


class Inhabitants(Protocol):
    """What the server needs to know about the pods here."""

    def attempt(self, namespace: str, pod: str, container: str, *, previous: bool) -> Attempt:
        """The current or previous start of a container; raises ``NotRunning``."""

    def described_pods(self) -> list[dict[str, Any]]:
        """Every pod here, as API objects reduced to identity and status."""


class Server:
    """Serves one kubelet."""

    def __init__(self, inhabitants: Inhabitants, token: str, tls: TlsFiles | None = None) -> None:
        self._inhabitants = inhabitants
        self._token = token
        self._tls = _context(tls) if tls is not None else None
        self._sessions: dict[ExecSession, Attempt] = {}
        app = web.Application(middlewares=[self._authorised])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/pods", self._pods)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_TIMEOUT_S)

    async def start(self, address: str, port: int, wished: int = 0) -> int:
        """Serve on ``address``; port 0 means ``wished`` if it is free, otherwise any. Returns the port."""
        await self._runner.setup()
        for candidate in (port,) if port else (wished, 0) if wished else (0,):
            try:
                site = web.TCPSite(self._runner, address, candidate, ssl_context=self._tls)
                await site.start()
            except OSError as error:
                failure = error
                continue
            return int(self._runner.addresses[0][1])
        raise BadSettings(f"address {address}:{port}", f"cannot be listened on: {failure.strerror}")

    async def stop(self) -> None:
        """Close all connections and end every command."""
        for session in list(self._sessions):
            session.kill()
        await self._runner.cleanup()

    def container_ended(self, attempt: Attempt) -> None:
        """End the further commands in a container, as its namespaces would."""
        for session, beside in list(self._sessions.items()):
            if beside is attempt:
                session.kill()

    def commands(self) -> Iterator[tuple[int, Attempt]]:
        """The first process of each further command in a container."""
        return ((session.pid, beside) for session, beside in self._sessions.items() if session.pid)

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path != "/healthz" and not self._is_authorised(request):
            return web.Response(status=401, text="Unauthorized")
        try:
            response: web.StreamResponse = await handler(request)
        except Waiting as error:
            return web.Response(status=400, text=str(error))
        except NotRunning as error:
            return web.Response(status=404, text=str(error))
        except ValueError as error:
            return web.Response(status=400, text=f"bad option: {error}")
        return response

    def _is_authorised(self, request: web.Request) -> bool:
        # OpenSSL has verified that the authority signed it; nodes and users also have its certificates.
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        if certificate and _MASTERS in certificate.get("subject", ()):
            return True
        shown = request.headers.get("Authorization", "")
        return bool(self._token) and hmac.compare_digest(shown.encode(), f"Bearer {self._token}".encode())

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        listed = {"kind": "PodList", "apiVersion": "v1", "items": self._inhabitants.described_pods()}
        return web.Response(text=json.dumps(listed), content_type="application/json")

    def _attempt(self, request: web.Request, *, previous: bool) -> Attempt:
        where = request.match_info
        return self._inhabitants.attempt(
            where["namespace"], where["pod"], where["container"], previous=previous
        )

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        options = log_options(query)
        attempt = self._attempt(request, previous=_flag(query, "previous"))
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})

        def going_on() -> bool:
            return attempt.ended is None and request.transport is not None

        try:
            await response.prepare(request)
            async for piece in read_log(attempt.log, options, going_on):
                await response.write(piece)
            await response.write_eof()
        except ConnectionResetError:
            _log.debug("%s: the reader has gone", request.path)
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        command = query.getall("command", [])
        if not command:
            raise ValueError("command is missing")
        streams = Streams(
            stdin=_flag(query, "stdin") or _flag(query, "input"),
            stdout=_flag(query, "stdout") or _flag(query, "output"),
            stderr=_flag(query, "stderr") or _flag(query, "error"),
            tty=_flag(query, "tty"),
        )
        socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
        await socket.prepare(request)
        try:
            await self._run_command(request, socket, streams, command)
        finally:
            await socket.close()
        return socket

    async def _run_command(
        self, request: web.Request, socket: web.WebSocketResponse, streams: Streams, command: list[str]
    ) -> None:
        session = ExecSession(socket, streams)
        # Reported through the open connection: a client would take a rejected one for an old server's.
        try:
            attempt = self._attempt(request, previous=False)
        except NotRunning as error:
            await session.refuse(str(error))
            return
        launch = attempt.launch()
        if attempt.ended is not None or launch is None:
            await session.refuse(
                f'container not found ("{request.match_info["container"]}"): it does not run'
            )
            return
        self._sessions[session] = attempt
        try:
            await session.run(launch, command)
        finally:
            del self._sessions[session]


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(files.client_ca)
    except (ssl.SSLError, OSError) as error:
        raise BadSettings("--tls", f"{files.certificate}, {files.key}, {files.client_ca}: {error}") from None
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def log_options(query: Mapping[str, str]) -> LogOptions:
    """Options of a log request; raises ``ValueError`` naming the one that is wrong."""
    since = None
    if "sinceSeconds" in query:
        since = since_seconds(_number(query, "sinceSeconds") or 0)
    elif "sinceTime" in query:
        since = datetime.fromisoformat(query["sinceTime"])
    return LogOptions(
        follow=_flag(query, "follow"),
        tail_lines=_number(query, "tailLines"),
        timestamps=_flag(query, "timestamps"),
        since=since,
        limit_bytes=_number(query, "limitBytes"),
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("1", "true", "t")


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None or text == "":
        return None
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r} is not a number of 0 or more")
    return int(text)
