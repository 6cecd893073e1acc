"""The existing devices and their allocation: the kubelet's book, without any I/O.

It follows the observed behaviour of the real kubelet and its source (``pkg/kubelet/cm/devicemanager``):
a resource remains known when its plugin ends (all its devices become unhealthy, so capacity remains and
allocatable is 0) and is dropped when the plugin stays absent too long; a container's grant remains
until its pod is no longer active; an init container's devices are reused for the containers after it.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare_playground.kubelet.errors import DeviceUnavailable

Devices = frozenset[str]
EMPTY: Final[Devices] = frozenset()


@dataclass(slots=True)
class Resource:
    """One extended resource. ``gone_since`` is when its plugin ended, on a monotonic clock, in seconds."""

    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    gone_since: float | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """One container's devices of one resource: device IDs and the plugin's response, encoded as received."""

    pod_uid: str
    container: str
    resource: str
    devices: Devices
    response: bytes = b""


class DeviceBook:
    """Resources by name, and grants by pod UID, container and resource."""

    def __init__(self, shuffle: Callable[[list[str]], None] | None = None) -> None:
        self.resources: dict[str, Resource] = {}
        self._grants: dict[str, dict[str, dict[str, Grant]]] = {}
        self._taken: dict[str, set[str]] = {}
        self._shuffle = shuffle or random.SystemRandom().shuffle

    # --- resources -------------------------------------------------------------------------------
    def restore(self, names: Iterable[str], grants: Iterable[Grant], now: float) -> None:
        """Load a checkpoint: known resources without a device yet, and all grants."""
        for name in names:
            self.resources[name] = Resource(gone_since=now)
        for grant in grants:
            self.put(grant)

    def connected(self, name: str) -> None:
        """A plugin for that resource has registered; its devices are the previous ones until it lists them."""
        self.resources.setdefault(name, Resource()).gone_since = None

    def listed(self, name: str, health: Mapping[str, bool]) -> None:
        """A plugin listed its devices: ID → healthy."""
        resource = self.resources.setdefault(name, Resource())
        resource.healthy = {device for device, healthy in health.items() if healthy}
        resource.unhealthy = health.keys() - resource.healthy

    def disconnected(self, name: str, now: float) -> None:
        """The plugin is gone: nothing can be allocated any more, capacity remains."""
        resource = self.resources[name]
        resource.unhealthy |= resource.healthy
        resource.healthy = set()
        resource.gone_since = now

    def expire(self, now: float, grace_s: float) -> list[str]:
        """Drop resources whose plugin has been absent for ``grace_s``; returns their names."""
        expired = [
            name
            for name, resource in self.resources.items()
            if resource.gone_since is not None and now - resource.gone_since > grace_s
        ]
        for name in expired:
            del self.resources[name]
        return expired

    def capacity(self) -> dict[str, int]:
        """Devices of each resource, healthy or not."""
        return {
            name: len(resource.healthy) + len(resource.unhealthy) for name, resource in self.resources.items()
        }

    def allocatable(self) -> dict[str, int]:
        """Healthy devices of each resource."""
        return {name: len(resource.healthy) for name, resource in self.resources.items()}

    # --- grants ----------------------------------------------------------------------------------
    def put(self, grant: Grant) -> None:
        """Record what a container got, replacing what it had of that resource."""
        self._grants.setdefault(grant.pod_uid, {}).setdefault(grant.container, {})[grant.resource] = grant
        self._taken.setdefault(grant.resource, set()).update(grant.devices)

    def grants(self) -> list[Grant]:
        """All grants."""
        return [
            grant
            for containers in self._grants.values()
            for resources in containers.values()
            for grant in resources.values()
        ]

    def has_any(self, pod_uid: str) -> bool:
        """Whether a pod has any device."""
        return any(self._grants.get(pod_uid, {}).values())

    def of_container(self, pod_uid: str, container: str) -> list[Grant]:
        """The grants of one container."""
        return list(self._grants.get(pod_uid, {}).get(container, {}).values())

    def taken(self, resource: str) -> int:
        """The number of allocated devices of a resource."""
        return len(self._taken.get(resource, ()))

    def keep_only(self, active: Collection[str]) -> bool:
        """Free the devices of pods other than the ``active`` ones (UIDs); returns whether any had devices."""
        stranded = self._grants.keys() - set(active)
        for uid in stranded:
            del self._grants[uid]
        if stranded:
            self._recount()
        return bool(stranded)

    def _recount(self) -> None:
        self._taken = {}
        for grant in self.grants():
            self._taken.setdefault(grant.resource, set()).update(grant.devices)

    def reserve(self, resource: str, devices: Iterable[str]) -> None:
        """Reserve devices during their Allocate call; ``release`` ends it."""
        self._taken.setdefault(resource, set()).update(devices)

    def release(self) -> None:
        """Drop reservations that did not lead to a grant."""
        self._recount()

    # --- choice ----------------------------------------------------------------------------------
    def needs(
        self, pod_uid: str, container: str, resource: str, amount: int, *, already_running: bool
    ) -> bool:
        """Whether ``amount`` devices must still be chosen; ``False``: it has them, or needs none.

        Raises ``DeviceUnavailable`` if what it has cannot be used any more, or nothing can be allocated.
        """
        held = self._grants.get(pod_uid, {}).get(container, {}).get(resource)
        if held is not None and len(held.devices) != amount:
            raise DeviceUnavailable(
                resource,
                f'pod "{pod_uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(held.devices)} to {amount}",
            )
        if already_running or (held is None and amount == 0):
            return False
        registered = self.resources.get(resource)
        if registered is None:
            raise DeviceUnavailable(resource, f"cannot allocate unregistered device {resource}")
        if not registered.healthy:
            raise DeviceUnavailable(
                resource, f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if held is not None and not held.devices <= registered.healthy:
            raise DeviceUnavailable(
                resource,
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}",
            )
        return held is None

    def reuse(self, resource: str, amount: int, reusable: Devices) -> list[str]:
        """Up to ``amount`` of the devices that an init container of the same pod no longer needs."""
        return self._pick(reusable & self.resources[resource].healthy, amount)

    def free(self, resource: str, needed: int) -> list[str]:
        """All free healthy devices, in random order; raises ``DeviceUnavailable`` if too few."""
        available = self.resources[resource].healthy - self._taken.get(resource, set())
        if len(available) < needed:
            raise DeviceUnavailable(
                resource,
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}",
            )
        return self._pick(available, len(available))

    def in_any_order(self, resources: Iterable[str]) -> list[str]:
        """``resources`` in the order in which the kubelet handles them, which iterates over a map: in random order."""
        shuffled = sorted(resources)
        self._shuffle(shuffled)
        return shuffled

    def _pick(self, devices: Iterable[str], count: int) -> list[str]:
        return self.in_any_order(devices)[:count]
