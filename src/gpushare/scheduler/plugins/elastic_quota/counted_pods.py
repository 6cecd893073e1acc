"""Records of pods without a GPU, for elastic quotas that count every pod of their namespaces.

The watch of pods stores such pods only in these namespaces, so all pods are listed again when a tree adds namespaces. Until that list
is complete no pod of these namespaces is admitted, as the sums would be too small. Records of namespaces that no tree names any more
are dropped at the next event of each pod.
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
    """The record that ``read`` returns; in the namespaces ``counted_in`` also a record of a pod that requests no GPU."""
    record = read(pod)
    return bystander_of(pod) if record is None and pod.metadata.namespace in counted_in else record


def counting_decoder(quotas: Quotas, decode: DecodePodFn) -> DecodePodFn:
    """``decode``, extended by records of all other pods that ``quotas`` count."""

    def counting(raw: bytes) -> tuple[str, PodRecord] | None:
        decoded = decode(raw)
        if decoded is not None or not quotas.followed:
            return decoded
        record = quota_record_of(decode_pod(raw), quotas.followed, lambda pod: None)
        return None if record is None else (record.pod, record)

    return counting


class CountedPods:
    """Lists pods again by ``relist`` when ``quotas`` count further namespaces. The first list of pods waits for the list of trees."""

    def __init__(
        self, quotas: Quotas, relist: Callable[[], Awaitable[None]], trees_read: asyncio.Event
    ) -> None:
        self._quotas = quotas
        self._relist = relist
        self._trees_read = trees_read
        self._begun = False
        self._changed = asyncio.Event()
        self._being_listed: set[str] = set()
        quotas.namespaces_followed.subscribe(self._followed)

    def _followed(self, namespaces: frozenset[str]) -> None:
        if not self._begun:
            return  # the first list will contain their pods
        self._quotas.unread |= namespaces
        # A list in progress may already have skipped some of their pods.
        self._being_listed -= namespaces
        self._changed.set()

    async def begin(self) -> None:
        """Return when pods may be listed: the trees are known."""
        await self._trees_read.wait()
        self._begun = True

    async def run(self) -> None:
        """List pods again whenever namespaces are added, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._being_listed = set(self._quotas.unread)
            await self._relist()
            self._quotas.are_read(self._being_listed)
