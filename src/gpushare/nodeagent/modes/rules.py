"""The rules of each mode."""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from gpushare.api.node.modes import NodeMode
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.deviceplugin.resource import PluginResource
from gpushare.nodeagent.modes.shares import CORE, MEMORY, ShareRules
from gpushare.nodeagent.modes.unshared import UnsharedRules
from gpushare.nodeagent.modes.whole_gpus import WholeGpuRules


class NodeModeRules(Protocol):
    """The node agent's behaviour on a node in one mode."""

    @property
    def plugins(self) -> tuple[PluginResource, ...]:
        """The resources for which it registers device plugins."""

    def kept_back(self, pods: Iterable[AllocatedPod], whole: Mapping[str, str]) -> Mapping[str, str]:
        """GPUs that are withheld because containers still hold them from another mode: UUID → why.

        ``pods`` have shares; ``whole``: the GPUs that are held whole, and by which pod.
        """


#: By the value of the node's label, as in ``MODES``.
RULES: Final[dict[str, NodeModeRules]] = {
    "default": UnsharedRules(),
    "share": ShareRules(MEMORY),
    "cgpu": ShareRules(MEMORY),
    "core_mem": ShareRules(MEMORY, CORE),
    "mps": ShareRules(MEMORY),
    "topology": WholeGpuRules(),
    "dra": ShareRules(),
}


def rules_of(mode: NodeMode) -> NodeModeRules:
    """The rules of ``mode``."""
    return RULES[mode.value]


def all_plugins() -> dict[str, PluginResource]:
    """Every resource that an agent may advertise in any mode, by name."""
    return {plugin.name: plugin for rules in RULES.values() for plugin in rules.plugins}
