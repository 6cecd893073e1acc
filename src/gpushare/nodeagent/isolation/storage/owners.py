"""Whose directory it is. Pure."""

from functools import lru_cache

from gpushare.api import names
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.isolation.storage.files import Claimed, fingerprint


def owner_of(claimed: Claimed, book: NodeAllocations) -> tuple[AllocatedPod, str] | None:
    """The pod and the container that have the device IDs of a directory.

    The kubelet may have admitted another pod with an identical request than the one that it was made for.
    """
    own = book.pod(claimed.uid)
    if own is not None:
        ids = book.device_ids(own).get((claimed.container, names.GPU_MEM))
        if ids is None or _fingerprint(ids) == claimed.ids:
            return own, claimed.container
    for pod in book.pods:
        for (container, resource), ids in book.device_ids(pod).items():
            if resource == names.GPU_MEM and _fingerprint(ids) == claimed.ids:
                return pod, container
    return None


@lru_cache(maxsize=1024)
def _fingerprint(ids: frozenset[str]) -> str:
    return fingerprint(ids)
