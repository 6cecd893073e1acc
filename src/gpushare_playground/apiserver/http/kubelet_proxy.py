"""Logs and exec: forwarded, byte for byte, to the kubelet of the pod's node.

The kubelet's address is taken from its Node (``InternalIP`` and ``kubeletEndpoint.Port``); the connection is
plain HTTP with a shared bearer token, because it listens on loopback only. Upgrades are WebSocket from end
to end: each message is forwarded unchanged, in the subprotocol that both ends agreed on.
"""

import asyncio
import contextlib
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from aiohttp import web

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.http.service_proxy import passed_on
from gpushare_playground.apiserver.store import Record, Store

_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 5.0
_LOG_OPTIONS: Final = (
    "follow",
    "tailLines",
    "previous",
    "timestamps",
    "sinceSeconds",
    "sinceTime",
    "limitBytes",
)
_RELAYED_HEADERS: Final = ("Content-Type",)


def kubelet_address(node: Object) -> str | None:
    """``HOST:PORT`` of a node's kubelet; None if the Node does not have it."""
    status = node.get("status") or {}
    addresses = {address.get("type"): address.get("address") for address in status.get("addresses") or ()}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    host = addresses.get("InternalIP")
    if not host or not port:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class KubeletProxy:
    """Forwards requests about ``store``'s pods to kubelets that expect ``token``."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token
        self._session: aiohttp.ClientSession | None = None
        self._streams: set[asyncio.Task[object]] = set()

    async def start(self) -> None:
        """Prepare for forwarding."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, auto_decompress=False)

    async def stop(self) -> None:
        """End all streams."""
        for stream in self._streams:
            stream.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def serve(self, request: web.BaseRequest, pod: Record, subresource: str) -> web.StreamResponse:
        """Forward one request. Raises ``ApiError``: 400 if pod or container cannot be reached, 502 no kubelet."""
        stream = asyncio.current_task()
        assert stream is not None
        self._streams.add(stream)
        try:
            if subresource == "log":
                return await self._log(request, pod)
            return await self._exec(request, pod)
        finally:
            self._streams.discard(stream)

    async def node(self, request: web.BaseRequest, named: str, path: str) -> web.StreamResponse:
        """Forward a GET to a port of a node (``NAME:PORT``, or ``http:NAME:PORT``).

        Raises ``ApiError``: 404 no such node, 400 no port, 503 nothing listens on it.
        """
        assert self._session is not None
        named = named.removeprefix("http:")
        name, _, port = named.partition(":")
        node = self._store.get("nodes", "", name)
        if node is None:
            raise errors.not_found("nodes", "", name)
        addresses = {
            address["type"]: address["address"]
            for address in (node.obj.get("status") or {}).get("addresses") or ()
        }
        host = addresses.get("InternalIP", "")
        if not port.isdecimal() or not host:
            raise errors.bad_request(
                f"address not allowed: node {name} is reached by its InternalIP and a port"
            )
        url = f"http://[{host}]:{port}{path or '/'}" if ":" in host else f"http://{host}:{port}{path or '/'}"
        # The session's default Authorization is for kubelets.
        headers = {**passed_on(request.headers), "Authorization": ""}
        try:
            async with self._session.get(url, params=request.query, headers=headers) as upstream:
                body = await upstream.read()
                return web.Response(
                    status=upstream.status, body=body, headers=_response_headers(upstream.headers)
                )
        except aiohttp.ClientError as error:
            raise ApiError(503, "ServiceUnavailable", f"error trying to reach service: {error}", {}) from None

    def _container(self, request: web.BaseRequest, pod: Record) -> str:
        spec = pod.obj["spec"]
        groups: list[list[str]] = [
            [container["name"] for container in spec.get(key) or ()]
            for key in ("containers", "initContainers")
        ]
        wanted = request.query.get("container", "")
        if wanted:
            if wanted not in groups[0] + groups[1]:
                raise errors.bad_request(f"container {wanted} is not valid for pod {pod.name}")
            return wanted
        if len(groups[0]) == 1:
            return groups[0][0]
        choices = f"choose one of: [{' '.join(groups[0])}]"
        if groups[1]:
            choices += f" or one of the init containers: [{' '.join(groups[1])}]"
        raise errors.bad_request(f"a container name must be specified for pod {pod.name}, {choices}")

    def _base(self, pod: Record) -> str:
        node_name = pod.obj["spec"].get("nodeName")
        if not node_name:
            raise errors.bad_request(f"pod {pod.name} does not have a host assigned")
        node = self._store.get("nodes", "", node_name)
        if node is None:
            raise errors.not_found("nodes", "", node_name)
        address = kubelet_address(node.obj)
        if address is None:
            raise ApiError(
                500,
                "InternalError",
                f"node {node_name} does not say where its kubelet listens"
                " (status.addresses InternalIP and status.daemonEndpoints)",
            )
        return f"http://{address}"

    def _unreachable(self, pod: Record, error: Exception) -> ApiError:
        node = pod.obj["spec"].get("nodeName")
        return ApiError(502, "InternalError", f"cannot reach the kubelet of node {node}: {error}")

    async def _log(self, request: web.BaseRequest, pod: Record) -> web.StreamResponse:
        assert self._session is not None
        container = self._container(request, pod)
        if not pod.obj["spec"].get("nodeName"):
            # The real server responds with an empty log for a pod that has no node yet.
            return web.Response(text="", content_type="text/plain")
        url = f"{self._base(pod)}/containerLogs/{quote(pod.namespace)}/{quote(pod.name)}/{quote(container)}"
        params = {name: request.query[name] for name in _LOG_OPTIONS if name in request.query}
        try:
            async with self._session.get(url, params=params) as upstream:
                if upstream.status != 200:
                    text = (await upstream.text())[:2000].strip()
                    reason = "NotFound" if upstream.status == 404 else "BadRequest"
                    code = upstream.status if upstream.status in (400, 404) else 500
                    raise ApiError(code, reason if code != 500 else "InternalError", text)
                response = web.StreamResponse(headers=_response_headers(upstream.headers))
                response.enable_chunked_encoding()
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientConnectorError as error:
            raise self._unreachable(pod, error) from None

    async def _exec(self, request: web.BaseRequest, pod: Record) -> web.StreamResponse:
        assert self._session is not None
        base = self._base(pod)
        container = self._container(request, pod)
        path = f"/exec/{quote(pod.namespace)}/{quote(pod.name)}/{quote(container)}"
        # Checked last: kubectl tries SPDY after any rejection, and shows the response to that.
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise errors.bad_request(
                "exec needs a WebSocket upgrade (v5.channel.k8s.io); SPDY is not served here"
            )
        params = [(name, value) for name, value in request.query.items() if name != "container"]
        offered = [
            part.strip()
            for header in request.headers.getall("Sec-WebSocket-Protocol", [])
            for part in header.split(",")
        ]
        try:
            kubelet = await self._session.ws_connect(
                base + path, params=params, protocols=offered, max_msg_size=0, autoclose=False
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(
                error.status if error.status in (400, 403, 404) else 500,
                "BadRequest" if error.status == 400 else "InternalError",
                f"the kubelet refused exec on pod {pod.name}: {error.message}",
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise self._unreachable(pod, error) from None
        protocols = [kubelet.protocol] if kubelet.protocol else []
        client = web.WebSocketResponse(
            protocols=protocols, max_msg_size=0, autoclose=False, timeout=_CLOSE_S, compress=False
        )
        try:
            await client.prepare(request)
            await _relay(client, kubelet)
        finally:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_CLOSE_S):
                    await kubelet.close()
        return client


def _response_headers(headers: Any) -> dict[str, str]:
    return {name: headers[name] for name in _RELAYED_HEADERS if name in headers}


async def _relay(client: web.WebSocketResponse, kubelet: aiohttp.ClientWebSocketResponse) -> None:
    """Messages in both directions until either side closes; the other side is then closed with the same code."""
    directions = [
        asyncio.create_task(_pump(client, kubelet), name="exec: client to kubelet"),
        asyncio.create_task(_pump(kubelet, client), name="exec: kubelet to client"),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _pump(source: _Socket, target: _Socket) -> None:
    while True:
        message = await source.receive()
        match message.type:
            case aiohttp.WSMsgType.BINARY:
                await target.send_bytes(message.data)
            case aiohttp.WSMsgType.TEXT:
                await target.send_str(message.data)
            case aiohttp.WSMsgType.CLOSE:
                code = message.data if isinstance(message.data, int) else aiohttp.WSCloseCode.OK
                await target.close(code=code, message=(message.extra or "").encode())
                await source.close(code=code)
                return
            case aiohttp.WSMsgType.PING | aiohttp.WSMsgType.PONG:
                continue
            case _:
                await target.close(code=aiohttp.WSCloseCode.GOING_AWAY)
                return
