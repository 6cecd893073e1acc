"""The mode in which shares are allocated through ResourceClaims: ``dra``."""

from collections.abc import Iterable, Mapping

from gpushare.nodeagent.allocate.pod_allocations import Claim
from gpushare.nodeagent.deviceplugin.resource import PluginResource


class ClaimedRules:
    """The rules of this mode, which has no device plugin."""

    plugins: tuple[PluginResource, ...] = ()

    def kept_back(self, claims: Iterable[Claim], whole: Mapping[str, str]) -> Mapping[str, str]:
        """GPUs of which containers hold anything: kube-scheduler does not know of it."""
        shared = {
            share.uuid: f"shared by pod {claim.pod.key} since before the node's mode changed, until it ends"
            for claim in claims
            for share in claim.allocation.gpus
        }
        return {**shared, **whole}
