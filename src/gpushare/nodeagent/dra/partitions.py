"""MIG instances on demand as devices of ResourceSlices: each placement of a GPU, and what all placements take from it. Pure.

A GPU has a counter set: its memory slices, one by one, its compute slices and media engines. Each placement is a device that consumes its
part of them, so that kube-scheduler allocates no two placements that exclude each other. Counters are consumed once, however many claims
share the device: the instance is created for the first and destroyed after the last.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import msgspec

from gpushare.api.node.device import instance_index
from gpushare.nodeagent.dra.slices import WHOLE, Json, Remainder, device_of
from gpushare.nodeagent.driver.discovery import DivisibleGpu
from gpushare.nodeagent.driver.placements import Placement
from gpushare.nodeagent.settings import DefaultShare


def partitions_of(
    gpus: Iterable[DivisibleGpu],
    ours: Collection[str],
    most_shares: int,
    dead: Collection[str] = (),
    default: DefaultShare = WHOLE,
) -> tuple[Json, ...]:
    """The devices of the placements of ``gpus``, in the order in which they are best used.

    ``ours``: names of placements whose instances were created for claims; those of others keep all that overlaps them from being offered.
    ``most_shares``: how many claims can be isolated in one instance; ``dead`` (UUIDs): pods with claims on these GPUs are evicted.
    ``default``: what a claim gets that requests no amount.
    """
    return tuple(
        _partition(gpu, placement, most_shares, default, dead=gpu.device.uuid in dead)
        for gpu in gpus
        for placement in _offered(gpu, ours)
    )


def counter_sets_of(gpus: Iterable[DivisibleGpu]) -> tuple[Json, ...]:
    """What the instances of each GPU can take of it in all; the same whatever instances exist."""
    return tuple(
        {"name": _counter_set(gpu), "counters": _counters(_most_consumed(gpu.placements))} for gpu in gpus
    )


def claim_devices_of(gpus: Iterable[DivisibleGpu], ours: Collection[str]) -> dict[int, str]:
    """The names in ResourceSlices of the instances that exist and were created for claims, by their index."""
    return {
        index: placement.name
        for gpu in gpus
        for placement in gpu.occupied
        if placement.name in ours and (index := instance_index(gpu.device.index, placement.start)) is not None
    }


def _offered(gpu: DivisibleGpu, ours: Collection[str]) -> list[Placement]:
    foreign = [one for one in gpu.occupied if one.name not in ours]
    free = (one for one in gpu.placements if not any(one.overlaps(other) for other in foreign))

    def spoils(placement: Placement) -> int:
        return sum(placement.overlaps(other) for other in gpu.placements)

    # The smallest first, where it makes the fewest others impossible: kube-scheduler takes the first that fits.
    return sorted(free, key=lambda one: (one.size, sum(_consumed(one).values()), spoils(one), one.start))


def _partition(
    gpu: DivisibleGpu, placement: Placement, most_shares: int, default: DefaultShare, *, dead: bool
) -> Json:
    device = msgspec.structs.replace(
        gpu.device,
        uuid="",  # that of an instance is known only when it exists
        claim_device=placement.name,
        total_mib=placement.mib,
        model=f"{gpu.device.model} MIG {placement.profile}",
    )
    hardware = replace(gpu.hardware, parent_uuid=gpu.device.uuid, profile=placement.profile)
    consumed = {"counterSet": _counter_set(gpu), "counters": _counters(_consumed(placement))}
    whole = Remainder(placement.mib, 100, most_shares)
    return device_of(device, hardware, whole, dead=dead, default=default) | {"consumesCounters": [consumed]}


def _counter_set(gpu: DivisibleGpu) -> str:
    return gpu.device.uuid.lower()


def _consumed(placement: Placement) -> dict[str, int]:
    slices = range(placement.start, placement.start + placement.size)
    return {f"memory-slice-{number}": 1 for number in slices} | dict(placement.consumes)


def _most_consumed(placements: Sequence[Placement]) -> dict[str, int]:
    most: dict[str, int] = {}
    for placement in placements:
        for name, amount in _consumed(placement).items():
            most[name] = max(amount, most.get(name, 0))
    return most


def _counters(amounts: dict[str, int]) -> Json:
    return {name: {"value": str(amount)} for name, amount in sorted(amounts.items())}
