"""Before a replica that begins to lead answers its first question, it lists pods and nodes again, and what its plugins watch.

What its watches have told it may be late, by milliseconds as a rule, by minutes where one hangs; what the API server says
in a list is true. The kube-scheduler beside us asks as soon as it leads, so its first question begins the reading, and waits
for it. Beside the same holder of the lease nothing is read again. While another holds it every question begins with a look at the
lease, and so does one after a silence: the lease may have gone to another and have come back.
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

#: Seconds that the first questions wait; less than kube-scheduler does.
PATIENCE_S: Final = 8.0
_RETRY_S: Final = 0.5
#: Seconds without a question after which the next is answered after a look at the lease: less than a kube-scheduler needs to
#: lose it, to be started again and to win it back.
QUIET_S: Final = 1.0
#: Seconds that a list may take without which questions are answered all the same: it may not be ours to read any more.
_MOST_S: Final = 30.0


class Read(Protocol):
    """A collection that is followed (``gpushare.kube.watch.informer.Informer``)."""

    async def relist(self) -> None:
        """Return once a list that was begun after the call is complete."""


async def read_or_go_on(what: str, *watches: Read) -> None:
    """Return once ``watches`` were read anew; what cannot be read within half a minute stays as it is known."""
    reads = [asyncio.create_task(one.relist()) for one in watches]
    try:
        late = (await asyncio.wait(reads, timeout=_MOST_S))[1] if reads else set()
    finally:
        for one in reads:
            one.cancel()
    if late:
        logger.warning("%s are not read anew: what is known of them may be late", what)


class LeaderResync:
    """Whether ``watches`` were read since the lease has its holder. Without a lease they always were."""

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
        self._heard_s = float("-inf")
        self._asked = asyncio.Event()
        self._told = asyncio.Event()
        self._read = False
        self._knows = leading.alone
        self.done = leading.alone
        """Whether everything was read since the lease has its holder, and that is the one beside us or not known."""
        self.resynced: Event[[]] = Event()
        """Called when everything was read beside another holder of the lease than before."""
        leading.changed.subscribe(self._begin)

    def follow(self, *watches: Read) -> None:
        """These are to be read as well."""
        self._watches = (*self._watches, *watches)

    def _begin(self) -> None:
        if not self._leading.alone:
            self.done = self._read = self._knows = False

    def at_once(self) -> bool:
        """Whether a question that has just come may be answered at once; otherwise after ``wait``."""
        if self._leading.alone:
            return True
        now_s, before_s = self._monotonic(), self._heard_s
        self._heard_s = now_s
        if now_s > before_s + QUIET_S:
            self.done = False  # what was read stays read, if the holder is the same
        return self.done

    async def must_lead(self) -> None:
        """Ask now, before what only the one that leads may do, for pods that it was asked about before.

        Raises ``NotLeading`` also where everything is to be read anew first, and ``KubeError``: the lease may have come back from
        another, and what is known may be from before.
        """
        await self._leading.must_lead()
        if not self._knows:
            raise NotLeading(self._leading.holder)

    async def wait(self) -> bool:
        """Whether everything was read, for which a question waits so long."""
        if self.done:
            return True
        told = self._told
        self._asked.set()
        try:
            async with asyncio.timeout(self._patience_s):
                await told.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Read as soon as somebody asks and the holder is another, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while not self.done:
                if not await self._look():
                    await asyncio.sleep(_RETRY_S)
                    continue
                if not self._read:
                    self._read = True
                    await asyncio.gather(*(one.relist() for one in self._watches))
                    if not (await self._look() and self._read):
                        self._read = False  # another holds it than when the reading began, or nobody can tell
                        continue
                    self._knows = True
                    self.resynced()
                    logger.info("pods and nodes were read anew, %s leads", self._leading.holder or "nobody")
                self.done = not self._leading.another_leads
                # Who waited is answered by what was read, whoever leads; the next one is looked after anew.
                told, self._told = self._told, asyncio.Event()
                told.set()
                if not self.done:
                    break

    async def _look(self) -> bool:
        """See who leads; whether the API server answered."""
        try:
            await self._leading.look()
        except ApiError as error:
            # The server answers, so what it has can be read, whoever leads.
            if not self._read:
                logger.warning("pods and nodes are read anew without knowing who leads: %s", error)
        except KubeError as error:
            logger.warning("pods and nodes are not read anew yet: %s", error)
            return False
        return True
