"""The API server's objects, followed with our own informer, and checked at every event."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from gpushare.api import names
from gpushare.kube.client.session import Session
from gpushare.kube.watch.informer import Informer
from tests.patience import Deadline

Json = dict[str, Any]
T = TypeVar("T")
CheckFn = Callable[[Mapping[str, Json]], None]

WITHIN_S: Final = 60.0


class Seen:
    """The objects of one collection by ``namespace/name``; ``on_event`` is called after each change."""

    def __init__(self, on_event: CheckFn | None = None) -> None:
        self.items: dict[str, Json] = {}
        self.events = 0
        self._on_event = on_event
        self._changed: set[asyncio.Event] = set()

    def synced(self) -> None:
        self._notify()

    def upsert(self, item: Json) -> None:
        self.items[key_of(item)] = item
        self._notify()

    def remove(self, key: str, last: Json) -> None:
        self.items.pop(key_of(last), None)
        self._notify()

    def _notify(self) -> None:
        self.events += 1
        if self._on_event is not None:
            self._on_event(self.items)
        self.look_again()

    def look_again(self) -> None:
        """Wake all waiters: something other than an object has changed."""
        for event in self._changed:
            event.set()

    async def changed(self) -> None:
        """Wait for the next event."""
        with self._listening() as event:
            await event.wait()

    async def until(
        self,
        reached: Callable[[], T],
        what: str,
        within_s: float = WITHIN_S,
        detail: Callable[[], object] = str,
    ) -> T:
        """Wait until ``reached()`` is true; checks again after every event. ``detail`` describes the actual
        state in a failure.
        """
        with self._listening() as event:
            deadline = Deadline(within_s)
            while not (found := reached()):
                event.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(deadline.left_s()):
                        await event.wait()
                assert not deadline.passed(), f"not within {deadline}: {what}. {detail()}"
            return found

    @contextlib.contextmanager
    def _listening(self) -> Any:
        event = asyncio.Event()
        self._changed.add(event)
        try:
            yield event
        finally:
            self._changed.discard(event)


@contextlib.asynccontextmanager
async def following(session: Session, path: str, seen: Seen) -> AsyncIterator[Seen]:
    """Keep ``seen`` up to date during the block; exceptions of its checks are raised at the end."""
    informer = Informer(session, path, lambda raw: (key_of(json.loads(raw)), json.loads(raw)), seen)
    running = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(WITHIN_S):
            await informer.synced.wait()
        yield seen
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def key_of(item: Json) -> str:
    """``namespace/name``, or the name of what is in no namespace."""
    meta = item["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


# --- pods -----------------------------------------------------------------------------------------


def phase_of(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def is_finished(pod: Json) -> bool:
    return phase_of(pod) in ("Succeeded", "Failed")


def node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def is_running(pod: Json) -> bool:
    """Whether every container of the pod runs."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return (
        phase_of(pod) == "Running" and bool(statuses) and all("running" in one["state"] for one in statuses)
    )


def waits_because(pod: Json) -> str:
    """Why a pod without a node is pending, by its condition; empty if that has no message."""
    for one in pod.get("status", {}).get("conditions") or []:
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message", ""))
    return ""


def annotations_of(item: Json) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def record_of(pod: Json) -> list[Json]:
    """The pod's allocation by its own annotation: a share (uuid, mib, units …) a GPU."""
    text = annotations_of(pod).get(names.ANN_SHARE)
    return [] if text is None else list(json.loads(text)["gpus"])


def held_mib(pods: Iterable[Json]) -> dict[str, int]:
    """MiB by GPU (UUID) that the bound and unfinished of ``pods`` hold, by their annotations."""
    held: dict[str, int] = {}
    for pod in pods:
        if node_of(pod) and not is_finished(pod):
            for share in record_of(pod):
                held[share["uuid"]] = held.get(share["uuid"], 0) + share["mib"]
    return held
