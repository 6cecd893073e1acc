"""The device list of each resource that a node advertises."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpushare.api.node.device import NodeDevices
from gpushare.kubeletapi.deviceplugin_pb2 import Device as PluginDevice
from gpushare.kubeletapi.deviceplugin_pb2 import ListAndWatchResponse, NUMANode, TopologyInfo
from gpushare.nodeagent.deviceplugin.device_ids import DeviceIds
from gpushare.nodeagent.deviceplugin.resource import PluginResource

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_AT_ONCE: Final = 128


@dataclass(frozen=True, slots=True)
class DeviceList:
    """An encoded ``ListAndWatchResponse`` and how many devices it has, by health."""

    encoded: bytes = b""
    healthy: int = 0
    unhealthy: int = 0


def device_list(plugin: PluginResource, node: NodeDevices, ids: DeviceIds) -> DeviceList:
    """Every device of ``plugin`` on ``node``.

    The list is kept encoded, one block instead of thousands of objects (8 GPUs of 141 GiB are 9,000 devices); the
    concatenation of encoded parts is the encoded whole.
    """
    parts: list[bytes] = []
    healthy = unhealthy = 0
    for device in node.devices:
        its = plugin.ids_of(device, node, ids)
        numa_node = device.numa_node if plugin.has_numa_hints else -1
        parts += _encoded(its, HEALTHY if device.healthy else UNHEALTHY, numa_node)
        if device.healthy:
            healthy += len(its)
        else:
            unhealthy += len(its)
    return DeviceList(b"".join(parts), healthy, unhealthy)


def _encoded(ids: list[str], health: str, numa_node: int) -> Iterator[bytes]:
    """In small parts, so that few messages exist at a time."""
    near = None if numa_node < 0 else TopologyInfo(nodes=[NUMANode(ID=numa_node)])
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        part = ListAndWatchResponse(
            devices=[PluginDevice(ID=one, health=health, topology=near) for one in some]
        )
        yield part.SerializeToString()
