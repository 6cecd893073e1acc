"""Modes in which pods get shares of GPUs: ``share``, ``cgpu``, ``core_mem``, ``mps``, and ``dra``, which has no device plugin."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from gpushare.api import names
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.deviceplugin.resource import PluginResource

# No NUMA hints: with them the kubelet's topology manager would choose IDs by NUMA node, or refuse the pod, after the scheduler
# has decided on a GPU.
MEMORY: Final = PluginResource(
    names.GPU_MEM,
    "gpushare-mem-",
    lambda device, node, ids: ids.memory_ids(device, node.unit),
    attrgetter("shares"),
)
CORE: Final = PluginResource(
    names.GPU_CORE, "gpushare-core-", lambda device, node, ids: ids.core_ids(device), attrgetter("shares")
)


class ShareRules:
    """The rules of these modes, which differ in the shared resources."""

    def __init__(self, *plugins: PluginResource) -> None:
        self.plugins = plugins

    def kept_back(self, pods: Iterable[AllocatedPod], whole: Mapping[str, str]) -> Mapping[str, str]:
        """GPUs that containers hold whole."""
        del pods
        return whole
