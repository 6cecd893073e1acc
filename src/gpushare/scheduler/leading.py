"""Whether the kube-scheduler beside us leads: of two schedulers one decides, and one tells people."""

import asyncio
import logging
import socket
from typing import Final, Protocol

from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import Clock
from gpushare.kube.errors import KubeError

logger = logging.getLogger(__name__)

EVERY_S: Final = 10.0


class Leases(Protocol):
    """What is asked of the API server."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        """Who holds a Lease; empty where nobody does. Raises ``KubeError``."""


class Leading:
    """Asks now and then. ``lease`` (namespace, name) is that of the kube-scheduler beside us; ``None``: there is no other,
    and we lead."""

    def __init__(
        self,
        leases: Leases,
        lease: tuple[str, str] | None,
        clock: Clock,
        *,
        host: str | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._clock = clock
        # kube-scheduler calls itself by its host's name, which in a pod is that of the pod, and a random part.
        self._identity = f"{host or socket.gethostname()}_"
        self._every_s = every_s
        self.leads = lease is None
        """As it was when it was asked last; false until then."""

    async def run(self) -> None:
        """Ask until cancelled."""
        backoff = Backoff()
        while self._lease is not None:
            wait_s = self._every_s
            try:
                self.leads = (await self._leases.lease_holder(*self._lease)).startswith(self._identity)
                backoff.reset()
            except KubeError as error:
                # Who cannot reach the API server cannot have renewed the lease for long.
                self.leads = False
                wait_s = backoff.next_s(at_least_s=1.0)
                logger.warning("who leads is not known: %s; asked again in %.1f s", error, wait_s)
            await self._clock.sleep(wait_s)
        await asyncio.Event().wait()
