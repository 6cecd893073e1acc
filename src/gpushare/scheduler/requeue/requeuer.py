"""Makes kube-scheduler retry pods that were refused shortly before capacity was freed.

kube-scheduler retries a pending pod when it sees that another pod has ended. Its watch may be ahead of ours: then it
retries the pod before we know of the free capacity, and we refuse the pod. kube-scheduler then has no reason to retry it until
something else happens, up to five minutes later. So a pod that was refused shortly before we see capacity freed, and was not retried
since, is touched: one write of an annotation, which kube-scheduler sees as an event of that pod. Also touched are the pods of a
gang for which room was found when another pod of it was filtered, and some of the pending pods when a reservation is released.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, islice
from typing import Final

from gpushare.api import names
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.client import Annotator
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.interface import Task

logger = logging.getLogger(__name__)

#: Seconds by which a refusal may precede the freed capacity, and seconds that kube-scheduler has to retry the pod by itself.
CLOSE_S: Final = 5.0
SETTLE_S: Final = 1.0
#: Maximum number of remembered refusals, of which the oldest are dropped, and of pods that are touched for one event, and concurrently.
#: Hurried pods, for which there is room already, are all touched.
_REMEMBERED: Final = 4096
_TOUCHED_AT_ONCE: Final = 64


class Requeuer:
    """Remembers when pods were refused, and touches them. ``waiting`` are the pods without a node, by UID; the first are preferred.

    ``stamp``: by UID, further annotations to write when the pod is touched.
    """

    def __init__(
        self,
        waiting: Mapping[str, PodRecord],
        pods: Annotator,
        clock: Clock,
        *,
        stamp: Callable[[str], Mapping[str, str]] = lambda uid: {},
    ) -> None:
        self._waiting = waiting
        self._pods = pods
        self._clock = clock
        self._refused: OrderedDict[str, float] = OrderedDict()
        # Separate from refusals, as none of these is dropped.
        self._hurried: dict[str, float] = {}
        self._woken = asyncio.Event()
        self._backoff = Backoff(first_s=SETTLE_S)
        self._stamp = stamp

    def refused(self, uid: str) -> None:
        """No node took the pod."""
        self._refused[uid] = self._clock.monotonic()
        self._refused.move_to_end(uid)
        self._hurried.pop(uid, None)
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node takes the pod; ``nodes`` are ignored."""
        self.refused(uid)

    def hurry(self, uids: Iterable[str]) -> None:
        """Touch these pods soon, whenever they were refused."""
        now_s = self._clock.monotonic()
        for uid in uids:
            self._refused.pop(uid, None)
            self._hurried[uid] = now_s
        self._woken.set()

    def placed(self, uid: str) -> None:
        """The pod need not be touched: it was filtered and has its room, or was touched, or is no longer pending."""
        self._refused.pop(uid, None)
        self._hurried.pop(uid, None)

    def freed(self) -> None:
        """Capacity was freed, or a node changed."""
        latest_s = next(reversed(self._refused.values()), None)
        if latest_s is not None and latest_s >= self._clock.monotonic() - CLOSE_S:
            self._woken.set()

    def reservation_released(self) -> None:
        """A reservation was released. This causes no event in the cluster, so only we can trigger a retry of refused pods."""
        refused = (uid for uid in reversed(self._refused) if uid in self._waiting)
        others = (uid for uid in self._waiting if uid not in self._refused)
        self.hurry(list(islice(chain(refused, others), _TOUCHED_AT_ONCE)))

    def tasks(self) -> Iterable[Task]:
        """The tasks that run as long as the process."""
        return [("retries", self.run())]

    async def run(self) -> None:
        """Touch pods that kube-scheduler does not retry by itself, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            freed_s = self._clock.monotonic()
            await self._clock.sleep(SETTLE_S)
            failed: list[str] = []
            pods = self._to_touch(freed_s)
            for start in range(0, len(pods), _TOUCHED_AT_ONCE):
                failed += await self._touch_all(pods[start : start + _TOUCHED_AT_ONCE], freed_s)
            if failed:
                # No other event may trigger a retry for minutes.
                await self._clock.sleep(self._backoff.next_s())
                self.hurry(failed)
            else:
                self._backoff.reset()

    async def _touch_all(self, pods: list[PodRecord], freed_s: float) -> list[str]:
        """Touch ``pods``; returns the UIDs of those that have to be touched again."""
        touched = await asyncio.gather(*map(self._touch, pods))
        for record, done in zip(pods, touched, strict=True):
            since_s = self._hurried.get(record.uid, self._refused.get(record.uid, freed_s + 1))
            if done and since_s <= freed_s:
                self.placed(record.uid)  # otherwise it was retried and refused meanwhile
        return [record.uid for record, done in zip(pods, touched, strict=True) if not done]

    def _to_touch(self, freed_s: float) -> list[PodRecord]:
        pods: list[PodRecord] = []
        others = 0
        for uid, refused_s in [*self._hurried.items(), *self._refused.items()]:
            hurried = uid in self._hurried
            if uid not in self._waiting:
                self.placed(uid)
                continue
            is_close = refused_s >= freed_s - CLOSE_S and others < _TOUCHED_AT_ONCE
            if refused_s <= freed_s and (hurried or is_close):
                others += not hurried
                pods.append(self._waiting[uid])
        return pods

    async def _touch(self, record: PodRecord) -> bool:
        """Touch one pod; returns whether it is done, by success or by an error that will not pass."""
        namespace, _, name = record.pod.partition("/")
        stamp = {names.ANN_RETRY: str(self._clock.time_ns()), **self._stamp(record.uid)}
        try:
            await self._pods.annotate_pod(namespace, name, stamp, uid=record.uid)
        except KubeError as error:
            about_it = about(pod=record.pod, uid=record.uid)
            logger.info(
                "pod %s: cannot request another scheduling attempt: %s", record.pod, error, extra=about_it
            )
            return isinstance(error, ApiError) and not error.passing
        return True
