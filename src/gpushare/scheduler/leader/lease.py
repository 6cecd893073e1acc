"""Whether the kube-scheduler beside this extender leads: of several schedulers one writes what follows from what all of them see."""

import asyncio
import logging
import socket
from typing import Final, Protocol

from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import Clock
from gpushare.process.event import Event

logger = logging.getLogger(__name__)

EVERY_S: Final = 10.0


class NotLeading(Exception):
    """Another replica leads: what its kube-scheduler decides holds, and nobody is to be ended here."""


async def without_another() -> None:
    """In place of ``LeaderWatch.must_lead`` where there is one scheduler alone."""


class Leases(Protocol):
    """What is asked of the API server (``gpushare.kube.client.client.Client``)."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        """Who holds a Lease, empty where nobody does; raises ``KubeError``."""


class Leading:
    """``lease`` (namespace, name) is that of the kube-scheduler beside us; ``None``: there is no other, and we lead.

    kube-scheduler calls itself by the name of its machine, here the pod that it shares with us (``host``), and a random part.
    """

    def __init__(
        self, leases: Leases, lease: tuple[str, str] | None, host: str = socket.gethostname()
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._identity = f"{host}_"

    @property
    def alone(self) -> bool:
        """Whether nobody else can lead."""
        return self._lease is None

    async def holder(self) -> str:
        """Who leads at this moment, empty where nobody does or nobody can tell; raises ``KubeError``."""
        return "" if self._lease is None else await self._leases.lease_holder(*self._lease)

    def is_ours(self, holder: str) -> bool:
        """Whether it is the one beside us."""
        return self.alone or holder.startswith(self._identity)

    async def leads(self) -> bool:
        """Whether it does at this moment; raises ``KubeError``."""
        return self.is_ours(await self.holder())


class LeaderWatch:
    """Asks now and then, for those who cannot wait for an answer."""

    def __init__(self, leading: Leading, clock: Clock, *, every_s: float = EVERY_S) -> None:
        self._leading = leading
        self._clock = clock
        self._every_s = every_s
        self.leads = leading.alone
        """As it was when it was asked last; false until then."""
        self.holder: str | None = None
        """Who held the lease then; ``None``: that is not known."""
        self.changed: Event[[]] = Event()
        """Called when it is another than before."""

    @property
    def alone(self) -> bool:
        """Whether nobody else can lead."""
        return self._leading.alone

    @property
    def another_leads(self) -> bool:
        """Whether the lease was another's, or nobody's, when it was seen last."""
        return self.holder is not None and not self._leading.is_ours(self.holder)

    @property
    def known(self) -> bool | None:
        """Whether it leads, as it was seen last; ``None`` where nobody does, or that is not known."""
        if self.leads:
            return True
        return False if self.holder and self.another_leads else None

    async def look(self) -> None:
        """Ask now; raises ``KubeError``."""
        holder = await self._leading.holder()
        self.leads = self._leading.is_ours(holder)
        if holder != self.holder:
            self.holder = holder
            self.changed()

    async def must_lead(self) -> None:
        """Ask now, before what only the one that leads may do; raises ``NotLeading`` where that is another, and ``KubeError``."""
        await self.look()
        if not self.leads:
            raise NotLeading(self.holder)

    async def run(self) -> None:
        """Ask until cancelled."""
        backoff = Backoff()
        while not self._leading.alone:
            wait_s = self._every_s
            try:
                await self.look()
                backoff.reset()
            except KubeError as error:
                # Who cannot reach the API server cannot have renewed the lease for long.
                self.leads = False
                wait_s = backoff.next_s(at_least_s=1.0)
                logger.warning("who leads is not known: %s; asked again in %.1f s", error, wait_s)
            await self._clock.sleep(wait_s)
        await asyncio.Event().wait()
