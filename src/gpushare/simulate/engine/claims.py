"""ResourceClaims on nodes in mode ``dra``: what they hold, and on which nodes pods fit whose claims are not allocated.

kube-scheduler allocates claims. Here each requested GPU is the first in order of index that has room for it. Claims on devices of other
drivers, and requests that are not understood, are ignored and named.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.allocation.resource_claim import (
    DeviceClass,
    DeviceRequest,
    ResourceClaim,
    claim_share,
    claims_of,
    holding_of,
)
from gpushare.api.node.device import Device
from gpushare.api.objects import Pod
from gpushare.api.request.pluralize import counted
from gpushare.ledger import Ledger
from gpushare.simulate.input.fields import claim_of, claim_template_of
from gpushare.simulate.snapshot import ClusterState

#: kube-scheduler's reason for a node.
CANNOT_ALLOCATE: Final = "cannot allocate all claims"


class _Free(msgspec.Struct):
    """What claims can get of a GPU; ``whole_mib``: what an empty one has."""

    device: Device
    whole_mib: int
    mib: int
    core_percent: int
    shares: int

    def take(self, request: DeviceRequest) -> GpuShare | None:
        """The share that is allocated to ``request``; ``None`` if there is no room."""
        wanted = request.wanted
        mib, core_percent = (0, 0) if wanted is None else (wanted.mib or self.whole_mib, wanted.core_percent)
        if wanted is not None and (mib > self.mib or core_percent > self.core_percent or not self.shares):
            return None
        self.mib -= mib
        self.core_percent -= core_percent
        self.shares -= wanted is not None
        return claim_share(self.device, mib, core_percent)


class Claims:
    """The claims of a simulated cluster; ``most_shares``: how many claims are held apart on a GPU.

    Claims that exist have the key ``NAMESPACE/NAME``; one that a template will make has ``NAMESPACE/POD/ENTRY``.
    """

    def __init__(self, state: ClusterState, ledger: Ledger, most_shares: int) -> None:
        self._ledger = ledger
        self._most_shares = most_shares
        classes = msgspec.convert(state.device_classes, list[DeviceClass])
        self._classes = {names.DRA_DRIVER, *(one.metadata.name for one in classes if one.is_ours)}
        self._claims = {one.key: one for one in map(claim_of, state.claims)}
        self._templates = {one.key: one for one in map(claim_template_of, state.claim_templates)}
        self._node_of: dict[str, str] = {}
        self._users: dict[str, set[str]] = {}
        for key, claim in self._claims.items():
            for name in claim.nodes():
                node = ledger.node(name)
                self._hold(key, name, () if node is None else holding_of(claim, name, node.devices).shares)

    def upsert_pod(self, pod: Pod) -> None:
        """A pod was added or changed."""
        for key, _ in self._of(pod) if pod.spec.node_name else ():
            self._users.setdefault(key, set()).add(pod.metadata.uid)

    def remove_pod(self, pod: Pod) -> None:
        """A pod is gone: its claims are released, unless other pods use them."""
        for key, _ in self._of(pod):
            users = self._users.get(key, set())
            users.discard(pod.metadata.uid)
            if not users and self._node_of.pop(key, None) is not None:
                self._ledger.release(_uid(key))

    def fits(self, pod: Pod, node: str) -> bool:
        """Whether the pod's claims are allocated on ``node``, or can be."""
        return self._allocations(pod, node) is not None

    def allocate(self, pod: Pod, node: str) -> None:
        """Allocate the pod's claims on a node where they fit."""
        for key, _ in self._of(pod):
            self._users.setdefault(key, set()).add(pod.metadata.uid)
        for key, shares in (self._allocations(pod, node) or {}).items():
            self._hold(key, node, shares)

    def shares_of(self, pod: Pod) -> tuple[GpuShare, ...]:
        """What the pod's claims hold, by index."""
        held = (self._ledger.held(_uid(key)) for key, _ in self._of(pod))
        shares = (share for one in held if one is not None for share in one.allocation.gpus)
        return tuple(sorted(shares, key=lambda share: share.index))

    def asks_of(self, pod: Pod) -> list[str]:
        """What the pod's claims request, for people."""
        return [
            f"{request} by claim"
            for _, claim in self._of(pod)
            for request in claim.requests_of(self._classes)
        ]

    def ignored(self, pods: Iterable[Pod]) -> list[str]:
        """What claims of these pods request, or may hold, that is not simulated."""
        unread = 0
        wishes: set[str] = set()
        for pod in pods:
            known = [claim for _, claim in self._of(pod)]
            unread += len(known) < len(pod.spec.resource_claims or ())
            for claim in known:
                wishes.update(self._ignored_of(claim))
        return [
            *([f"ResourceClaims of {counted(unread, 'pod')}, which were not read"] if unread else ()),
            *sorted(wishes),
        ]

    def _ignored_of(self, claim: ResourceClaim) -> Iterator[str]:
        requests = claim.device_requests(self._classes)
        if len(requests) < len(claim.spec.devices.requests or ()):
            yield "ResourceClaims on devices of other DeviceClasses"
        if any(constraint.match_attribute for constraint in claim.spec.devices.constraints or ()):
            yield "matchAttribute of ResourceClaims"
        for request in (request for alternatives in requests for request in alternatives):
            if request.selectors:
                yield "selectors of ResourceClaims"
            if request.allocation_mode == "All":
                yield "allocationMode All of ResourceClaims"

    def _of(self, pod: Pod) -> Iterator[tuple[str, ResourceClaim]]:
        """Those of the pod's claims that are known, or whose template is."""
        if not pod.uses_claims:
            return
        namespace = pod.metadata.namespace
        templates = {
            entry.name: entry.resource_claim_template_name for entry in pod.spec.resource_claims or ()
        }
        for entry, made in claims_of(pod).names.items():
            key = f"{namespace}/{made}"
            claim = self._claims.get(key)
            if not made and (template := templates[entry]):
                key = f"{pod.key}/{entry}"
                claim = self._templates.get(f"{namespace}/{template}")
            if claim is not None:
                yield key, claim

    def _hold(self, key: str, node: str, shares: Iterable[GpuShare]) -> None:
        self._node_of[key] = node
        if shares := tuple(shares):
            self._ledger.hold(_uid(key), key, node, Allocation(shares, {}))

    def _allocations(self, pod: Pod, node: str) -> dict[str, list[GpuShare]] | None:
        """What each claim that is not allocated yet would get on ``node``; ``None`` if they do not fit."""
        free = self._free(node)
        allocations = {}
        for key, claim in self._of(pod):
            if key in self._node_of:
                if self._node_of[key] != node:
                    return None
            elif (shares := self._shares(claim, free)) is not None:
                allocations[key] = shares
            else:
                return None
        return allocations

    def _shares(self, claim: ResourceClaim, free: list[_Free]) -> list[GpuShare] | None:
        apart = any(constraint.distinct_attribute for constraint in claim.spec.devices.constraints or ())
        shares: list[GpuShare] = []
        for alternatives in claim.device_requests(self._classes):
            taken = None
            for request in alternatives:
                if taken is None and request.device_class_name in self._classes:
                    taken = _taken(request, free, shares if apart else None)
            if taken is None:
                return None
            shares += taken
        return _joined(shares)

    def _free(self, name: str) -> list[_Free]:
        """The GPUs of the node that take claims, by index; none if it is not in mode ``dra``."""
        node = self._ledger.node(name)
        if node is None or not node.mode.claims or node.refusal:
            return []
        usage = {gpu.uuid: gpu for gpu in self._ledger.usage(name).gpus}
        return [
            _Free(
                device,
                device.total_mib - device.foreign_mib,
                usage[device.uuid].free_mib,
                100 - usage[device.uuid].used_core,
                self._most_shares - len(usage[device.uuid].pods),
            )
            for device in sorted(node.devices, key=lambda device: device.index)
            if device.in_service
        ]


def _taken(
    request: DeviceRequest, free: list[_Free], avoided: list[GpuShare] | None
) -> list[GpuShare] | None:
    """Shares of the first GPUs with room for ``request``; ``None``, and no change, if there are too few.

    ``avoided``: shares whose GPUs it must not get, and then none twice; ``None``: it may get any, also twice.
    """
    before = [msgspec.structs.replace(gpu) for gpu in free]
    shares: list[GpuShare] = []
    for _ in range(request.count):
        others = () if avoided is None else {share.uuid for share in (*avoided, *shares)}
        fitting = (gpu.take(request) for gpu in free if gpu.device.uuid not in others)
        share = next((share for share in fitting if share is not None), None)
        if share is None:
            free[:] = before
            return None
        shares.append(share)
    return shares


def _joined(shares: Iterable[GpuShare]) -> list[GpuShare]:
    """One share for each GPU of which something is held."""
    by_uuid: dict[str, GpuShare] = {}
    for share in shares:
        before = by_uuid.get(share.uuid)
        if before is not None:
            mib = before.mib + share.mib
            core_percent = before.core_percent + share.core_percent
            share = msgspec.structs.replace(share, mib=mib, units=mib, core_percent=core_percent)
        by_uuid[share.uuid] = share
    return [share for share in by_uuid.values() if share.mib]


def _uid(key: str) -> str:
    """The UID under which the ledger has a claim."""
    return f"claim {key}"
