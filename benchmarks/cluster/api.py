"""The API server's client: many small writes, and one watch for pods that get a node."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.cluster.objects import NAMESPACE
from benchmarks.cluster.processes import WORK_S, Program, until
from gpushare.kube.auth.access import Access, load_access
from gpushare.kube.auth.tls import tls_context

#: A busy API server aborts a request after a minute.
_REQUEST: Final = aiohttp.ClientTimeout(total=90.0)
_WRITERS: Final = 12
#: Only metadata, so that the watch costs the API server as little as possible.
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
#: "Is bound", as a field selector.
_BOUND: Final = {"fieldSelector": "spec.nodeName!="}


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Line(msgspec.Struct):
    type: str
    object: _Object


_LINE: Final = msgspec.json.Decoder(_Line)


class Bound:
    """When each pod was seen with a node: name → seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self.failed: Exception | None = None
        """The error that ended the watch."""

    def note(self, name: str) -> None:
        """A pod with a node was seen."""
        self.at_s.setdefault(name, time.perf_counter())

    async def reaches(self, count: int, programs: Sequence[Program], deadline_s: float = WORK_S) -> None:
        """Wait until ``count`` pods have been seen with a node, which is the work of ``programs``."""

        async def reached() -> bool:
            if self.failed is not None:
                raise RuntimeError("the watch of pods ended") from self.failed
            return len(self.at_s) >= count

        try:
            await until(reached, f"{count} pods have a node", programs, deadline_s=deadline_s, every_s=0.02)
        except TimeoutError as error:
            raise TimeoutError(f"{len(self.at_s)} of {count} pods have a node; {error}") from None


class Api:
    """Requests to the API server with the kubeconfig's client certificate."""

    def __init__(self, http: aiohttp.ClientSession, access: Access) -> None:
        self.access = access
        self._http = http

    async def create(self, path: str, thing: object) -> None:
        """POST one object, which must not exist yet."""
        async with self._http.post(self.access.server + path, json=thing) as answer:
            if answer.status != 201:
                raise RuntimeError(f"POST {path}: {answer.status} {await answer.text()}")
            await answer.read()

    async def create_all(self, path: str, things: Iterable[object]) -> None:
        """POST many, several at once."""
        queue = iter(list(things))

        async def writer() -> None:
            for thing in queue:
                await self.create(path, thing)

        await asyncio.gather(*(writer() for _ in range(_WRITERS)))

    async def raw(self, path: str, **params: str) -> bytes:
        """The response to a GET."""
        async with self._http.get(self.access.server + path, params=params) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def get(self, path: str, **params: str) -> Any:
        """The JSON response to a GET."""
        return json.loads(await self.raw(path, **params))

    async def _pods(self, **params: str) -> tuple[list[str], str]:
        headers = {"Accept": _METADATA_LIST}
        async with self._http.get(self.access.server + _PODS, params=params, headers=headers) as answer:
            answer.raise_for_status()
            found = json.loads(await answer.read())
        return [item["metadata"]["name"] for item in found["items"] or ()], found["metadata"][
            "resourceVersion"
        ]

    async def create_pod(self, thing: object) -> None:
        """POST a pod of the benchmark's namespace."""
        await self.create(_PODS, thing)

    async def create_pods(self, things: Iterable[object]) -> None:
        """POST many of them."""
        await self.create_all(_PODS, things)

    async def delete_pods(self, programs: Sequence[Program]) -> None:
        """Delete all pods of the benchmark, and wait for it, which needs ``programs``."""

        async def none_left() -> bool:
            params = {"gracePeriodSeconds": "0"}
            async with self._http.delete(self.access.server + _PODS, params=params) as answer:
                # A busy server stops after a minute; pods deleted by then stay deleted.
                if answer.status != 504:
                    answer.raise_for_status()
                await answer.read()
            names, _ = await self._pods(limit="1", resourceVersion="0")
            return not names

        await until(none_left, "the pods are gone", programs, deadline_s=WORK_S, every_s=0.5)

    async def delete_pod(self, name: str) -> None:
        """Delete one pod at once."""
        url = f"{self.access.server}{_PODS}/{name}"
        async with self._http.delete(url, params={"gracePeriodSeconds": "0"}) as answer:
            await answer.read()

    async def nodes_ready(self, count: int) -> bool:
        """Whether ``count`` nodes are ready."""
        found = await self.get("/api/v1/nodes", resourceVersion="0")
        ready = sum(
            condition["type"] == "Ready" and condition["status"] == "True"
            for item in found["items"]
            for condition in item["status"].get("conditions", ())
        )
        return bool(ready >= count)

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[Bound]:
        """Follow the pods that have a node while the block runs."""
        found = Bound()
        _, version = await self._pods(limit="1")

        async def follow() -> None:
            resume = version
            try:
                # The server drops a watcher that lags while it is busy itself.
                while True:
                    resume = await self._follow(found, resume)
            except Exception as error:
                found.failed = error

        following = asyncio.create_task(follow())
        try:
            yield found
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def _follow(self, found: Bound, version: str) -> str:
        """One watch from ``version`` on, until the server ends it: the version seen last."""
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "3600", **_BOUND}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.get(
            self.access.server + _PODS, params=params, headers={"Accept": _METADATA}, timeout=timeout
        ) as answer:
            answer.raise_for_status()
            async for raw in answer.content:
                line = _LINE.decode(raw)
                if line.type == "ERROR":
                    raise RuntimeError(f"the watch of pods failed: {raw.decode()}")
                version = line.object.metadata.resource_version or version
                if line.type != "DELETED":
                    found.note(line.object.metadata.name)
        return version


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[Api]:
    """The API server of the kubeconfig."""
    access = load_access(str(kubeconfig))
    context = tls_context(access, access.client_certificate, access.client_key)
    connector = aiohttp.TCPConnector(ssl=True if context is None else context, limit=64)
    async with aiohttp.ClientSession(connector=connector, timeout=_REQUEST) as http:
        yield Api(http, access)
