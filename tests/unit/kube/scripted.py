"""A clock that only its sleepers advance, and an in-memory API server whose faults are scripted."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpushare.kube.client.errors import ApiError, KubeError, OversizeLine, Unreachable
from gpushare.kube.client.session import status_error
from tests.patience import Deadline

GONE = {
    "kind": "Status",
    "status": "Failure",
    "reason": "Expired",
    "code": 410,
    "message": "too old resource version",
}
BROKEN = {"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500, "message": "etcd"}
PATH = "/api/v1/pods"


class ScriptedClock:
    """Stands still except for its sleepers: a sleep returns immediately and advances the time."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return 1_700_000_000_000_000_000 + int(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


@dataclass
class ScriptedServer:
    """A collection of objects with versions, a log that can be compacted, and scripted faults.

    Replaces a ``Session``. ``list_faults`` are raised by the next requests for a page, ``stream_faults`` by the
    watch that is open or the next; see ``fault``.
    """

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[int, bytes]] = field(default_factory=list)
    version: int = 10
    compacted: int = 0
    list_faults: deque[KubeError | None] = field(default_factory=deque)
    stream_faults: deque[str] = field(default_factory=deque)
    requests: list[dict[str, str]] = field(default_factory=list)
    lists: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    created: int = 0
    snapshots: dict[str, tuple[int, list[bytes]]] = field(default_factory=dict)

    def create(self, name: str, value: object = 0) -> None:
        self.created += 1
        self._write("ADDED", name, {"uid": f"uid-{self.created}"}, value)

    def modify(self, name: str, value: object) -> None:
        self._write("MODIFIED", name, {"uid": self.objects[name]["metadata"]["uid"]}, value)

    def delete(self, name: str) -> None:
        item = self.objects.pop(name)
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._append("DELETED", item)

    def bookmark(self) -> None:
        self._append("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}})

    def compact(self) -> None:
        """Drop the log: earlier watches, and lists begun earlier, get 410."""
        self.compacted = self.version
        self.log.clear()
        self.snapshots.clear()

    def fault(self, *faults: str) -> None:
        """cut, end, malformed, oversize, gone, broken, silent: raised in the open watch, one for each connection.

        ``gone-status`` and ``broken-status`` are raised before a watch opens; one that is open is cut for them.
        """
        self.stream_faults.extend(faults)
        self._wake()

    def view(self) -> dict[str, tuple[str, object]]:
        """Name to UID and value, as it is in the server."""
        return {name: (item["metadata"]["uid"], item["value"]) for name, item in self.objects.items()}

    def _write(self, kind: str, name: str, metadata: dict[str, str], value: object) -> None:
        self.version += 1
        metadata = {"name": name, "namespace": "n", "resourceVersion": str(self.version), **metadata}
        self.objects[name] = {"metadata": metadata, "value": value}
        self._append(kind, self.objects[name])

    def _append(self, kind: str, item: object) -> None:
        self.log.append((self.version, msgspec.json.encode({"type": kind, "object": item})))
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
        self.idle.clear()

    async def request(self, method: str, path: str, *, params: Mapping[str, str], timeout_s: float) -> bytes:
        assert (method, path) == ("GET", PATH)
        self.requests.append(dict(params))
        await asyncio.sleep(0)
        if self.list_faults and (fault := self.list_faults.popleft()) is not None:
            raise fault
        limit = int(params["limit"])
        token = params.get("continue")
        if token is None:
            self.lists += 1
            version, items = self.version, [msgspec.json.encode(item) for item in self.objects.values()]
        elif token in self.snapshots:
            version, items = self.snapshots[token]
        else:
            raise status_error(410, msgspec.json.encode(GONE), path)
        metadata = {"resourceVersion": str(version)}
        if items[limit:]:
            metadata["continue"] = f"{version}-{len(items) - limit}"
            self.snapshots[metadata["continue"]] = (version, items[limit:])
        page = [msgspec.Raw(item) for item in items[:limit]]
        return msgspec.json.encode({"metadata": metadata, "items": page})

    async def stream(
        self, path: str, params: Mapping[str, str], *, idle_timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        assert path == PATH
        self.requests.append(dict(params))
        seen = int(params["resourceVersion"])
        await asyncio.sleep(0)
        if seen < self.compacted:
            raise status_error(410, msgspec.json.encode(GONE), path)
        for name, status in (("gone-status", GONE), ("broken-status", BROKEN)):
            if self.stream_faults and self.stream_faults[0] == name:
                self.stream_faults.popleft()
                raise status_error(500, msgspec.json.encode(status), path)
        while True:
            changed = self.changed
            for version, line in list(self.log):
                if version > seen or (version == seen and b'"BOOKMARK"' in line):
                    yield line
                    seen = max(seen, version)
            if self.stream_faults:
                if self.stream_faults[0].endswith("-status"):
                    raise Unreachable(path, "the answer was cut", sent=True)
                fault = self.stream_faults.popleft()
                line = self._raise_or_line(fault, path)
                if line is None:
                    return
                yield line
            if changed is self.changed:
                self.idle.set()
                await changed.wait()
            if seen < self.compacted:
                yield msgspec.json.encode({"type": "ERROR", "object": GONE})
                return

    def _raise_or_line(self, fault: str, path: str) -> bytes | None:
        match fault:
            case "cut":
                raise Unreachable(path, "the answer was cut", sent=True)
            case "silent":
                raise Unreachable(path, "no answer in time", sent=None)
            case "oversize":
                raise OversizeLine(path, "a line of the watch is too long")
            case "malformed":
                return b'{"type":"ADDED","object":{"metadata":'
            case "gone":
                return msgspec.json.encode({"type": "ERROR", "object": GONE})
            case "broken":
                return msgspec.json.encode({"type": "ERROR", "object": BROKEN})
            case "forbidden":
                raise ApiError(403, "Forbidden", "may not watch", path)
            case _:
                assert fault == "end"
                return None


class View:
    """A handler that records its calls, and asserts that they are consistent."""

    def __init__(self) -> None:
        self.items: dict[str, tuple[str, object]] = {}
        self.changes: list[str] = []
        self.syncs = 0

    def synced(self) -> None:
        self.syncs += 1

    def upsert(self, item: tuple[str, str, object]) -> None:
        name, uid, value = item
        previous = self.items.get(name)
        assert previous is None or previous[0] == uid, (
            "another object of this name, and the old one was not removed"
        )
        assert previous != (uid, value), "notified of no change"
        self.items[name] = (uid, value)
        self.changes.append(f"+{name}={value}")

    def remove(self, key: str, last: tuple[str, str, object]) -> None:
        name, uid, value = last
        assert key == f"n/{name}"
        assert self.items.pop(name) == (uid, value), "not the last state"
        self.changes.append(f"-{name}")


def decode(raw: bytes) -> tuple[str, tuple[str, str, object]] | None:
    """Key and record of a scripted object; those of value ``ignore`` do not matter, ``odd`` cannot be read."""
    item = msgspec.json.decode(raw)
    if item["value"] == "odd":
        raise msgspec.ValidationError("odd")
    if item["value"] == "ignore":
        return None
    metadata = item["metadata"]
    return f"n/{metadata['name']}", (metadata["name"], metadata["uid"], item["value"])


async def until(condition: object, within_s: float = 30.0) -> None:
    """Let others run until ``condition()`` holds."""
    assert callable(condition)
    deadline = Deadline(within_s)
    while not condition():
        assert not deadline.passed(), f"not within {deadline}"
        await asyncio.sleep(0)
