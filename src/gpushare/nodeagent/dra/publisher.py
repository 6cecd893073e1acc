"""Keeps this node's ResourceSlices at the API server up to date; writes them only when one changes.

They are watched, because others may delete them: a kubelet does so at startup, and if no agent has responded for a while.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import Session, segment
from gpushare.kube.clock import Clock
from gpushare.kube.watch.informer import Informer
from gpushare.nodeagent.dra.slices import (
    Json,
    Owner,
    Part,
    Published,
    parts_of,
    read_slice,
    slices_of,
    untainted,
)

logger = logging.getLogger(__name__)

_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_WRITE_S: Final = 5.0
#: Delays after a failure that does not resolve itself, such as a disabled feature.
_FIRST_S: Final = 1.0
_MOST_S: Final = 15.0
NEEDED: Final = "node mode dra needs Kubernetes 1.36 or newer with the feature DRAConsumableCapacity, which is on by default there"
NEEDED_FOR_MIG: Final = "MIG instances on demand need Kubernetes 1.36 or newer with the feature DRAPartitionableDevices, which is on by default there"


class SlicePublisher:
    """The slices of ``node``. ``on_change`` is called when ``fault`` or ``there`` changes."""

    def __init__(self, node: str, session: Session, *, clock: Clock, on_change: Callable[[], None]) -> None:
        self._node = node
        self._session = session
        self._clock = clock
        self._on_change = on_change
        self._wanted: tuple[Owner, tuple[Json, ...], tuple[Json, ...]] | None = None
        self._published: dict[str, Published] = {}
        self._woken = asyncio.Event()
        self._informer = Informer(
            session,
            _SLICES,
            _decode,
            self,
            params={"fieldSelector": f"spec.nodeName={node},spec.driver={names.DRA_DRIVER}"},
            clock=clock,
            may_be_absent=True,
        )
        self._acts = False
        self._taints_dropped = False
        self.fault = ""
        """Why the slices are not as they should be."""

    @property
    def there(self) -> bool:
        """Whether a slice is published."""
        return bool(self._published)

    @property
    def missing(self) -> bool:
        """Whether a slice is wanted, and none is published."""
        return self._wanted is not None and not self.there

    def want(self, owner: Owner | None, devices: tuple[Json, ...], counters: tuple[Json, ...] = ()) -> None:
        """Publish these devices, and the counter sets of which they consume; no slice without devices."""
        wanted = (owner, devices, counters) if owner is not None and devices else None
        if wanted != self._wanted or not self._acts:
            self._wanted, self._acts = wanted, True
            self._woken.set()

    def rest(self) -> None:
        """Write nothing until ``want`` is called again, because a newer agent does."""
        self._acts = False

    async def run(self) -> None:
        """Follow and write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run())
            tasks.create_task(self._write())

    def synced(self) -> None:
        """The first list is complete."""
        self._woken.set()

    def upsert(self, item: Published) -> None:
        """A slice of this node was added or changed."""
        was_there = self.there
        self._published[item.name] = item
        self._changed(was_there)

    def remove(self, key: str, last: Published) -> None:
        """A slice of this node is gone."""
        was_there = self.there
        self._published.pop(key, None)
        self._changed(was_there)

    def _changed(self, was_there: bool) -> None:  # noqa: FBT001 - the earlier value
        self._woken.set()
        if was_there != self.there:
            self._on_change()

    async def _write(self) -> None:
        await self._informer.synced.wait()
        backoff = Backoff(_FIRST_S, _MOST_S)
        while True:
            self._woken.clear()
            fault = await self._reconcile() if self._acts else ""
            if fault != self.fault:
                self.fault = fault
                self._on_change()
            if not fault:
                backoff.reset()
                await self._woken.wait()
                continue
            wait_s = backoff.next_s()
            logger.warning("ResourceSlice of node %s: %s; again in %.1f s", self._node, fault, wait_s)
            await self._clock.sleep(wait_s)

    async def _reconcile(self) -> str:
        """Write the slices if needed; returns why that failed."""
        try:
            parts: list[Part] = []
            if self._wanted is not None:
                owner, devices, counters = self._wanted
                devices = untainted(devices) if self._taints_dropped else devices
                parts = parts_of(self._node, devices, counters)
                # Until all of a generation are there, kube-scheduler allocates nothing of this node.
                for part, body in slices_of(owner, parts, self._published):
                    fault = await self._put(part, body)
                    if fault:
                        return fault
            for other in self._published.keys() - {part.name for part in parts}:
                await self._delete(other)
            return ""
        except ApiError as error:
            if error.conflict:
                # There was another writer; its result is watched.
                return "" if self._woken.is_set() else str(error)
            # If the cluster does not know the kind, the chart grants no permissions on it.
            return f"{error}; {NEEDED}" if error.status in (403, 404) else str(error)
        except KubeError as error:
            return str(error)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return f"the API server's answer is no ResourceSlice ({error})"

    async def _put(self, part: Part, body: Json) -> str:
        """Write one slice; returns what the API server does not keep of it, which then has no such slice."""
        is_new = part.name not in self._published
        # A new slice is tried first: in the moments until it is deleted again whole GPUs would be allocated.
        for dry in (True, False) if is_new else (False,):
            written = await self._send(part.name, body, is_new=is_new, dry=dry)
            fault = _not_kept(part, written)
            if fault and not dry:
                await self._delete(part.name)
            if fault:
                return fault
        self.upsert(written)
        if untainted(written.devices) == written.devices and any(map(_has_taints, part.devices)):
            logger.warning(
                "the API server drops taints of devices (feature DRADeviceTaints): GPUs that accept nothing new are removed from the slice instead"
            )
            self._taints_dropped = True
            self._woken.set()
        logger.info(
            "ResourceSlice %s, generation %d: %d GPUs", part.name, written.generation, len(written.devices)
        )
        return ""

    async def _send(self, name: str, body: Json, *, is_new: bool, dry: bool) -> Published:
        method, path = ("POST", _SLICES) if is_new else ("PUT", f"{_SLICES}/{segment(name)}")
        params = {"dryRun": "All"} if dry else None
        raw = msgspec.json.encode(body)
        return read_slice(
            await self._session.request(method, path, params=params, body=raw, timeout_s=_WRITE_S)
        )

    async def _delete(self, name: str) -> None:
        try:
            await self._session.request(
                "DELETE", f"{_SLICES}/{segment(name)}", timeout_s=_WRITE_S, idempotent=True
            )
        except ApiError as error:
            if not error.not_found:
                raise
        logger.info("ResourceSlice %s is removed", name)
        was_there = self.there
        self._published.pop(name, None)
        self._changed(was_there)


def _not_kept(part: Part, written: Published) -> str:
    """What API servers with disabled features have dropped of the slice."""
    if not written.is_shared:
        # Whole GPUs would be allocated, each to one claim.
        return f"the API server drops the field that lets claims share a GPU (allowMultipleAllocations); {NEEDED}"
    if not written.keeps(part):
        # Instances that exclude each other would be allocated.
        return f"the API server drops the counters of MIG instances; {NEEDED_FOR_MIG}"
    return ""


def _has_taints(device: Json) -> bool:
    return bool(device.get("taints"))


def _decode(raw: bytes) -> tuple[str, Any]:
    published = read_slice(raw)
    return published.name, published
