"""A pod's allocation, in MiB and GPU UUIDs, independent of the memory unit."""

from collections.abc import Sequence

import msgspec

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.quantity import MemoryUnit, granted_mib
from gpushare.api.request.request import ContainerKind, Request


class GpuShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of one GPU: ``units`` of the ``device_units`` that it had, worth ``mib`` MiB, and compute."""

    uuid: str
    index: int
    mib: int
    units: int
    device_units: int = msgspec.field(name="of")
    core_percent: int = msgspec.field(name="core", default=0)


class Allocation(msgspec.Struct, frozen=True):
    """What a pod holds on its node.

    ``gpus`` is what the whole pod holds, a share per GPU, as Kubernetes counts init containers;
    ``containers`` says by container name what each may use. ``unit`` is the memory unit of the time,
    ``None`` where it is not known (records of other schedulers).
    """

    gpus: tuple[GpuShare, ...]
    containers: dict[str, tuple[GpuShare, ...]]
    unit: MemoryUnit | None = None

    @property
    def mib(self) -> int:
        """MiB over all GPUs."""
        return sum(share.mib for share in self.gpus)

    @property
    def units(self) -> int:
        """Units over all GPUs, in the unit of the time."""
        return sum(share.units for share in self.gpus)

    def containers_by_gpu(self) -> tuple[tuple[str, ...], ...]:
        """For each of ``gpus`` the containers that have a part of it, if containers have different GPUs; empty otherwise."""
        if len(self.gpus) == 1:
            return ()
        found = tuple(
            tuple(
                name
                for name, shares in self.containers.items()
                if any((one.uuid, one.index) == (gpu.uuid, gpu.index) for one in shares)
            )
            for gpu in self.gpus
        )
        return found if len(set(found)) > 1 else ()


def share_of(device: Device, device_units: int, units: int, core_percent: int) -> GpuShare:
    """``units`` of ``device``'s ``device_units``, with their MiB."""
    mib = granted_mib(device.total_mib, units, device_units)
    return GpuShare(device.uuid, device.index, mib, units, device_units, core_percent)


def allocate_on(node: NodeDevices, device: Device, request: Request) -> Allocation:
    """The allocation of ``request`` on one ``device`` of ``node``."""
    return allocate_over(node, (device,), request)


def allocate_over(node: NodeDevices, devices: Sequence[Device], request: Request) -> Allocation:
    """The allocation of ``request`` on as many ``devices`` of ``node`` as requested, ordered by index.

    Every container has its part on each of them, but where GPUs are counted (``Request.by_gpu``) or containers are to lie
    ``apart``: then each has its own.
    """
    given_on = sorted(devices, key=lambda device: device.index)

    def shares(units: int, core_percent: int) -> tuple[GpuShare, ...]:
        return tuple(
            given_share(device, node.units_of(device), request, units, core_percent) for device in given_on
        )

    if request.by_gpu:
        return Allocation(
            shares(request.memory_units, 0), _handed_out(shares(request.memory_units, 0), request), node.unit
        )
    gpus = shares(request.memory_units, request.core_percent)
    if request.apart:
        its_own: dict[str, tuple[GpuShare, ...]] = {
            one.name: (share,) for one, share in zip(request.containers, gpus, strict=True)
        }
        return Allocation(gpus, its_own, node.unit)
    return Allocation(
        gpus=gpus,
        containers={one.name: shares(request.part_of(one), one.core_percent) for one in request.containers},
        unit=node.unit,
    )


def _handed_out(gpus: tuple[GpuShare, ...], request: Request) -> dict[str, tuple[GpuShare, ...]]:
    """Whole GPUs by container, like the kubelet: GPUs of a finished init container are reused by later containers."""
    again: list[GpuShare] = []
    fresh = list(gpus)
    given: dict[str, tuple[GpuShare, ...]] = {}
    for one in request.containers:
        count = one.whole_gpus
        its = [*again[:count], *fresh[: max(count - len(again), 0)]]
        fresh = [share for share in fresh if share not in its]
        kept = [share for share in again if share not in its]
        again = [*kept, *its] if one.kind is ContainerKind.INIT else kept
        given[one.name] = tuple(sorted(its, key=lambda share: share.index))
    return given


def given_share(
    device: Device, device_units: int, request: Request, units: int, core_percent: int
) -> GpuShare:
    """The share of ``device`` for ``units`` requested on each GPU of ``request`` (``Request.given``)."""
    return share_of(device, device_units, request.given(units, device_units), core_percent)
