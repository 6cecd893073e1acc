"""What a node advertises: the resources of each mode, and the device list of each resource."""

from collections.abc import Mapping
from typing import Final

from gpushare.kubeletapi.deviceplugin_pb2 import Device as PluginDevice
from gpushare.kubeletapi.deviceplugin_pb2 import ListAndWatchResponse
from gpushare.model import names
from gpushare.model.device import Device, NodeDevices, NodeMode
from gpushare.nodeagent.device_ids import DeviceIds

#: Every resource that this program may advertise, and the socket that it is served on.
SOCKETS: Final = {
    names.GPU_MEM: "gpushare-gpu-mem.sock",
    names.GPU_CORE: "gpushare-gpu-core.sock",
    names.GPU_WHOLE: "gpushare-gpu.sock",
}
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
EMPTY: Final = ListAndWatchResponse()


def resources_of(mode: NodeMode) -> tuple[str, ...]:
    """The resources of a mode (spec §1); ``aliyun.com/gpu-count`` is written into the node's status instead."""
    if mode is NodeMode.TOPOLOGY:
        return (names.GPU_WHOLE,)
    if mode.gives_core:
        return (names.GPU_MEM, names.GPU_CORE)
    return (names.GPU_MEM,) if mode.shares_memory else ()


def device_list(resource: str, node: NodeDevices, ids: DeviceIds) -> ListAndWatchResponse:
    """Every device of ``resource`` on ``node``.

    No NUMA hints: with them the kubelet's topology manager would choose IDs by NUMA node, or refuse the pod,
    after the scheduler has decided for a GPU. The message is put together from one encoded part a GPU: so
    it lives in one block instead of thousands of objects (8 GPUs of 141 GiB are 9,000 devices).
    """
    parts = [_encoded(device, _ids(resource, device, node, ids)) for device in node.devices]
    return ListAndWatchResponse.FromString(b"".join(parts))


def _ids(resource: str, device: Device, node: NodeDevices, ids: DeviceIds) -> list[str]:
    if resource == names.GPU_MEM:
        return ids.memory_ids(device, node.unit)
    return ids.core_ids(device) if resource == names.GPU_CORE else [ids.whole_id(device)]


def _encoded(device: Device, ids: list[str]) -> bytes:
    health = HEALTHY if device.healthy else UNHEALTHY
    part = ListAndWatchResponse(devices=[PluginDevice(ID=one, health=health) for one in ids])
    return part.SerializeToString()


def counts(message: ListAndWatchResponse) -> Mapping[str, int]:
    """How many devices of each health a list has."""
    counted = {HEALTHY: 0, UNHEALTHY: 0}
    for device in message.devices:
        counted[device.health] += 1
    return counted
