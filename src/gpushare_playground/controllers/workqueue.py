"""Keys to be reconciled, and the loop that reconciles them.

A key that is added while it is being reconciled is reconciled again afterwards, never twice at once. The
queue contains a key at most once, so the number of objects bounds it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from typing import Final, Protocol

from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError

_log = logging.getLogger(__name__)

WORKERS: Final = 4
FIRST_RETRY_S: Final = 0.02
LONGEST_RETRY_S: Final = 30.0


class Reconciler(Protocol):
    """Brings the cluster in line with one object's spec."""

    @property
    def name(self) -> str:
        """For logs."""

    async def reconcile(self, key: str) -> float | None:
        """Take the missing steps for the object at ``key``.

        Returns the seconds after which passing time alone may require more, ``None`` if only events can.
        Raises ``KubeError`` if it could not finish; it is then retried after a while.
        """


class WorkQueue:
    """Keys in the order in which they were added, each at most once."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._waiting_or_active: set[str] = set()
        self._active: set[str] = set()
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ready = asyncio.Event()

    def add(self, key: str) -> None:
        """Reconcile ``key`` soon."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting_or_active:
            self._waiting_or_active.add(key)
            self._waiting.append(key)
            self._ready.set()

    def add_after(self, key: str, seconds: float) -> None:
        """Reconcile ``key`` after ``seconds``, or earlier if something else adds it."""
        loop = asyncio.get_running_loop()
        old = self._timers.get(key)
        if old is not None:
            if old.when() <= loop.time() + seconds:
                return
            old.cancel()
        self._timers[key] = loop.call_later(max(seconds, 0.0), self._due, key)

    def _due(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def take(self) -> str:
        """The next key; ``finished`` must be called for it."""
        while not self._waiting:
            self._ready.clear()
            await self._ready.wait()
        key = self._waiting.popleft()
        self._waiting_or_active.discard(key)
        self._active.add(key)
        return key

    def finished(self, key: str) -> None:
        """The work on ``key`` is finished; it is queued again if it was added meanwhile."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being reconciled (timers may run)."""
        return not self._waiting and not self._active


async def work(reconciler: Reconciler, queue: WorkQueue, *, workers: int = WORKERS) -> None:
    """Reconcile keys until cancelled, ``workers`` at once, retrying each with its own back-off."""
    retries: dict[str, Backoff] = {}

    async def one_worker() -> None:
        while True:
            key = await queue.take()
            try:
                after_s = await reconciler.reconcile(key)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # One unusual object must not stop the others.
                after_s = _retry_after(reconciler, key, error, retries)
            else:
                retries.pop(key, None)
            finally:
                queue.finished(key)
            if after_s is not None:
                queue.add_after(key, after_s)

    tasks = [asyncio.create_task(one_worker()) for _ in range(workers)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _retry_after(reconciler: Reconciler, key: str, error: Exception, retries: dict[str, Backoff]) -> float:
    backoff = retries.setdefault(key, Backoff(FIRST_RETRY_S, LONGEST_RETRY_S))
    wait_s = backoff.next_s()
    if isinstance(error, ApiError) and error.conflict:
        _log.debug("%s %s: written by someone else meanwhile, again in %.2f s", reconciler.name, key, wait_s)
    elif isinstance(error, KubeError):
        _log.warning("%s %s: %s; again in %.2f s", reconciler.name, key, error, wait_s)
    else:
        _log.error("%s %s: %r; again in %.2f s", reconciler.name, key, error, wait_s, exc_info=error)
    return wait_s
