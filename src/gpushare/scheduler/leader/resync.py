"""Resync of a new leader: before it answers its first request it lists pods, nodes and the kinds of plugins again.

Its watches may lag behind, mostly by milliseconds, but by minutes if one hangs; a list from the API server is current. Our
kube-scheduler sends a request as soon as it leads, so its first request starts the resync and waits for it. There is no
other resync while the lease has the same holder. The lease is read before a request is answered while another replica holds it, and
also after a pause without requests: another replica may have held it in between.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.process.event import Event
from gpushare.scheduler.leader.lease import LeaderWatch, NotLeading

logger = logging.getLogger(__name__)

#: Seconds that the first requests wait; less than kube-scheduler's timeout.
PATIENCE_S: Final = 8.0
_RETRY_S: Final = 0.5
#: Seconds without a request after which the lease is read before the next one is answered. A kube-scheduler needs longer to
#: lose the lease, restart, and acquire it again.
QUIET_S: Final = 1.0
#: Timeout in seconds for lists that requests do not depend on: we may no longer be allowed to read the kind.
_MOST_S: Final = 30.0


class Read(Protocol):
    """A watched collection (``gpushare.kube.watch.informer.Informer``)."""

    async def relist(self) -> None:
        """Return when a list that began after the call is complete."""


async def read_or_go_on(what: str, *watches: Read) -> None:
    """List ``watches`` again, and return when that is done, or after ``_MOST_S`` seconds. ``what`` is their name in the log."""
    reads = [asyncio.create_task(watch.relist()) for watch in watches]
    try:
        late = (await asyncio.wait(reads, timeout=_MOST_S))[1] if reads else set()
    finally:
        for watch in reads:
            watch.cancel()
    if late:
        logger.warning("cannot relist %s: the cached data may be out of date", what)


class LeaderResync:
    """Whether ``watches`` were listed since the lease has its current holder. Without a lease that is always so."""

    def __init__(
        self,
        leading: LeaderWatch,
        *watches: Read,
        patience_s: float = PATIENCE_S,
        monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic,
    ) -> None:
        self._watches: tuple[Read, ...] = watches
        self._leading = leading
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._last_request_s = float("-inf")
        self._requested = asyncio.Event()
        self._completed = asyncio.Event()
        self._read = False
        self._is_current = leading.alone
        self.done = leading.alone
        """Whether everything was listed since the lease has its current holder, and we are that holder, or it is not known."""
        self.resynced: Event[[]] = Event()
        """Called when everything was listed again after the holder of the lease had changed."""
        leading.changed.subscribe(self._begin)

    def follow(self, *watches: Read) -> None:
        """Add watches to list again at a resync."""
        self._watches = (*self._watches, *watches)

    def _begin(self) -> None:
        if not self._leading.alone:
            self.done = self._read = self._is_current = False

    def at_once(self) -> bool:
        """Whether a new request may be answered at once; otherwise only after ``wait``."""
        if self._leading.alone:
            return True
        now_s, previous_s = self._monotonic(), self._last_request_s
        self._last_request_s = now_s
        if now_s > previous_s + QUIET_S:
            self.done = False  # only the lease is read again, unless its holder has changed
        return self.done

    async def must_lead(self) -> None:
        """Read the lease now, before an action of the leader outside of a request.

        Raises ``NotLeading`` also if a resync has to come first: another replica may have held the lease in between, and our state may
        be outdated. Raises ``KubeError``.
        """
        await self._leading.must_lead()
        if not self._is_current:
            raise NotLeading(self._leading.holder)

    async def wait(self) -> bool:
        """Wait for the resync; false after ``patience_s`` seconds."""
        if self.done:
            return True
        completed = self._completed
        self._requested.set()
        try:
            async with asyncio.timeout(self._patience_s):
                await completed.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Resync when a request waits for it and the holder has changed, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            while not self.done:
                if not await self._look():
                    await asyncio.sleep(_RETRY_S)
                    continue
                if not self._read:
                    self._read = True
                    await asyncio.gather(*(watch.relist() for watch in self._watches))
                    if not (await self._look() and self._read):
                        self._read = False  # the holder has changed during the resync, or is not known
                        continue
                    self._is_current = True
                    self.resynced()
                    logger.info(
                        "pods and nodes were listed again, %s leads", self._leading.holder or "no replica"
                    )
                self.done = not self._leading.another_leads
                # Requests that waited are answered from what was listed, whichever replica leads. Later ones read the lease again.
                completed, self._completed = self._completed, asyncio.Event()
                completed.set()
                if not self.done:
                    break

    async def _look(self) -> bool:
        """Read the lease; returns whether the API server responded."""
        try:
            await self._leading.look()
        except ApiError as error:
            # The server responds, so it can be listed, whichever replica leads.
            if not self._read:
                logger.warning("pods and nodes are listed again, the leader is unknown: %s", error)
        except KubeError as error:
            logger.warning("pods and nodes are not listed again yet: %s", error)
            return False
        return True
