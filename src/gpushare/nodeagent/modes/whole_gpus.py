"""The mode in which pods get a number of whole GPUs: ``topology``."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from gpushare.api import names
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.deviceplugin.resource import PluginResource

# With NUMA hints: whichever GPUs the kubelet assigns are recorded.
WHOLE: Final = PluginResource(
    names.GPU_WHOLE,
    "gpushare-gpu-",
    lambda device, node, ids: [ids.whole_id(device)],
    attrgetter("whole"),
    has_numa_hints=True,
)


class WholeGpuRules:
    """The rules of this mode."""

    plugins = (WHOLE,)

    def kept_back(self, pods: Iterable[AllocatedPod], whole: Mapping[str, str]) -> Mapping[str, str]:
        """GPUs of which containers hold shares."""
        del whole
        return {
            share.uuid: f"shared by pod {allocated.key} since before the node's mode changed, until it ends"
            for allocated in pods
            for share in allocated.allocation.gpus
        }
