"""Topology levels of pairs of GPUs from NVML. What it does not report is unknown, never an error."""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Final, NamedTuple

import pynvml

from gpushare.api.node import topology

#: By UUIDs, the lesser first.
GpuPairs = Mapping[tuple[str, str], int]

_PATHS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: topology.SAME_BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: topology.ONE_SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: topology.SEVERAL_SWITCHES,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: topology.SAME_HOST_BRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: topology.SAME_NUMA_NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: topology.OTHER_SOCKET,
}
#: MB/s of a link in each direction if the driver does not report it: those of the slowest NVLink.
_SLOWEST_LINK_MBPS: Final = 20_000


class Seen(NamedTuple):
    """A GPU to examine."""

    uuid: str
    handle: Any
    pci_bus_id: str


class _Links(NamedTuple):
    """MB/s of NVLink from one GPU: to others by UUID, and to switches."""

    direct: dict[str, int]
    switched: int


def near_of(gpus: list[Seen]) -> GpuPairs:
    """The level (``gpushare.api.node.topology``) of each pair of the GPUs, without unknown ones."""
    by_bus = {_bus(gpu.pci_bus_id): gpu.uuid for gpu in gpus if gpu.pci_bus_id}
    links = {gpu.uuid: _links_of(gpu, by_bus) for gpu in gpus}
    levels: dict[tuple[str, str], int] = {}
    for one, other in combinations(gpus, 2):
        level = _by_nvlink(links[one.uuid], links[other.uuid], one.uuid, other.uuid) or _by_pcie(one, other)
        if level:
            levels[pair_of(one.uuid, other.uuid)] = level
    return levels


def pair_of(one: str, other: str) -> tuple[str, str]:
    """The key of two GPUs."""
    return (one, other) if one < other else (other, one)


def _by_nvlink(one: _Links, other: _Links, uuid: str, other_uuid: str) -> int:
    # Both ends count the same links; one may not report them.
    direct = max(one.direct.get(other_uuid, 0), other.direct.get(uuid, 0))
    mbps = direct + min(one.switched, other.switched)
    return min(max(mbps // 1000, topology.LEAST_NVLINK), topology.MOST_NEAR - 1) if mbps else topology.UNKNOWN


def _by_pcie(one: Seen, other: Seen) -> int:
    level = _optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle)
    return topology.UNKNOWN if level is None else _PATHS.get(int(level), topology.UNKNOWN)


def _links_of(gpu: Seen, by_bus: Mapping[str, str]) -> _Links:
    direct: dict[str, int] = {}
    switched = 0
    mbps = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _optional(pynvml.nvmlDeviceGetNvLinkState, gpu.handle, link):
            continue  # missing, inactive, or not reported
        mbps = mbps or _optional(_speed_mbps, gpu.handle) or _SLOWEST_LINK_MBPS
        end = _optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, gpu.handle, link)
        peer = None if end is None else by_bus.get(_bus(end.busId))
        if peer is not None:
            direct[peer] = direct.get(peer, 0) + mbps
            continue
        kind = _optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, gpu.handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            switched += mbps
    return _Links(direct, switched)


def _speed_mbps(handle: Any) -> int:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])[0]
    return int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else 0


def _bus(bus_id: str | bytes) -> str:
    """A PCI address in normal form: domains have 4 digits or 8, letters either case."""
    text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0')}:{rest}"


def _optional(ask: Callable[..., Any], *about: Any) -> Any:
    """The driver's answer; ``None`` on an error."""
    try:
        return ask(*about)
    except pynvml.NVMLError:
        return None
