"""Pods whose end would admit a pending pod: few enough to be listed, and tried before they are."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.describe import memory_text
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.priorities import ANY, LEAVING
from gpushare.reasons.suggestions.trial import refusal

#: Pods listed in a message.
MAX_NAMED: Final = 3
#: On a GPU with more pods, those with the least memory are not tried alone.
_MAX_SINGLE: Final = 16


def listed(names: Sequence[str]) -> str:
    """``pod default/a``, or ``pods default/a, default/b and default/c``; ``names`` must not be empty."""
    if len(names) == 1:
        return f"pod {names[0]}"
    return f"pods {', '.join(names[:-1])} and {names[-1]}"


def names_of(ledger: Ledger, uids: Collection[str]) -> list[str]:
    """``namespace/name`` of the pods in the ledger, sorted."""
    return sorted(held.pod for uid in uids if (held := ledger.held(uid)) is not None)


def fewest_victims(ledger: Ledger, request: Request, node: NodeDevices, gpu: int) -> str:
    """That deleting the fewest pods on GPU ``gpu``, with their shares of it, would make the request fit ``node``, or that they are terminating.

    Empty if more than ``MAX_NAMED`` would be needed.
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

    for victims in _candidates(shares, by_core=request.wants_core):
        if _could_fit(
            request, node, device, [shares[uid] for uid in shares if uid not in victims]
        ) and not refusal(ledger, request, node, ended=victims):
            holders = {uid: held for uid in victims if (held := ledger.held(uid))}
            pods = listed(sorted(f"{held.pod} ({amount(uid)})" for uid, held in holders.items()))
            if all(held.priority in (LEAVING, ANY) for held in holders.values()):
                return f"the end of {pods}, already terminating, is enough"
            return f"deleting {pods} would be enough"
    return ""


def _could_fit(request: Request, node: NodeDevices, device: Device, others: Collection[GpuShare]) -> bool:
    """Quick check whether the request could fit ``device`` beside ``others``; ``trial`` decides."""
    mib = sum(share.mib for share in others) + request.memory_units * node.unit.mib
    return (
        mib <= device.total_mib and sum(share.core_percent for share in others) + request.core_percent <= 100
    )


def _share(ledger: Ledger, uid: str, uuid: str) -> GpuShare | None:
    held = ledger.held(uid)
    return next((share for share in held.allocation.gpus if share.uuid == uuid), None) if held else None


def _candidates(shares: dict[str, GpuShare], *, by_core: bool) -> Iterator[Sequence[str]]:
    """Candidates: single pods, the smallest first, then groups of the largest pods."""
    by_memory = sorted(shares, key=lambda uid: (shares[uid].mib, shares[uid].core_percent, uid))
    orders = [by_memory]
    if by_core:
        orders.append(sorted(shares, key=lambda uid: (shares[uid].core_percent, shares[uid].mib, uid)))
    yield from ([uid] for uid in by_memory[-_MAX_SINGLE:])
    for count in range(2, min(MAX_NAMED, len(shares)) + 1):
        yield from (order[-count:] for order in orders)
