"""An API server in memory for unit tests: create, read, merge, status, delete, and a watch that may lag."""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from gpushare.api.objects import ObjectReference
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare_playground.apiserver.writes.patching import merge_patch
from gpushare_playground.cache import Cache
from gpushare_playground.objects import Json, Kind, Objects, key_of
from tests.patience import Deadline

NOW = "2026-01-01T00:00:00Z"


class MemoryApi:
    """``lagging`` holds watch events back until ``deliver``; ``lose_next_answer`` handles a request but loses its response."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.caches: dict[Kind, Cache] = {kind: Cache() for kind in kinds}
        self._kinds = {kind.plural: kind for kind in kinds}
        self.items: dict[str, dict[str, Json]] = {kind.plural: {} for kind in kinds}
        self._numbers = itertools.count(1)
        self._undelivered: deque[tuple[str, Json, bool]] = deque()
        self.lagging = False
        self.lose_next_answer: str | None = None
        self.requests: list[tuple[str, str]] = []
        for cache in self.caches.values():
            cache.synced()

    @property
    def objects(self) -> Objects:
        return Objects(self)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10.0,
    ) -> bytes:
        await asyncio.sleep(0)
        self.requests.append((method, path))
        plural, key, name, subresource = self._parse(path)
        sent: Json = json.loads(body) if body else {}
        if subresource == "binding":
            answer = self._bind(plural, key, sent, path)
        elif method == "POST":
            answer = self._create(plural, key, sent, path)
        elif method == "GET":
            answer = self._found(plural, key, path)
        elif method == "DELETE":
            answer = self._delete(plural, key, sent, path)
        else:
            answer = self._write(method, plural, key, subresource, sent, path)
        assert name or method == "POST"
        if self.lose_next_answer == method:
            self.lose_next_answer = None
            raise Unreachable(path, "connection cut", sent=None)
        return json.dumps(answer).encode()

    def _parse(self, path: str) -> tuple[str, str, str, str]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, *rest = parts
        name = rest[0] if rest else ""
        key = f"{namespace}/{name}" if namespace else name
        return plural, key, name, rest[1] if len(rest) > 1 else ""

    def _found(self, plural: str, key: str, path: str) -> Json:
        if key not in self.items[plural]:
            raise ApiError(404, "NotFound", f"{plural} {key} not found", path)
        return self.items[plural][key]

    def _create(self, plural: str, key: str, sent: Json, path: str) -> Json:
        key = key_of({"metadata": {"namespace": key.partition("/")[0], **sent["metadata"]}})
        if key in self.items[plural]:
            raise ApiError(409, "AlreadyExists", f"{plural} {key} already exists", path)
        return self.put(plural, sent)

    def _bind(self, plural: str, key: str, sent: Json, path: str) -> Json:
        item = self._found(plural, key, path)
        if (item.get("spec") or {}).get("nodeName") or sent["metadata"]["uid"] != item["metadata"]["uid"]:
            raise ApiError(409, "Conflict", f"pod {key} cannot be bound", path)
        return self.put(plural, merge_patch(item, {"spec": {"nodeName": sent["target"]["name"]}}))

    def _delete(self, plural: str, key: str, options: Json, path: str) -> Json:
        item = self._found(plural, key, path)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted and wanted != item["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "uid mismatch", path)
        metadata = dict(item["metadata"])
        finalizers = list(metadata.get("finalizers") or ())
        running = plural == "pods" and (item.get("spec") or {}).get("nodeName")
        finished = (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        graceful = running and not finished and options.get("gracePeriodSeconds") != 0
        if finalizers or graceful:
            metadata |= {"deletionTimestamp": NOW, "finalizers": finalizers}
            metadata["deletionGracePeriodSeconds"] = 30 if graceful else 0
            return self.put(plural, {**item, "metadata": metadata})
        self.drop(plural, key)
        return item

    def _write(self, method: str, plural: str, key: str, subresource: str, sent: Json, path: str) -> Json:
        item = self._found(plural, key, path)
        metadata = sent.get("metadata") or {}
        for name in ("uid", "resourceVersion"):
            if metadata.get(name) and metadata[name] != item["metadata"][name]:
                raise ApiError(409, "Conflict", f"{name} mismatch", path)
        if subresource == "status" and method == "PUT":
            changed = {**item, "status": sent["status"]}
        elif subresource == "status":
            changed = {**item, "status": merge_patch(item.get("status") or {}, sent["status"])}
        else:
            changed = merge_patch(item, sent)
        if changed == item:
            return item
        metadata = changed["metadata"]
        held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not held:
            self.drop(plural, key)
            return changed
        return self.put(plural, changed)

    def put(self, plural: str, item: Json) -> Json:
        """Store an object as it is, with a UID and a new version."""
        metadata = {"creationTimestamp": NOW, "generation": 1, **item["metadata"]}
        number = next(self._numbers)
        metadata.setdefault("uid", f"uid-{number}")
        metadata["resourceVersion"] = str(number)
        stored = {**item, "metadata": metadata}
        self.items[plural][key_of(stored)] = stored
        self._notify(plural, stored, gone=False)
        return stored

    def drop(self, plural: str, key: str) -> None:
        """Take an object away."""
        self._notify(plural, self.items[plural].pop(key), gone=True)

    def add(self, kind: Kind, item: Json) -> Json:
        """Store an object of ``kind`` in namespace default (or of the whole cluster)."""
        namespace = {"namespace": "default"} if kind.namespaced else {}
        return self.put(kind.plural, {**item, "metadata": {**namespace, **item["metadata"]}})

    def change(self, kind: Kind, key: str, **parts: Any) -> Json:
        """Merge ``parts`` (spec, status, metadata) into an object."""
        return self.put(kind.plural, merge_patch(self.items[kind.plural][key], parts))

    def named(self, kind: Kind) -> list[str]:
        """Names of all objects of ``kind``, sorted."""
        return sorted(item["metadata"]["name"] for item in self.items[kind.plural].values())

    def get(self, kind: Kind, name: str) -> Json:
        """The object ``name`` in namespace default (or of the whole cluster)."""
        return self.items[kind.plural][f"default/{name}" if kind.namespaced else name]

    def _notify(self, plural: str, item: Json, *, gone: bool) -> None:
        self._undelivered.append((plural, item, gone))
        if not self.lagging:
            self.deliver()

    def deliver(self) -> None:
        """Let the watches catch up."""
        while self._undelivered:
            plural, item, gone = self._undelivered.popleft()
            cache = self.caches[self._kinds[plural]]
            if gone:
                cache.remove(key_of(item), item)
            else:
                cache.upsert(item)


class Events:
    """Remembers events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: str,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: str = "each",
    ) -> None:
        self.seen.append((kind, reason, note))


async def until(condition: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Let the loop turn until ``condition`` holds."""
    deadline = Deadline(within_s)
    while not condition():
        assert not deadline.passed(), f"not within {deadline}"
        await asyncio.sleep(0)


async def quiet(idle: Callable[[], bool], turns: int = 30) -> None:
    """Let the loop turn until everything has been idle for a while."""
    calm = 0
    while calm < turns:
        await asyncio.sleep(0)
        calm = calm + 1 if idle() else 0
