"""The extender as kube-scheduler calls it: HTTP POST, with Go's names for keys and Go's messages for errors.

Source: kubernetes 1.36 ``pkg/scheduler/extender.go`` with ``nodeCacheCapable: true``.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp
import msgspec

from gpushare.kubescheduler.scores import MAX_NODE_SCORE
from gpushare_playground.objects import Json, name_of, namespace_of, uid_of

MAX_PRIORITY: Final = 10
WEIGHT: Final = 5


class ExtenderError(Exception):
    """The extender did not fulfil the request: ``str()`` is the text for the pod's event."""


class FilterResult(msgspec.Struct, rename="pascal"):
    """The response to filter."""

    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """One entry of the response to prioritize."""

    host: str
    score: int


class _BindingResult(msgspec.Struct, rename="pascal"):
    error: str = ""


_FILTER = msgspec.json.Decoder(FilterResult)
_PRIORITIES = msgspec.json.Decoder(list[HostPriority] | None)
_BINDING = msgspec.json.Decoder(_BindingResult)


class Extender:
    """Calls one extender over ``http``. All methods raise ``ExtenderError``."""

    def __init__(self, url_prefix: str, http: aiohttp.ClientSession, *, timeout_s: float = 10.0) -> None:
        self._http = http
        self._url = url_prefix
        self._prefix = url_prefix.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def filter(self, pod: Json, nodes: Sequence[str]) -> FilterResult:
        """Which of ``nodes`` take the pod, and why the others do not."""
        raw = await self._send("filter", _arguments(pod, nodes))
        try:
            result = _FILTER.decode(raw)
        except msgspec.DecodeError as error:
            raise ExtenderError(f"{self._prefix}/filter: {error}") from None
        if result.error:
            raise ExtenderError(result.error)
        sent = set(nodes)
        for name in result.node_names or ():
            if name not in sent:
                raise ExtenderError(
                    f'extender "{self._url}" claims a filtered node "{name}" '
                    "which is not found in the input node list"
                )
        return result

    async def prioritize(self, pod: Json, nodes: Sequence[str]) -> dict[str, int]:
        """Points per node, on the scale of the in-tree scores and weighted."""
        raw = await self._send("prioritize", _arguments(pod, nodes))
        try:
            listed = _PRIORITIES.decode(raw) or []
        except msgspec.DecodeError as error:
            raise ExtenderError(f"{self._prefix}/prioritize: {error}") from None
        scale = WEIGHT * (MAX_NODE_SCORE // MAX_PRIORITY)
        return {entry.host: entry.score * scale for entry in listed}

    async def bind(self, pod: Json, node: str) -> None:
        """Bind the pod to ``node``."""
        arguments = {
            "PodName": name_of(pod),
            "PodNamespace": namespace_of(pod),
            "PodUID": uid_of(pod),
            "Node": node,
        }
        raw = await self._send("bind", arguments)
        try:
            result = _BINDING.decode(raw)
        except msgspec.DecodeError as error:
            raise ExtenderError(f"{self._prefix}/bind: {error}") from None
        if result.error:
            raise ExtenderError(result.error)

    async def _send(self, verb: str, arguments: Json) -> bytes:
        url = f"{self._prefix}/{verb}"
        try:
            async with self._http.post(
                url,
                data=msgspec.json.encode(arguments),
                headers={"Content-Type": "application/json"},
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                body = await response.read()
                status = response.status
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ExtenderError(f'Post "{url}": {_go_message(error, url)}') from None
        if status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {status}")
        return body


def _arguments(pod: Json, nodes: Sequence[str]) -> Json:
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


def _go_message(error: Exception, url: str) -> str:
    """The error as Go's HTTP client reports it."""
    address = url.partition("://")[2].partition("/")[0]
    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error.os_error, ConnectionRefusedError):
            return f"dial tcp {address}: connect: connection refused"
        return f"dial tcp {address}: {error.os_error.strerror or error.os_error}"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    if isinstance(error, ConnectionResetError):
        return "read: connection reset by peer"
    return str(error) or type(error).__name__
