"""A pod's allocation, in MiB and GPU UUIDs, independent of the memory unit."""

from collections.abc import Sequence

import msgspec

from gpushare.api.node.device import Device, NodeDevices, gpu_label, is_instance
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

    @property
    def label(self) -> str:
        """What messages call the GPU, as ``Device.label``."""
        return gpu_label(self.index, instance=is_instance(self.uuid))


class Allocation(msgspec.Struct, frozen=True):
    """What a pod holds on its node.

    ``gpus`` is what the whole pod holds, a share per GPU, as Kubernetes counts init containers;
    ``containers`` is what each container may use, by name. ``unit`` is the memory unit at that time,
    ``None`` if unknown (records of other schedulers).
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
        """Units over all GPUs, in the unit at the time of the allocation."""
        return sum(share.units for share in self.gpus)

    def containers_by_gpu(self) -> tuple[tuple[str, ...], ...]:
        """For each of ``gpus`` the containers that have a part of it, if containers have different GPUs; empty otherwise."""
        if len(self.gpus) == 1:
            return ()
        by_gpu = tuple(
            tuple(
                name
                for name, shares in self.containers.items()
                if any((share.uuid, share.index) == (gpu.uuid, gpu.index) for share in shares)
            )
            for gpu in self.gpus
        )
        return by_gpu if len(set(by_gpu)) > 1 else ()


def share_of(device: Device, device_units: int, units: int, core_percent: int) -> GpuShare:
    """``units`` of ``device``'s ``device_units``, with their MiB."""
    mib = granted_mib(device.total_mib, units, device_units)
    return GpuShare(device.uuid, device.index, mib, units, device_units, core_percent)


def allocate_on(node: NodeDevices, device: Device, request: Request) -> Allocation:
    """The allocation of ``request`` on one ``device`` of ``node``."""
    return allocate_over(node, (device,), request)


def allocate_over(node: NodeDevices, devices: Sequence[Device], request: Request) -> Allocation:
    """The allocation of ``request`` on as many ``devices`` of ``node`` as requested, ordered by index.

    Every container has a part of each of them, except with whole GPUs (``Request.by_gpu``) or ``apart``: then each has its own GPUs.
    """
    ordered = sorted(devices, key=lambda device: device.index)

    def shares(units: int, core_percent: int) -> tuple[GpuShare, ...]:
        return tuple(
            allocated_share(device, node.units_of(device), request, units, core_percent) for device in ordered
        )

    if request.by_gpu:
        return Allocation(
            shares(request.memory_units, 0),
            _whole_gpus_by_container(shares(request.memory_units, 0), request),
            node.unit,
        )
    gpus = shares(request.memory_units, request.core_percent)
    if request.apart:
        by_container: dict[str, tuple[GpuShare, ...]] = {
            container.name: (share,) for container, share in zip(request.containers, gpus, strict=True)
        }
        return Allocation(gpus, by_container, node.unit)
    return Allocation(
        gpus=gpus,
        containers={
            container.name: shares(request.part_of(container), container.core_percent)
            for container in request.containers
        },
        unit=node.unit,
    )


def _whole_gpus_by_container(gpus: tuple[GpuShare, ...], request: Request) -> dict[str, tuple[GpuShare, ...]]:
    """Whole GPUs by container, allocated like the kubelet does: later containers reuse GPUs of a finished init container."""
    reusable: list[GpuShare] = []
    unused = list(gpus)
    by_container: dict[str, tuple[GpuShare, ...]] = {}
    for container in request.containers:
        count = container.whole_gpus
        taken = [*reusable[:count], *unused[: max(count - len(reusable), 0)]]
        unused = [share for share in unused if share not in taken]
        remaining = [share for share in reusable if share not in taken]
        reusable = [*remaining, *taken] if container.kind is ContainerKind.INIT else remaining
        by_container[container.name] = tuple(sorted(taken, key=lambda share: share.index))
    return by_container


def allocated_share(
    device: Device, device_units: int, request: Request, units: int, core_percent: int
) -> GpuShare:
    """The share of ``device`` for ``units`` requested on each GPU of ``request`` (``Request.allocated_units``)."""
    return share_of(device, device_units, request.allocated_units(units, device_units), core_percent)
