"""The mode of nodes that share nothing: ``default``."""

from collections.abc import Iterable, Mapping

from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.deviceplugin.resource import PluginResource


class UnsharedRules:
    """The rules of this mode."""

    plugins: tuple[PluginResource, ...] = ()

    def kept_back(self, pods: Iterable[AllocatedPod], whole: Mapping[str, str]) -> Mapping[str, str]:
        """None."""
        del pods, whole
        return {}
