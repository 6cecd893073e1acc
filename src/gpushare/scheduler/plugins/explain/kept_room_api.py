"""Room that is reserved for gangs and single pods, as served over HTTP next to the decisions."""

from collections.abc import Sequence

import msgspec

from gpushare.api.allocation.allocation import GpuShare
from gpushare.ledger import Held
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.binder import RESERVATION_TTL_S
from gpushare.scheduler.framework.services import Gangs


class ReservedShare(msgspec.Struct, frozen=True, rename="camel"):
    """What is reserved on one GPU, for all pods of a gang together. ``gpu``: the GPU's index."""

    node: str
    gpu: int
    uuid: str
    units: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int


class GangReservation(msgspec.Struct, frozen=True, rename="camel"):
    """What is reserved for the gang ``namespace/name``. Of the ``least`` pods that it needs, ``come`` run or are being bound.

    ``until``: when the reservation expires if no more of the gang's pods are bound, in seconds since 1970.
    """

    gang: str
    come: int
    least: int
    until: int
    shares: list[ReservedShare]


class Reservation(msgspec.Struct, frozen=True, rename="camel"):
    """What is reserved for ``whom``: ``gang NAMESPACE/NAME`` or ``pod NAMESPACE/NAME``."""

    whom: str
    shares: list[ReservedShare]


def all_reservations(view: ClusterCache, gangs: Gangs) -> list[Reservation]:
    """All current reservations: for gangs, for pods that are pending until victims are gone, and for pods that move."""
    reservations = [Reservation(f"gang {room.key}", _shares(room.held)) for room in gangs.kept_rooms()]
    for uid, (node, shares) in view.ledger.nominations.all().items():
        pending = view.waiting.get(uid)
        # A place for a moved pod is reserved under a key that is no pod's UID.
        holder = f"pod {pending.pod}" if pending is not None else "a pod that moves"
        reservations.append(Reservation(holder, [_share(node, share) for share in shares]))
    return sorted(reservations, key=lambda reservation: reservation.whom)


def _share(node: str, share: GpuShare) -> ReservedShare:
    return ReservedShare(node, share.index, share.uuid, share.units, share.mib, share.core_percent)


def gang_reservations(gangs: Gangs, now_s: float) -> list[GangReservation]:
    """The reservation of each gang that has one; ``now_s`` is the time in seconds since 1970."""
    reservations: list[GangReservation] = []
    for room in gangs.kept_rooms():
        # A pod that is asked about just before the deadline holds its own reservation for the full TTL.
        until = round(now_s + room.left_s + RESERVATION_TTL_S)
        reservations.append(GangReservation(room.key, room.come, room.least, until, _shares(room.held)))
    return sorted(reservations, key=lambda reservation: reservation.gang)


def _shares(held: Sequence[Held]) -> list[ReservedShare]:
    sums: dict[tuple[str, int, str], list[int]] = {}
    for reserved in held:
        for share in reserved.allocation.gpus:
            amounts = sums.setdefault((reserved.node, share.index, share.uuid), [0, 0, 0])
            for position, amount in enumerate((share.units, share.mib, share.core_percent)):
                amounts[position] += amount
    return [ReservedShare(*gpu_key, *sums[gpu_key]) for gpu_key in sorted(sums)]
