"""The GPUs of a node and their allocations, in figures for people."""

from collections.abc import Callable

from gpushare.api.allocation.allocation import GpuShare
from gpushare.ledger.node_book import GpuBook, NodeBook
from gpushare.ledger.results import GpuUsage, Held, NodeUsage, PendingShare


def usage_of(book: NodeBook, held: Callable[[str], Held]) -> NodeUsage:
    """The figures of one node, including what is held of missing GPUs; ``held`` returns what a pod holds."""
    pending = [
        PendingShare(uid, share)
        for uuid, gpu in book.gpus.items()
        if gpu.device is None
        for uid, share in _shares(book, uuid, gpu, held)
    ]
    return NodeUsage(
        node=book.name,
        unit=None if book.devices is None else book.devices.unit,
        gpus=tuple(_gpu_usage(book, gpu, held) for gpu in book.present),
        pending=tuple(
            sorted(pending, key=lambda pending_share: (pending_share.uid, pending_share.share.uuid))
        ),
    )


def _shares(
    book: NodeBook, uuid: str, gpu: GpuBook, held: Callable[[str], Held]
) -> list[tuple[str, GpuShare]]:
    return [
        (uid, share)
        for uid in gpu.pods
        for share in map(book.counted, held(uid).allocation.gpus)
        if share.uuid == uuid
    ]


def _gpu_usage(book: NodeBook, gpu: GpuBook, held: Callable[[str], Held]) -> GpuUsage:
    device = gpu.device
    assert device is not None
    exact_units, rest_mib = 0, 0
    for _, share in _shares(book, device.uuid, gpu, held):
        if share.device_units == gpu.units:
            exact_units += share.units
        else:
            rest_mib += share.mib
    rest_units = -(-rest_mib * gpu.units // device.total_mib)  # rounded up
    used_units = exact_units + rest_units
    if gpu.used_mib <= device.total_mib:
        used_units = min(used_units, gpu.units)
    return GpuUsage(
        uuid=device.uuid,
        index=device.index,
        healthy=device.healthy,
        total_mib=device.total_mib,
        used_mib=gpu.used_mib,
        total_units=gpu.units,
        used_units=used_units,
        used_core=gpu.used_core,
        pods=tuple(sorted(gpu.pods)),
        foreign_mib=device.foreign_mib,
    )
