"""The mode of nodes that share nothing: ``default``."""

from collections.abc import Iterable, Mapping

from gpushare.nodeagent.allocate.pod_allocations import Claim
from gpushare.nodeagent.deviceplugin.resource import PluginResource


class UnsharedRules:
    """The rules of this mode."""

    plugins: tuple[PluginResource, ...] = ()

    def kept_back(self, claims: Iterable[Claim], whole: Mapping[str, str]) -> Mapping[str, str]:
        """None."""
        del claims, whole
        return {}
