"""Device admission: every container of a pod gets its devices, or the pod is rejected.

One pod at a time, init containers first. A container of a pod keeps what it has from before a restart; a
container that must be restarted needs its devices healthy, or the pod is rejected (so a finished init
container makes its pod fail if the kubelet restarts while the plugin is absent, as observed on a real one).
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from gpushare.api.errors import InvalidQuantity
from gpushare.api.quantity import parse_amount
from gpushare.kubeletapi import deviceplugin_pb2 as pb
from gpushare_playground.kubelet.devicemanager.checkpoint import read_checkpoint, write_checkpoint
from gpushare_playground.kubelet.devicemanager.devices import EMPTY, DeviceBook, Devices, Grant
from gpushare_playground.kubelet.devicemanager.plugins import Plugins
from gpushare_playground.kubelet.errors import DeviceUnavailable, Rejected
from gpushare_playground.kubelet.paths import Folders
from gpushare_playground.kubelet.podspec import Container, Pod

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What Allocate requires for a container's start. ``mounts``: container path → path of this machine."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


class Allocator:
    """Allocates devices to containers, with a checkpoint for restarts."""

    def __init__(self, folders: Folders, book: DeviceBook, plugins: Plugins) -> None:
        self.book = book
        self._folders = folders
        self._plugins = plugins
        self._lock = asyncio.Lock()

    def restore(self, now: float) -> None:
        """Load the checkpoint of an earlier kubelet process."""
        names, grants = read_checkpoint(self._folders.checkpoint)
        self.book.restore(names, grants, now)

    async def admit(self, pod: Pod, active: Collection[str], running: Collection[str]) -> None:
        """Allocate devices to every container; ``active`` are the UIDs of pods that may keep theirs.

        ``running`` names the pod's containers that run already (after a restart of the kubelet).
        Raises ``Rejected`` with reason UnexpectedAdmissionError.
        """
        async with self._lock:
            if self.book.keep_only({*active, pod.uid}):
                self.save()
            reusable: dict[str, Devices] = {}
            for container in pod.ordered:
                try:
                    await self._allocate(pod, container, reusable, running=container.name in running)
                except DeviceUnavailable as error:
                    raise Rejected(
                        f"pod {pod.key}",
                        "UnexpectedAdmissionError",
                        f"Allocate failed due to {error.problem}, which is unexpected",
                    ) from None
                left_behind = container in pod.init_containers and not container.sidecar
                for grant in self.book.of_container(pod.uid, container.name):
                    before = reusable.get(grant.resource, EMPTY)
                    reusable[grant.resource] = (
                        before | grant.devices if left_behind else before - grant.devices
                    )

    async def before_start(self, pod: Pod, container: Container) -> DeviceOptions:
        """What a container gets at its start; raises ``DeviceUnavailable``.

        Devices missing from a lost checkpoint are allocated again; plugins with PreStartContainer are called.
        """
        forgotten = [name for name in self._requested(pod, container) if not self._held(pod, container, name)]
        if forgotten:
            async with self._lock:
                await self._allocate(pod, container, {}, running=False)
        grants = self.book.of_container(pod.uid, container.name)
        for grant in grants:
            await self._plugins.pre_start(grant.resource, sorted(grant.devices))
        return options_of(grants)

    def save(self) -> None:
        """Write the checkpoint; a full disk is logged and does not stop the pods."""
        try:
            write_checkpoint(self._folders.checkpoint, self.book)
        except OSError as error:
            _log.error(
                "checkpoint cannot be written (file %s, fault %s)",
                str(self._folders.checkpoint),
                error.strerror,
            )

    def _requested(self, pod: Pod, container: Container) -> dict[str, int]:
        """Plugins' resources in the container's limits, in no particular order; others are not allocated here."""
        requested = {}
        for name, amount in container.limits.items():
            if name in self.book.resources:
                try:
                    requested[name] = parse_amount(amount, f"pod {pod.key}, container {container.name}")
                except InvalidQuantity as error:
                    raise DeviceUnavailable(name, str(error)) from None
        return requested

    def _held(self, pod: Pod, container: Container, resource: str) -> bool:
        return any(grant.resource == resource for grant in self.book.of_container(pod.uid, container.name))

    async def _allocate(
        self, pod: Pod, container: Container, reusable: dict[str, Devices], *, running: bool
    ) -> None:
        changed = False
        requested = self._requested(pod, container)
        for resource in self.book.in_any_order(requested):
            amount = requested[resource]
            if not self.book.needs(pod.uid, container.name, resource, amount, already_running=running):
                continue
            try:
                devices = await self._choose(resource, amount, reusable.get(resource, EMPTY))
                self.book.reserve(resource, devices)
                response = await self._plugins.allocate(resource, devices)
            except BaseException:
                self.book.release()
                raise
            self.book.put(Grant(pod.uid, container.name, resource, frozenset(devices), response))
            changed = True
        if changed:
            self.save()

    async def _choose(self, resource: str, amount: int, reusable: Devices) -> list[str]:
        """Reused devices first, then those that the plugin prefers, then any."""
        chosen = self.book.reuse(resource, amount, reusable)
        if len(chosen) == amount:
            return chosen
        available = self.book.free(resource, amount - len(chosen))
        preferred = await self._plugins.preferred(resource, [*available, *chosen], chosen, amount)
        # A list from the plugin meanwhile changes nothing, as in the kubelet: an Allocate that it cannot serve fails.
        for wanted in (True, False):
            for device in available:
                if device not in chosen and len(chosen) < amount and (device in preferred) is wanted:
                    chosen.append(device)
        return chosen


def options_of(grants: Collection[Grant]) -> DeviceOptions:
    """The plugins' responses for one container, merged; of equal keys the first counts."""
    options = DeviceOptions()
    cdi: list[str] = []
    for grant in grants:
        response = pb.ContainerAllocateResponse.FromString(grant.response)
        for merged, added in ((options.envs, response.envs), (options.annotations, response.annotations)):
            for key, value in added.items():
                merged.setdefault(key, value)
        for mount in response.mounts:
            options.mounts.setdefault(mount.container_path, mount.host_path)
        for device in response.devices:
            options.devices.setdefault(device.container_path, device.host_path)
        cdi += [one.name for one in response.cdi_devices]
    return DeviceOptions(options.envs, options.mounts, options.devices, options.annotations, tuple(cdi))
