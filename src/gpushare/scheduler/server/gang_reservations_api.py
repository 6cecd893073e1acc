"""What is kept for gangs and for single pods, as it is read over HTTP beside decisions."""

from collections.abc import Sequence

import msgspec

from gpushare.api.allocation.allocation import GpuShare
from gpushare.ledger import Held
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.binder import RESERVATION_TTL_S
from gpushare.scheduler.plugins.gangs.reservations import until_s


class KeptShare(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept of one GPU, for all pods of a gang together; ``gpu`` is its index."""

    node: str
    gpu: int
    uuid: str
    units: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int


class Kept(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept for the gang ``namespace/name``, of whose ``least`` pods so many run or have ``come`` to be bound.

    ``until``: when it is given up at the latest where no more of them come, in seconds since 1970.
    """

    gang: str
    come: int
    least: int
    until: int
    shares: list[KeptShare]


class KeptFor(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept for ``whom``: ``gang NAMESPACE/NAME`` or ``pod NAMESPACE/NAME``."""

    whom: str
    shares: list[KeptShare]


def kept_for_all(view: ClusterCache) -> list[KeptFor]:
    """For whom room is kept now: gangs whose pods come, pods that wait until others have ended, and pods that move."""
    found = [KeptFor(f"gang {key}", _shares(held)) for key, _, held in view.gangs.room.kept()]
    for uid, (node, shares) in view.ledger.nominations.all().items():
        waits = view.waiting.get(uid)
        # One that moves is known by a key that its replacement has not come for.
        whom = f"pod {waits.pod}" if waits is not None else "a pod that moves"
        found.append(KeptFor(whom, [_share(node, one) for one in shares]))
    return sorted(found, key=lambda one: one.whom)


def _share(node: str, share: GpuShare) -> KeptShare:
    return KeptShare(node, share.index, share.uuid, share.units, share.mib, share.core_percent)


def kept_now(view: ClusterCache, now_s: float) -> list[Kept]:
    """Of each gang that keeps room; ``now_s`` is the time in seconds since 1970."""
    gangs = view.gangs
    found: list[Kept] = []
    for key, group, held in gangs.room.kept():
        gang = group.pods[held[0].uid].gang
        assert gang is not None
        # Who is asked about until then keeps its reservation for as long as one lasts.
        left_s = until_s(group) + RESERVATION_TTL_S - gangs.monotonic()
        until = round(now_s + left_s)
        found.append(Kept(key, gangs.come(group, gang), gang.least, until, _shares(held)))
    return sorted(found, key=lambda one: one.gang)


def _shares(held: Sequence[Held]) -> list[KeptShare]:
    sums: dict[tuple[str, int, str], list[int]] = {}
    for one in held:
        for share in one.allocation.gpus:
            its = sums.setdefault((one.node, share.index, share.uuid), [0, 0, 0])
            for at, amount in enumerate((share.units, share.mib, share.core_percent)):
                its[at] += amount
    return [KeptShare(*place, *sums[place]) for place in sorted(sums)]
