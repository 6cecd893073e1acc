"""The kubelet's pod resources interface: which devices containers have."""

import asyncio
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import grpc
import grpc.aio

from gpushare.api.node.other_plugins import gpu_of, is_of_other_plugin
from gpushare.kubeletapi.podresources_pb2 import (
    EncodedPodResourcesResponse,
    ListPodResourcesRequest,
    PodResources,
)
from gpushare.nodeagent.allocate.grant_log import DeviceListing, DevicesByContainer
from gpushare.nodeagent.errors import PodResourcesUnavailable
from gpushare.nodeagent.modes.rules import all_plugins

#: The list has an entry per device, each with its resource's name: long lists exceed gRPC's default of 4 MiB.
_MOST_BYTES: Final = 64 << 20
#: Entries after which other tasks of the event loop run: an ``Allocate`` may wait.
_ENTRIES_AT_ONCE: Final = 500


class Listing(Protocol):
    """Source of the kubelet's list."""

    @property
    def held_by_others(self) -> Mapping[str, str]:
        """GPUs (UUIDs) that another device plugin has allocated, by the last list, and to which pod."""

    async def read(self, timeout_s: float) -> DeviceListing:
        """``namespace/name`` → (container, resource) → our IDs; raises ``PodResourcesUnavailable``."""


class _Entry(NamedTuple):
    """A pod of the list: ``namespace/name``, our devices that it has, and GPUs (UUIDs) that it holds by other device plugins."""

    key: str
    devices: DevicesByContainer
    held_by_others: dict[str, str]


class KubeletPodResources:
    """The socket of a real kubelet."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._ours = all_plugins()
        self.held_by_others: Mapping[str, str] = {}
        self._read: dict[bytes, _Entry] = {}
        """Entries of the last list, by how they were encoded: most do not change, and parsing is slow."""

    async def read(self, timeout_s: float) -> DeviceListing:
        """``namespace/name`` → (container, resource) → our IDs; raises ``PodResourcesUnavailable``."""
        options = [("grpc.max_receive_message_length", _MOST_BYTES)]
        # One channel per call: after a restart of the kubelet an old channel would wait for its back-off first.
        async with grpc.aio.insecure_channel(f"unix://{self._socket}", options=options) as channel:
            call = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=ListPodResourcesRequest.SerializeToString,
                response_deserializer=EncodedPodResourcesResponse.FromString,
            )
            try:
                answer = await call(ListPodResourcesRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                raise PodResourcesUnavailable(
                    f"pod resources socket {self._socket}",
                    f"{error.code().name}: {error.details()}; check that the kubelet runs and that the folder is mounted",
                ) from None
        read = {}
        others: dict[str, str] = {}
        fresh = 0
        for encoded in answer.pod_resources:
            known = self._read.get(encoded)
            if known is None:
                pod = PodResources.FromString(encoded)
                key = f"{pod.namespace}/{pod.name}"
                known = _Entry(key, _devices(pod, self._ours), dict(_of_others(pod)))
                fresh += 1 + sum(len(container.devices) for container in pod.containers)
            read[encoded] = known
            others |= known.held_by_others
            if fresh > _ENTRIES_AT_ONCE:
                fresh = 0
                await asyncio.sleep(0)
        self._read = read
        self.held_by_others = others
        return {entry.key: entry.devices for entry in read.values()}


def _of_others(pod: PodResources) -> Iterator[tuple[str, str]]:
    """GPUs (UUIDs) that another device plugin has allocated to the pod, and for messages by whom they are held."""
    for container in pod.containers:
        for entry in container.devices:
            if is_of_other_plugin(entry.resource_name):
                for uuid in filter(None, map(gpu_of, entry.device_ids)):
                    yield (
                        uuid,
                        f"allocated as {entry.resource_name} to pod {pod.namespace}/{pod.name} until it ends",
                    )


def _devices(pod: PodResources, ours: Container[str]) -> dict[tuple[str, str], frozenset[str]]:
    devices: dict[tuple[str, str], list[str]] = {}
    for container in pod.containers:
        for entry in container.devices:
            if entry.resource_name in ours:
                devices.setdefault((container.name, entry.resource_name), []).extend(entry.device_ids)
    return {name: frozenset(ids) for name, ids in devices.items()}
