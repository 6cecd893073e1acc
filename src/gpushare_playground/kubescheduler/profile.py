"""A profile at work: its queue, its scheduling loop, and the binding cycles that it starts."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from gpushare.kube.backoff import chance
from gpushare.kube.client.errors import KubeError
from gpushare.kubescheduler.filters import Wanted, ignored_wishes
from gpushare.kubescheduler.node_usage import Occupancy
from gpushare_playground.cache import Cache
from gpushare_playground.kubescheduler.cycle import Choice, Unschedulable, choose
from gpushare_playground.kubescheduler.extender import Extender, ExtenderError
from gpushare_playground.kubescheduler.queue import FIRST_BACKOFF_S, Event, SchedulingQueue, Waiting
from gpushare_playground.kubescheduler.report import SCHEDULER_ERROR, UNSCHEDULABLE, Reporter
from gpushare_playground.objects import (
    Json,
    Objects,
    is_deleting,
    key_of,
    spec_of,
)

#: Concurrent binding cycles; beyond this the loop waits.
MAX_BINDINGS: Final = 100
_log = logging.getLogger(__name__)


class Profile:
    """Schedules the pods that name ``name``, with or without an extender.

    ``ignored`` are resources that are not checked (``ignoredResources`` of NodeResourcesFit). ``happened`` notifies all profiles of an event. ``chance`` picks among equal nodes.
    """

    def __init__(
        self,
        name: str,
        *,
        objects: Objects,
        pods: Cache,
        nodes: Occupancy,
        reporter: Reporter,
        extender: Extender | None = None,
        ignored: Collection[str] = (),
        happened: Callable[[Event], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = chance,
        first_backoff_s: float = FIRST_BACKOFF_S,
    ) -> None:
        self.name = name
        self.queue = SchedulingQueue(monotonic, first_backoff_s=first_backoff_s)
        self._objects = objects
        self._pods = pods
        self._nodes = nodes
        self._reporter = reporter
        self._extender = extender
        self._ignored = frozenset(ignored)
        self._happened = happened or self.queue.happened
        self._chance = chance
        self._bindings: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_BINDINGS)

    async def run(self) -> None:
        """Schedule one pod after the other, until cancelled."""
        try:
            while True:
                await self._room.acquire()
                waiting = await self.queue.take()
                if not await self._schedule(waiting):
                    self._room.release()
        finally:
            for task in self._bindings:
                task.cancel()
            await asyncio.gather(*self._bindings, return_exceptions=True)

    async def _schedule(self, waiting: Waiting) -> bool:
        """One scheduling cycle; returns whether a binding cycle was started."""
        pod = waiting.pod
        if is_deleting(pod) or self._nodes.is_assumed(waiting.uid):
            self.queue.remove(waiting.uid)
            return False
        if waiting.attempts == 1 and (ignored_fields := ignored_wishes(pod)):
            self._reporter.ignores(pod, ignored_fields)
        try:
            choice = await choose(pod, self._nodes, self._extender, self._chance, self._ignored)
        except Unschedulable as error:
            await self._give_up(waiting, UNSCHEDULABLE, str(error), by_extender=error.by_extender)
        except ExtenderError as error:
            await self._give_up(waiting, SCHEDULER_ERROR, str(error))
        except Exception as error:
            # One unusual pod must not stop the others.
            _log.exception("pod %s: the scheduling cycle failed", key_of(pod))
            await self._give_up(waiting, SCHEDULER_ERROR, f"{type(error).__name__}: {error}")
        else:
            return self._start_binding(waiting, pod, choice)
        return False

    def _start_binding(self, waiting: Waiting, pod: Json, choice: Choice) -> bool:
        state = self._nodes.node(choice.node)
        if self._pods.by_uid(waiting.uid) is None:
            self.queue.remove(waiting.uid)
            return False
        if state is None or Wanted(pod, self._ignored).refusals(state):
            # Another profile took the place during the call of the extender: back to the queue immediately.
            waiting.missed.add(Event.NODE_CHANGED)
            waiting.attempts -= 1
            self.queue.failed(waiting, waiting.pod, error=False)
            return False
        self._nodes.place(pod, choice.node, assumed=True)
        task = asyncio.create_task(self._bind(waiting, pod, choice.node))
        self._bindings.add(task)
        task.add_done_callback(self._bindings.discard)
        task.add_done_callback(lambda _: self._room.release())
        return True

    async def _bind(self, waiting: Waiting, pod: Json, node: str) -> None:
        """The binding cycle, concurrently with the scheduling of the next pods."""
        try:
            if self._extender is not None:
                await self._extender.bind(pod, node)
            else:
                await self._objects.bind(pod, node)
        except Exception as error:
            if not isinstance(error, (ExtenderError, KubeError)):
                _log.exception("pod %s: the binding cycle failed", key_of(pod))
            if self._nodes.forget(waiting.uid):
                self._happened(Event.POD_GONE)
            await self._give_up(waiting, SCHEDULER_ERROR, _error_text(error))
            return
        self._reporter.scheduled(pod, node)
        self.queue.remove(waiting.uid)

    async def _give_up(
        self, waiting: Waiting, reason: str, message: str, *, by_extender: bool = False
    ) -> None:
        """Put the pod back, unless it is gone or was bound after all, and report why it is pending."""
        pod = self._pods.by_uid(waiting.uid)
        if pod is None or spec_of(pod).get("nodeName"):
            self.queue.remove(waiting.uid)
            if pod is None:
                return
        else:
            self.queue.failed(waiting, pod, error=reason == SCHEDULER_ERROR, refused_by_extender=by_extender)
        _log.info("pod %s: %s: %s", key_of(pod), reason, message)
        if not spec_of(pod).get("nodeName"):
            await self._reporter.failed(pod, reason, message)


def _error_text(error: Exception) -> str:
    message = getattr(error, "message", "")
    return str(message or error)
