"""Has pods tried again that were refused a moment before room came free.

kube-scheduler tries a waiting pod again when it sees that another ended. Its watch may be ahead of ours: then it
asks before we know of the room, is refused, and has no reason to ask again until something else happens, up to
five minutes later. So a pod that was refused shortly before we see room come free, and was not tried since, is
touched: an annotation, one write, which is an event of that pod for kube-scheduler. So are pods of a gang for which
room was found when another of them was asked about, and some of those that wait when room is given back that was set aside for others.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
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

#: Seconds: how long before the room a refusal may lie, and how long the pod is given to be tried by itself.
CLOSE_S: Final = 5.0
SETTLE_S: Final = 1.0
#: Refusals remembered, and pods touched for one room, and at once; the oldest give way. Of pods that are to be hurried, whose room
#: there is already, none is left out.
_REMEMBERED: Final = 4096
_TOUCHED_AT_ONCE: Final = 64


class Requeuer:
    """Remembers who was refused when. ``waiting`` are the pods without a node, by UID.

    ``stamp``: annotations that the pod of a UID gets besides, when it is touched anyway.
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
        # Apart, for none of them gives way.
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
        """No node took the pod, whichever might if others were not there."""
        self.refused(uid)

    def hurry(self, uids: Iterable[str]) -> None:
        """Have these pods tried soon, whenever they were refused."""
        now_s = self._clock.monotonic()
        for uid in uids:
            self._refused.pop(uid, None)
            self._hurried[uid] = now_s
        self._woken.set()

    def asked(self, uid: str) -> None:
        """The pod was asked about, and has its room: it needs nothing more."""
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._refused.pop(uid, None)
        self._hurried.pop(uid, None)

    def freed(self) -> None:
        """Room came free, or a node changed."""
        latest_s = next(reversed(self._refused.values()), None)
        if latest_s is not None and latest_s >= self._clock.monotonic() - CLOSE_S:
            self._woken.set()

    def given_back(self) -> None:
        """Room came free by which nothing happens in the cluster: nobody but us wakes those who were refused for it."""
        self.hurry(list(islice(self._waiting, _TOUCHED_AT_ONCE)))

    def tasks(self) -> Iterable[Task]:
        """What runs for as long as the process."""
        return [("retries", self.run())]

    async def run(self) -> None:
        """Touch whom nobody tries again, for ever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            freed_s = self._clock.monotonic()
            await self._clock.sleep(SETTLE_S)
            failed: list[str] = []
            left = self._left_behind(freed_s)
            for start in range(0, len(left), _TOUCHED_AT_ONCE):
                failed += await self._touch_all(left[start : start + _TOUCHED_AT_ONCE], freed_s)
            if failed:
                # Nothing else may come to wake them for minutes.
                await self._clock.sleep(self._backoff.next_s())
                self.hurry(failed)
            else:
                self._backoff.reset()

    async def _touch_all(self, left: list[PodRecord], freed_s: float) -> list[str]:
        """UIDs of those for which it failed."""
        touched = await asyncio.gather(*map(self._touch, left))
        for record, done in zip(left, touched, strict=True):
            since_s = self._hurried.get(record.uid, self._refused.get(record.uid, freed_s + 1))
            if done and since_s <= freed_s:
                self._forget(record.uid)  # else it was tried, and refused, meanwhile
        return [record.uid for record, done in zip(left, touched, strict=True) if not done]

    def _left_behind(self, freed_s: float) -> list[PodRecord]:
        found: list[PodRecord] = []
        others = 0
        for uid, refused_s in [*self._hurried.items(), *self._refused.items()]:
            hurried = uid in self._hurried
            if uid not in self._waiting or (refused_s < freed_s - CLOSE_S and not hurried):
                self._forget(uid)
            elif refused_s <= freed_s and (hurried or others < _TOUCHED_AT_ONCE):
                others += not hurried
                found.append(self._waiting[uid])
        return found

    async def _touch(self, record: PodRecord) -> bool:
        """Whether no more needs to be done."""
        namespace, _, name = record.pod.partition("/")
        stamp = {names.ANN_RETRY: str(self._clock.time_ns()), **self._stamp(record.uid)}
        try:
            await self._pods.annotate_pod(namespace, name, stamp, uid=record.uid)
        except KubeError as error:
            about_it = about(pod=record.pod, uid=record.uid)
            logger.info("pod %s is not asked to be tried again: %s", record.pod, error, extra=about_it)
            return isinstance(error, ApiError) and not error.passing
        return True
