"""An API server for one test: pods, nodes and events in memory, over real HTTP, with watches.

It does what the node agent uses, as the real one does it: field selectors, resource versions, merge patches
with a UID precondition, the status subresource.
"""

import asyncio
import json
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web

from gpushare_playground.apiserver.writes.patching import merge_patch
from tests.integration.nodeagent.changing import Changes

JsonObject = dict[str, Any]

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/"


class ScriptedApi:
    """``objects`` by (kind, name), where kind is ``pods``, ``nodes``, ``resourceslices`` or
    ``resourceclaims``, and a namespaced name is ``namespace/name``.
    """

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.objects: dict[tuple[str, str], JsonObject] = {}
        self.events: list[JsonObject] = []
        self.requests: list[str] = []
        self.refusing = False
        """Answer everything with 503."""
        self.failing_patches = 0
        """As many patches are answered with 500."""
        self.watch_held = False
        """Keep watch events back: the informer lags."""
        self.lists_held = False
        """Answer lists late, with what was true when they were asked for."""
        self.shares_devices = True
        """Whether the feature DRAConsumableCapacity is on."""
        self.partitions_devices = True
        """Whether the feature DRAPartitionableDevices is on."""
        self.taints_devices = True
        """Whether the feature DRADeviceTaints is on."""
        self._version = 10
        self._oldest = 0
        self._log: dict[str, list[tuple[int, str, JsonObject]]] = {
            kind: [] for kind in ("pods", "nodes", "resourceslices", "resourceclaims")
        }
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        server = site._server
        assert isinstance(server, asyncio.Server)
        self._port = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # --- for tests ----------------------------------------------------------------------------

    def put(self, kind: str, name: str, item: JsonObject) -> None:
        self._version += 1
        event = "MODIFIED" if (kind, name) in self.objects else "ADDED"
        item = json.loads(json.dumps(item))
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind, name] = item
        self._log[kind].append((self._version, event, item))
        self.changes.notify()

    def drop(self, kind: str, name: str) -> None:
        item = json.loads(json.dumps(self.objects.pop((kind, name))))
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._log[kind].append((self._version, "DELETED", item))
        self.changes.notify()

    def put_pod(self, pod: JsonObject) -> None:
        self.put("pods", f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", pod)

    def label_node(self, name: str, labels: dict[str, str]) -> None:
        node = self.objects["nodes", name]
        self.put("nodes", name, {**node, "metadata": {**node["metadata"], "labels": labels}})

    def release_watch(self) -> None:
        self.watch_held = False
        self.changes.notify()

    def forget(self) -> None:
        """As after a restart: watchers have to list again."""
        self._version += 1
        self._oldest = self._version
        for log in self._log.values():
            log.clear()
        self.changes.notify()

    def release_lists(self) -> None:
        self.lists_held = False
        self.changes.notify()

    def annotations(self, kind: str, name: str) -> dict[str, str]:
        item = self.objects.get((kind, name), {"metadata": {}})
        return item["metadata"].get("annotations") or {}

    def capacity(self, node: str) -> dict[str, str]:
        return self.objects["nodes", node].get("status", {}).get("capacity") or {}

    def reported(self, reason: str) -> list[JsonObject]:
        """The events of that reason."""
        return [event for event in self.events if event["reason"] == reason]

    # --- HTTP ---------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, {key: values[0] for key, values in parse_qs(request.query_string).items()}
        watching = query.get("watch") in ("1", "true")
        dry = "dryRun" in query
        self.requests.append(f"{'WATCH' if watching else 'DRY' if dry else request.method} {path}")
        self.changes.notify()
        if self.refusing:
            return _status(503, "ServiceUnavailable", "the server is away")
        if path in ("/api/v1/pods", "/api/v1/nodes", _SLICES) and request.method == "GET":
            kind = path.rsplit("/", 1)[1]
            if watching:
                return await self._watch(request, kind, query)
            items = [item for (of, _), item in self.objects.items() if of == kind and _selected(item, query)]
            version = str(self._version)
            await self.changes.until(lambda: not self.lists_held, "lists are answered")
            return web.json_response(
                {
                    "kind": "List",
                    "apiVersion": "v1",
                    "metadata": {"resourceVersion": version},
                    "items": items,
                }
            )
        if "/events" in path:
            return await self._take_event(request)
        if path.startswith(_SLICES):
            return await self._slice(request, path.removeprefix(_SLICES).lstrip("/"), dry=dry)
        if path.startswith(_CLAIMS):
            namespace, _, name = path.removeprefix(_CLAIMS).split("/")
            return await self._object(request, "resourceclaims", f"{namespace}/{name}")
        parts = path.removeprefix("/api/v1/").split("/")
        if parts[0] == "nodes":
            return await self._object(request, "nodes", parts[1])
        return await self._object(request, "pods", f"{parts[1]}/{parts[3]}")

    async def _watch(self, request: web.Request, kind: str, query: dict[str, str]) -> web.StreamResponse:
        log, since, oldest = self._log[kind], int(query.get("resourceVersion") or 0), self._oldest
        if since < oldest:
            return _status(410, "Expired", "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        at = bisect_right(log, since, key=lambda one: one[0])
        while not self.refusing and oldest == self._oldest:
            if not self.watch_held:
                while at < len(log):
                    _, event, item = log[at]
                    at += 1
                    if _selected(item, query):
                        await response.write(json.dumps({"type": event, "object": item}).encode() + b"\n")
            with suppress(AssertionError):
                await self.changes.until(partial(self._has_changes, kind, at, oldest), deadline_s=300)
        return response

    def _has_changes(self, kind: str, at: int, oldest: int) -> bool:
        over = self.refusing or oldest != self._oldest
        return over or (not self.watch_held and at < len(self._log[kind]))

    async def _take_event(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        there = {event["metadata"]["name"]: event for event in self.events}
        name = body["metadata"]["name"] if request.method == "POST" else request.path.rpartition("/")[2]
        if request.method != "POST":
            if name not in there:
                return _status(404, "NotFound", f'events "{name}" not found')
            there[name] |= body
        elif name in there:
            return _status(409, "AlreadyExists", f'events "{name}" already exists')
        else:
            self.events.append(there.setdefault(name, body))
        self.changes.notify()
        return web.json_response(there[name])

    async def _slice(self, request: web.Request, name: str, *, dry: bool) -> web.StreamResponse:
        """Writes of ResourceSlices, with the feature's fields dropped where it is off."""
        if request.method == "DELETE":
            if ("resourceslices", name) not in self.objects:
                return _status(404, "NotFound", f'resourceslices "{name}" not found')
            self.drop("resourceslices", name)
            return web.json_response({"kind": "Status", "status": "Success"})
        body = await request.json()
        name = body["metadata"]["name"]
        before = self.objects.get(("resourceslices", name))
        if request.method == "POST" and before is not None:
            return _status(409, "AlreadyExists", f'resourceslices "{name}" already exists')
        if request.method == "PUT":
            if before is None:
                return _status(404, "NotFound", f'resourceslices "{name}" not found')
            if body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
                return _status(409, "Conflict", "the object has been modified")
        self._drop_disabled(body)
        devices = body["spec"].get("devices", ())
        special = any(one.get("taints") or one.get("consumesCounters") for one in devices)
        if len(devices) > (most := 64 if special else 128):
            message = f"spec.devices: Too many: {len(devices)}: must have at most {most} items"
            return _status(422, "Invalid", message)
        if dry:
            return web.json_response(body)
        body["metadata"].setdefault("uid", f"uid-of-{name}")
        self.put("resourceslices", name, body)
        return web.json_response(self.objects["resourceslices", name])

    def _drop_disabled(self, body: JsonObject) -> None:
        if not self.shares_devices:
            for device in body["spec"].get("devices", ()):
                del device["allowMultipleAllocations"]
        if not self.partitions_devices:
            body["spec"].pop("sharedCounters", None)
        for device in body["spec"].get("devices", ()):
            if not self.partitions_devices:
                device.pop("consumesCounters", None)
            if not self.taints_devices:
                device.pop("taints", None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-11-28T18:00:00Z")

    async def _object(self, request: web.Request, kind: str, name: str) -> web.StreamResponse:
        item = self.objects.get((kind, name))
        if item is None:
            return _status(404, "NotFound", f'{kind} "{name}" not found')
        if request.method == "PATCH" and self.failing_patches:
            self.failing_patches -= 1
            return _status(500, "InternalError", "etcd is away")
        if request.method == "PATCH":
            strategic = request.content_type == "application/strategic-merge-patch+json"
            assert strategic or request.content_type == "application/merge-patch+json"
            patch = await request.json()
            uid = patch.get("metadata", {}).get("uid")
            if uid is not None and uid != item["metadata"]["uid"]:
                return _status(409, "Conflict", "the UID in the precondition is another")
            if strategic:
                patch["status"]["conditions"] = _conditions(item, patch["status"]["conditions"])
            merged = merge_patch(item, patch)
            if merged != item:
                self.put(kind, name, merged)
            item = self.objects[kind, name]
        return web.json_response(item)


def _selected(item: JsonObject, query: dict[str, str]) -> bool:
    selector = query.get("fieldSelector", "")
    for term in filter(None, selector.split(",")):
        field, _, value = term.partition("=")
        found: Any = item
        for key in field.split("."):
            found = found.get(key, "") if isinstance(found, dict) else ""
        if found != value:
            return False
    return True


def _conditions(item: Any, patched: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A node's conditions with some of them patched, as strategic merge patches do: by their type."""
    found = {one["type"]: one for one in item.get("status", {}).get("conditions") or ()}
    for one in patched:
        if one.get("$patch") == "delete":
            found.pop(one["type"], None)
        else:
            found[one["type"]] = {**found.get(one["type"], {}), **one}
    return list(found.values())


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message},
        status=code,
    )
