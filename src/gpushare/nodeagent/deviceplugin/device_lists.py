"""What a node advertises: the resources of each mode, and the device list of each resource."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpushare.api import names
from gpushare.api.node.device import Device, NodeDevices, NodeMode
from gpushare.kubeletapi.deviceplugin_pb2 import Device as PluginDevice
from gpushare.kubeletapi.deviceplugin_pb2 import ListAndWatchResponse, NUMANode, TopologyInfo
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_AT_ONCE: Final = 128


def resources_of(mode: NodeMode) -> tuple[str, ...]:
    """The resources of a mode (spec §1); ``aliyun.com/gpu-count`` is written into the node's status instead."""
    if mode is NodeMode.TOPOLOGY:
        return (names.GPU_WHOLE,)
    if mode.gives_core:
        return (names.GPU_MEM, names.GPU_CORE)
    return (names.GPU_MEM,) if mode.shares_memory else ()


@dataclass(frozen=True, slots=True)
class DeviceList:
    """An encoded ``ListAndWatchResponse`` and how many devices it has, by health."""

    encoded: bytes = b""
    healthy: int = 0
    unhealthy: int = 0


def device_list(resource: str, node: NodeDevices, ids: DeviceIds) -> DeviceList:
    """Every device of ``resource`` on ``node``.

    No NUMA hints for shares: with them the kubelet's topology manager would choose IDs by NUMA node, or refuse the pod,
    after the scheduler has decided for a GPU. Whole GPUs have them: whichever the kubelet gives, the record follows. The list is kept encoded, one block instead of thousands of
    objects (8 GPUs of 141 GiB are 9,000 devices); encoded parts one after the other are the encoded whole.
    """
    parts: list[bytes] = []
    healthy = unhealthy = 0
    for device in node.devices:
        its = _ids(resource, device, node, ids)
        numa_node = device.numa_node if resource == names.GPU_WHOLE else -1
        parts += _encoded(its, HEALTHY if device.healthy else UNHEALTHY, numa_node)
        if device.healthy:
            healthy += len(its)
        else:
            unhealthy += len(its)
    return DeviceList(b"".join(parts), healthy, unhealthy)


def _encoded(ids: list[str], health: str, numa_node: int) -> Iterator[bytes]:
    """In small parts, so that never many messages exist at once."""
    near = None if numa_node < 0 else TopologyInfo(nodes=[NUMANode(ID=numa_node)])
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        part = ListAndWatchResponse(
            devices=[PluginDevice(ID=one, health=health, topology=near) for one in some]
        )
        yield part.SerializeToString()


def _ids(resource: str, device: Device, node: NodeDevices, ids: DeviceIds) -> list[str]:
    if resource == names.GPU_MEM:
        return ids.memory_ids(device, node.unit)
    return ids.core_ids(device) if resource == names.GPU_CORE else [ids.whole_id(device)]
