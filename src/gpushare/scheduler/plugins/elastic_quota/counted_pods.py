"""Pods without a GPU, where elastic quotas count every pod of their namespaces.

The watch of pods keeps none of them elsewhere, so where a tree names more namespaces all pods are listed once more. Until that is done no
pod of these namespaces is let in: the sums would be too small. What is kept of namespaces that no tree names any more goes with
the next event of each pod.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container

from gpushare.api.objects import Pod, decode_pod
from gpushare.scheduler.cache.pod_records import PodRecord, bystander_of, record_of
from gpushare.scheduler.framework.interface import DecodePodFn
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas


def quota_record_of(
    pod: Pod, counted_in: Container[str], read: Callable[[Pod], PodRecord | None] = record_of
) -> PodRecord | None:
    """What ``read`` makes of the pod; in the namespaces ``counted_in`` also a record of one that requests no GPU."""
    record = read(pod)
    return bystander_of(pod) if record is None and pod.metadata.namespace in counted_in else record


def counting_decoder(quotas: Quotas, decode: DecodePodFn) -> DecodePodFn:
    """``decode``, and a record of all others that ``quotas`` count."""

    def counting(raw: bytes) -> tuple[str, PodRecord] | None:
        found = decode(raw)
        if found is not None or not quotas.followed:
            return found
        record = quota_record_of(decode_pod(raw), quotas.followed, lambda pod: None)
        return None if record is None else (record.pod, record)

    return counting


class CountedPods:
    """Has pods listed again for ``quotas`` by ``relist``; the first list waits until it is known which trees there are."""

    def __init__(
        self, quotas: Quotas, relist: Callable[[], Awaitable[None]], trees_read: asyncio.Event
    ) -> None:
        self._quotas = quotas
        self._relist = relist
        self._trees_read = trees_read
        self._begun = False
        self._changed = asyncio.Event()
        self._under_way: set[str] = set()
        quotas.namespaces_followed.subscribe(self._followed)

    def _followed(self, namespaces: frozenset[str]) -> None:
        if not self._begun:
            return  # the first list is read with them
        self._quotas.unread |= namespaces
        # A list that is under way may have passed over some of their pods.
        self._under_way -= namespaces
        self._changed.set()

    async def begin(self) -> None:
        """Return when pods may be listed."""
        await self._trees_read.wait()
        self._begun = True

    async def run(self) -> None:
        """List again whenever namespaces are added, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._under_way = set(self._quotas.unread)
            await self._relist()
            self._quotas.are_read(self._under_way)
