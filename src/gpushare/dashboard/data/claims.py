"""ResourceClaims, and the pods that use them: what claims hold counts in the ledger, and pods whose claim is not allocated are pending."""

from collections.abc import Callable, Iterator

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation
from gpushare.api.allocation.resource_claim import (
    DeviceClass,
    ResourceClaim,
    claims_of,
    holding_of,
    shares_requested,
)
from gpushare.api.objects import Pod
from gpushare.ledger import Ledger
from gpushare.reasons.unscheduled import unplaced_of

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


class ClaimPod(msgspec.Struct, frozen=True):
    """An unfinished pod with ResourceClaims, of any driver: keys of those that exist. ``condition_message``: why it has no node, by its scheduler."""

    uid: str
    pod: str
    node: str
    created: str
    claims: tuple[str, ...]
    priority: int = 0
    leaving: bool = False
    condition_message: str = ""
    shares: int = 0
    """Requested by extended resource, without a claim of its own."""


def claim_pod_of(pod: Pod) -> ClaimPod | None:
    """The record of ``pod``; ``None`` if it has finished or uses no claim."""
    if pod.finished or not (pod.uses_claims or shares_requested(pod)):
        return None
    meta, node = pod.metadata, pod.spec.node_name
    claims = tuple(f"{meta.namespace}/{name}" for name in claims_of(pod).names.values() if name)
    return ClaimPod(
        meta.uid,
        pod.key,
        node,
        meta.creation_timestamp or "",
        claims,
        pod.spec.priority or 0,
        meta.deletion_timestamp is not None,
        "" if node else unplaced_of(pod).condition_message,
        shares_requested(pod),
    )


def decode_claim(raw: bytes) -> tuple[str, ResourceClaim]:
    """A ResourceClaim's JSON for ``Claims``; raises ``msgspec.DecodeError``."""
    claim = _CLAIM.decode(raw)
    return claim.key, claim


def decode_class(raw: bytes) -> tuple[str, str] | None:
    """The name of a DeviceClass of ours in its JSON, twice; raises ``msgspec.DecodeError``."""
    found = _CLASS.decode(raw)
    return (found.metadata.name, found.metadata.name) if found.is_ours else None


_CLAIM = msgspec.json.Decoder(ResourceClaim)
_CLASS = msgspec.json.Decoder(DeviceClass)


class Claims:
    """The handler of the claims' informer. ``touch`` is called with the name of a node of which a claim holds something else now."""

    def __init__(self, ledger: Ledger, touch: Callable[..., None]) -> None:
        self._ledger = ledger
        self._touch = touch
        self._claims: dict[str, ResourceClaim] = {}
        self._by_uid: dict[str, ResourceClaim] = {}
        self._by_node: dict[str, set[str]] = {}
        self.pods: dict[str, ClaimPod] = {}
        """Pods that use claims, by ``namespace/name``."""
        self.classes = Classes()

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: ResourceClaim) -> None:
        """A claim was added or changed."""
        before = self._claims.get(item.key)
        if before is not None:
            self._release(before)
        self._claims[item.key] = self._by_uid[item.metadata.uid] = item
        for node in item.nodes():
            self._by_node.setdefault(node, set()).add(item.key)
            self._hold(item, node)

    def remove(self, key: str, last: ResourceClaim) -> None:
        """A claim was deleted."""
        self._claims.pop(key, None)
        self._release(last)

    def node_changed(self, name: str) -> None:
        """The node's GPUs may be others."""
        for key in self._by_node.get(name, ()):
            self._hold(self._claims[key], name)

    def of_uid(self, uid: str) -> ResourceClaim | None:
        """The claim with that UID."""
        return self._by_uid.get(uid)

    def of_pod(self, pod: ClaimPod) -> list[ResourceClaim]:
        """The pod's claims on our GPUs."""
        claims = (self._claims.get(key) for key in pod.claims)
        return [
            claim
            for claim in claims
            if claim is not None and (claim.nodes() or claim.requests_of(self.classes.names))
        ]

    def asks_of(self, pod: ClaimPod) -> str:
        """What the pod's claims request, for people."""
        requests = [
            f"{request} through claim {claim.metadata.name}"
            for claim in self.of_pod(pod)
            for request in claim.requests_of(self.classes.names)
        ]
        by_resource = [f"{pod.shares} of {names.GPU_SHARE}"] if pod.shares else []
        return ", ".join(requests + by_resource)

    def waiting(self) -> Iterator[ClaimPod]:
        """Pods without a node that have a claim on our GPUs, or get one with their node."""
        return (pod for pod in self.pods.values() if not pod.node and self.concern(pod))

    def concern(self, pod: ClaimPod) -> bool:
        """Whether the pod has a claim on our GPUs, or gets one with its node."""
        return bool(pod.shares or self.of_pod(pod))

    def _hold(self, claim: ResourceClaim, name: str) -> None:
        node = self._ledger.node(name)
        shares = () if node is None else holding_of(claim, name, node.devices).shares
        if shares:
            self._ledger.hold(claim.metadata.uid, claim.key, name, Allocation(shares, {}))
        else:
            self._ledger.release(claim.metadata.uid)
        self._touch(name)

    def _release(self, claim: ResourceClaim) -> None:
        self._by_uid.pop(claim.metadata.uid, None)
        self._ledger.release(claim.metadata.uid)
        for node in claim.nodes():
            self._by_node.get(node, set()).discard(claim.key)
            self._touch(node)


class Classes:
    """The handler of the informer of DeviceClasses: ``names`` are those of ours."""

    def __init__(self) -> None:
        self.names = {names.DRA_DRIVER}

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: str) -> None:
        """A class was added or changed."""
        self.names.add(item)

    def remove(self, key: str, last: str) -> None:
        """A class was deleted; what claims have requested of it they still request."""
