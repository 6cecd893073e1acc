"""Whether this extender's kube-scheduler is the leader: of several replicas only the leader's extender evicts pods and writes objects."""

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
    """Another replica is leader, so this one must not evict or write."""


async def always_leads() -> None:
    """Replaces ``LeaderWatch.must_lead`` if there is only one replica."""


class Leases(Protocol):
    """API server requests (``gpushare.kube.client.client.Client``)."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        """The holder of a Lease, empty if there is none; raises ``KubeError``."""


class Leading:
    """Reads the leader election lease.

    ``lease`` (namespace, name) is the Lease of our kube-scheduler; ``None``: there is only one replica, which always leads.
    kube-scheduler's identity is its host name, which is the name of the pod that we share (``host``), and a random part.
    """

    def __init__(
        self, leases: Leases, lease: tuple[str, str] | None, host: str = socket.gethostname()
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._identity = f"{host}_"

    @property
    def alone(self) -> bool:
        """Whether there is only one replica."""
        return self._lease is None

    async def holder(self) -> str:
        """The current leader, empty if there is none or only one replica; raises ``KubeError``."""
        return "" if self._lease is None else await self._leases.lease_holder(*self._lease)

    def is_ours(self, holder: str) -> bool:
        """Whether ``holder`` is our kube-scheduler."""
        return self.alone or holder.startswith(self._identity)

    async def leads(self) -> bool:
        """Whether our kube-scheduler is leader now; raises ``KubeError``."""
        return self.is_ours(await self.holder())


class LeaderWatch:
    """Reads the lease periodically, for callers that cannot wait for a response."""

    def __init__(self, leading: Leading, clock: Clock, *, every_s: float = EVERY_S) -> None:
        self._leading = leading
        self._clock = clock
        self._every_s = every_s
        self.leads = leading.alone
        """Whether we led at the last read; false before the first."""
        self.holder: str | None = None
        """The holder at the last read; ``None`` if it is not known."""
        self.changed: Event[[]] = Event()
        """Called when the holder has changed."""

    @property
    def alone(self) -> bool:
        """Whether there is only one replica."""
        return self._leading.alone

    @property
    def another_leads(self) -> bool:
        """Whether another replica, or none, held the lease at the last read."""
        return self.holder is not None and not self._leading.is_ours(self.holder)

    @property
    def known(self) -> bool | None:
        """Whether we led at the last read; ``None`` if no replica did, or if that is not known."""
        if self.leads:
            return True
        return False if self.holder and self.another_leads else None

    async def look(self) -> None:
        """Read the lease now; raises ``KubeError``."""
        holder = await self._leading.holder()
        self.leads = self._leading.is_ours(holder)
        if holder != self.holder:
            self.holder = holder
            self.changed()

    async def must_lead(self) -> None:
        """Read the lease now, before an action of the leader; raises ``NotLeading`` if another replica leads, and ``KubeError``."""
        await self.look()
        if not self.leads:
            raise NotLeading(self.holder)

    async def run(self) -> None:
        """Read the lease periodically until cancelled."""
        backoff = Backoff()
        while not self._leading.alone:
            wait_s = self._every_s
            try:
                await self.look()
                backoff.reset()
            except KubeError as error:
                # A replica that cannot reach the API server cannot renew the lease either.
                self.leads = False
                wait_s = backoff.next_s(at_least_s=1.0)
                logger.warning("cannot determine the leader: %s; retrying in %.1f s", error, wait_s)
            await self._clock.sleep(wait_s)
        await asyncio.Event().wait()
