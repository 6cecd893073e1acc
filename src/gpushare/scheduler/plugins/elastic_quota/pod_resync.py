"""Has the watch of all pods keep those without a GPU of ours where elastic quotas count them, and nobody let in before they are known.

Elsewhere it keeps nothing of such pods, so where a tree names more namespaces all pods are listed once more. Until that is done
nobody of these namespaces is let in: the sums would be too small. What is kept of namespaces that a tree names no more goes with
the next event of each pod.
"""

import asyncio
from collections.abc import Callable

from gpushare.api.objects import Pod, decode_pod
from gpushare.scheduler.cache.pod_records import PodRecord, followed_record_of
from gpushare.scheduler.leader.resync import Read
from gpushare.scheduler.plugins.elastic_quota.plugin import Quotas

ReadFn = Callable[[Pod], PodRecord | None]


def following_decoder(quotas: Quotas, read: ReadFn) -> Callable[[bytes], tuple[str, PodRecord] | None]:
    """A decoder of pods' JSON: what ``read`` makes of a pod, and a record of all others that ``quotas`` count."""

    def decode(raw: bytes) -> tuple[str, PodRecord] | None:
        record = followed_record_of(decode_pod(raw), quotas.followed, read)
        return None if record is None else (record.pod, record)

    return decode


class QuotaPods:
    """Reads pods anew for ``quotas``. ``pods`` is their watch, which is not begun before it is known which trees there are."""

    def __init__(self, quotas: Quotas, pods: Read, trees_read: asyncio.Event) -> None:
        self._quotas = quotas
        self._pods = pods
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
        """Return when the watch may be begun."""
        await self._trees_read.wait()
        self._begun = True

    async def run(self) -> None:
        """Read anew whenever namespaces come to be counted, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._under_way = set(self._quotas.unread)
            await self._pods.relist()
            self._quotas.are_read(self._under_way)
