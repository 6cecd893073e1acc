"""Before a replica that begins to lead answers its first question, it reads pods and nodes anew, and what policies and quotas say.

What its watches have told it may be late, by milliseconds as a rule, by minutes where one hangs; what the API server says
in a list is true. The kube-scheduler beside us asks as soon as it leads, so its first question begins the reading, and waits
for it. Beside the same holder of the lease nothing is read again.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Final, Protocol

from gpushare.kube.errors import ApiError, KubeError
from gpushare.scheduler.leading import LeadWatch

logger = logging.getLogger(__name__)

#: Seconds that the first questions wait; less than kube-scheduler does.
PATIENCE_S: Final = 8.0
_RETRY_S: Final = 0.5
#: Seconds that a list may take without which questions are answered all the same: it may not be ours to read any more.
_MOST_S: Final = 30.0


class Read(Protocol):
    """A collection that is followed (``gpushare.kube.informer.Informer``)."""

    async def read_anew(self) -> None:
        """Return once a list that was begun after the call is complete."""


async def read_or_go_on(what: str, *watches: Read) -> None:
    """Return once ``watches`` were read anew; what cannot be read within half a minute stays as it is known."""
    reads = [asyncio.create_task(one.read_anew()) for one in watches]
    try:
        late = (await asyncio.wait(reads, timeout=_MOST_S))[1] if reads else set()
    finally:
        for one in reads:
            one.cancel()
    if late:
        logger.warning("%s are not read anew: what is known of them may be late", what)


class Takeover:
    """Whether ``watches`` were read since the lease has its holder. Without a lease they always were."""

    def __init__(
        self, watches: Collection[Read], leading: LeadWatch, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._watches = watches
        self._leading = leading
        self._patience_s = patience_s
        self._asked = asyncio.Event()
        self._told = asyncio.Event()
        self.done = leading.alone
        """Whether questions may be answered at once."""
        leading.on_changed = self._begin

    def _begin(self) -> None:
        if not self._leading.alone:
            self.done = False
            self._told.clear()

    async def wait(self) -> bool:
        """Whether everything was read, for which a question waits so long."""
        self._asked.set()
        try:
            async with asyncio.timeout(self._patience_s):
                while not self.done:
                    await self._told.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Read as soon as somebody asks and the holder is another, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while not self.done:
                try:
                    await self._leading.look()
                except ApiError as error:
                    # The server answers, so what it has can be read, whoever leads.
                    logger.warning("pods and nodes are read anew without knowing who leads: %s", error)
                except KubeError as error:
                    logger.warning("pods and nodes are not read anew yet: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                holder = self._leading.holder
                await asyncio.gather(*(one.read_anew() for one in self._watches))
                if holder == self._leading.holder:
                    logger.info("pods and nodes were read anew, %s leads", holder or "nobody")
                    self.done = True
                    self._told.set()
