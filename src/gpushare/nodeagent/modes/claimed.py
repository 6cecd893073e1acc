"""The mode in which shares are allocated through ResourceClaims: ``dra``."""

from collections.abc import Iterable, Mapping

from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.deviceplugin.resource import PluginResource


class ClaimedRules:
    """The rules of this mode, which has no device plugin."""

    plugins: tuple[PluginResource, ...] = ()

    def kept_back(self, pods: Iterable[AllocatedPod], whole: Mapping[str, str]) -> Mapping[str, str]:
        """GPUs of which containers hold anything, because kube-scheduler does not know of it."""
        shared = {
            share.uuid: f"shared by pod {allocated.key} since before the node's mode changed, until it ends"
            for allocated in pods
            for share in allocated.allocation.gpus
        }
        return {**shared, **whole}
