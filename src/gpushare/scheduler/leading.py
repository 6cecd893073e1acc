"""Whether the kube-scheduler beside this extender leads: of several schedulers one writes what follows from what all of them see."""

import socket
from typing import Protocol


class Leases(Protocol):
    """What is asked of the API server (``gpushare.kube.client.Client``)."""

    async def lease_holder(self, namespace: str, name: str) -> str:
        """Who holds a Lease; raises ``KubeError``."""


class Leading:
    """``lease`` (namespace, name) is that of the kube-scheduler beside us; ``None``: there is no other."""

    def __init__(self, leases: Leases, lease: tuple[str, str] | None) -> None:
        self._leases = leases
        self._lease = lease
        self._host = socket.gethostname()

    async def leads(self) -> bool:
        """Whether it does at this moment; raises ``KubeError``."""
        if self._lease is None:
            return True
        # kube-scheduler's identity is the name of its machine, here the pod that it shares with us, and a random part.
        return (await self._leases.lease_holder(*self._lease)).startswith(f"{self._host}_")
