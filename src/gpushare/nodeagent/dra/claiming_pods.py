"""Which containers of this node use which prepared ResourceClaim: the limits of their processes. Pure."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gpushare.api.allocation.resource_claim import claims_of
from gpushare.api.objects import ObjectReference
from gpushare.nodeagent.allocate.pod_allocations import ReportingPod, container_names
from gpushare.nodeagent.dra.claim_files import ClaimedShare, PreparedClaim
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.violations import Holder


class ClaimingPod(msgspec.Struct, frozen=True):
    """An unfinished pod of this node with ResourceClaims, of any driver.

    ``claims``: keys (``namespace/name``) by container, of containers that use any. ``containers``: their names by ID, as far as the
    status has them.
    """

    uid: str
    key: str
    claims: dict[str, tuple[str, ...]]
    containers: dict[str, str]


def claiming_pod(pod: ReportingPod) -> ClaimingPod | None:
    """``pod`` as a record; ``None`` if it has finished or uses no claim."""
    if pod.finished or not pod.uses_claims:
        return None
    entries = claims_of(pod)
    namespace = pod.metadata.namespace
    claims = {
        container: tuple(f"{namespace}/{entries.names[use]}" for use in uses if entries.names.get(use))
        for container, uses in entries.containers.items()
    }
    return ClaimingPod(pod.metadata.uid, pod.key, claims, container_names(pod.status))


class ClaimUse(NamedTuple):
    """A container's use of a share of a claim."""

    pod: ClaimingPod
    container: str
    share: ClaimedShare


class ClaimHolders:
    """Fed by the pod informer; ``prepared`` returns the node's prepared claims by UID."""

    def __init__(self, prepared: Callable[[], Mapping[str, PreparedClaim]]) -> None:
        self._prepared = prepared
        self._pods: dict[str, ClaimingPod] = {}

    def put(self, pod: ClaimingPod) -> None:
        """A pod came to this node or changed."""
        self._pods[pod.uid] = pod

    def remove(self, uid: str) -> None:
        """A pod has finished or is gone."""
        self._pods.pop(uid, None)

    @property
    def prepared(self) -> Collection[PreparedClaim]:
        """The prepared claims."""
        return self._prepared().values()

    def holder_of(self, whose: Owner, gpu: str) -> Holder | None:
        """The share of ``gpu`` (UUID) that a process of ``whose`` uses through a claim; ``None``: none.

        While a container is not known by its ID, that of any claim of its pod.
        """
        pod = self._pods.get(whose.pod_uid)
        if pod is None:
            return None
        container = pod.containers.get(whose.container_id, "")
        used = pod.claims.get(container, ()) if container else sum(pod.claims.values(), ())
        shares = self._shares()
        for claim in used:
            for share in shares.get(claim, ()):
                if share.gpu == gpu:
                    return Holder(
                        pod.key,
                        pod.uid,
                        container,
                        gpu,
                        share.mib,
                        share.core_percent,
                        claim,
                        share.core_policy,
                    )
        return None

    def uses(self) -> Iterator[ClaimUse]:
        """Every container that uses a claim, with each share of it."""
        shares = self._shares()
        for pod in self._pods.values():
            for container, claims in pod.claims.items():
                for claim in claims:
                    for share in shares.get(claim, ()):
                        yield ClaimUse(pod, container, share)

    def pods_of(self, claim: str) -> list[ObjectReference]:
        """The pods that use a claim (``namespace/name``)."""
        return [
            ObjectReference("Pod", pod.key.partition("/")[2], pod.key.partition("/")[0], pod.uid)
            for pod in self._pods.values()
            if any(claim in used for used in pod.claims.values())
        ]

    def _shares(self) -> Mapping[str, tuple[ClaimedShare, ...]]:
        return {prepared.claim.key: prepared.shares for prepared in self._prepared().values()}
