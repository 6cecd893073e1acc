"""An extended resource that has a device plugin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gpushare.api.node.device import Device, NodeDevices
from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds


class Decider(Protocol):
    """Handles the kubelet's calls for a resource."""

    async def prefer(
        self, resource: str, amount: int, available: Sequence[str], must: Sequence[str]
    ) -> list[str]:
        """The IDs to take; raises ``AllocationRefused``."""

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        """What each container gets; raises ``AllocationRefused``."""


class Deciders(NamedTuple):
    """The deciders for shares of GPUs and for whole GPUs."""

    shares: Decider
    whole: Decider


@dataclass(frozen=True, slots=True)
class PluginResource:
    """An extended resource, its devices, and its decider."""

    name: str
    socket: str
    """Prefix of its sockets' names; no longer than ``socket_names.PRESENCE``."""
    ids_of: Callable[[Device, NodeDevices, DeviceIds], list[str]]
    """The IDs of its devices on one GPU."""
    decider: Callable[[Deciders], Decider]
    has_numa_hints: bool = False
    """Whether the kubelet may choose devices by their NUMA node."""
