"""Whose end would let a waiting pod in: few enough to be named, and tried before they are."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.describe import memory_text
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.suggestions.trial import refusal

#: Pods that are named.
MOST_NAMED: Final = 3
#: Of a GPU with more pods than that those with the least memory are not tried alone.
_MOST_ALONE: Final = 16


def listed(names: Sequence[str]) -> str:
    """``pod default/a``, or ``pods default/a, default/b and default/c``; ``names`` are of pods, and not empty."""
    if len(names) == 1:
        return f"pod {names[0]}"
    return f"pods {', '.join(names[:-1])} and {names[-1]}"


def names_of(ledger: Ledger, uids: Collection[str]) -> list[str]:
    """``namespace/name`` of those that hold something, sorted."""
    return sorted(held.pod for uid in uids if (held := ledger.held(uid)) is not None)


def enough_of(ledger: Ledger, request: Request, node: NodeDevices, gpu: int) -> str:
    """The fewest pods on GPU ``gpu`` whose end would let the request in on ``node``, with what each has of that GPU.

    Empty where it takes more than ``MOST_NAMED``.
    """
    device = node.device_at(gpu)
    if device is None:
        return ""
    holding = ledger.usage(node.name).gpus[node.devices.index(device)].pods
    shares = {uid: share for uid in holding if (share := _share(ledger, uid, device.uuid)) is not None}

    def amount(uid: str) -> str:
        share = shares[uid]
        exact = share.device_units == node.units_of(device)
        memory = memory_text(share.units * node.unit.mib if exact else share.mib)
        return f"{memory} and {share.core_percent}%" if request.wants_core else memory

    for some in _tried(shares, by_core=request.wants_core):
        if _could(request, node, device, [shares[uid] for uid in shares if uid not in some]) and not refusal(
            ledger, request, node, ended=some
        ):
            pods = sorted(f"{held.pod} ({amount(uid)})" for uid in some if (held := ledger.held(uid)))
            return listed(pods)
    return ""


def _could(request: Request, node: NodeDevices, device: Device, others: Collection[GpuShare]) -> bool:
    """Whether there could be room on ``device`` beside ``others``; a trial says whether there is."""
    mib = sum(one.mib for one in others) + request.memory_units * node.unit.mib
    return mib <= device.total_mib and sum(one.core_percent for one in others) + request.core_percent <= 100


def _share(ledger: Ledger, uid: str, uuid: str) -> GpuShare | None:
    held = ledger.held(uid)
    return next((one for one in held.allocation.gpus if one.uuid == uuid), None) if held else None


def _tried(shares: dict[str, GpuShare], *, by_core: bool) -> Iterator[Sequence[str]]:
    """One pod, the one that holds the least first, then those that hold the most together."""
    by_memory = sorted(shares, key=lambda uid: (shares[uid].mib, shares[uid].core_percent, uid))
    orders = [by_memory]
    if by_core:
        orders.append(sorted(shares, key=lambda uid: (shares[uid].core_percent, shares[uid].mib, uid)))
    yield from ([uid] for uid in by_memory[-_MOST_ALONE:])
    for count in range(2, min(MOST_NAMED, len(shares)) + 1):
        yield from (order[-count:] for order in orders)
