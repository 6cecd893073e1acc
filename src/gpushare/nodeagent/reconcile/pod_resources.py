"""The kubelet's pod resources interface: which devices containers have."""

import asyncio
from collections.abc import Container
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio

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

    async def read(self, timeout_s: float) -> DeviceListing:
        """``namespace/name`` → (container, resource) → IDs of ours; raises ``PodResourcesUnavailable``."""


class KubeletPodResources:
    """The socket of a real kubelet."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._ours = all_plugins()
        self._read: dict[bytes, tuple[str, DevicesByContainer]] = {}
        """Entries of the last list, by how they were encoded: most do not change, and parsing is slow."""

    async def read(self, timeout_s: float) -> DeviceListing:
        """``namespace/name`` → (container, resource) → IDs of ours; raises ``PodResourcesUnavailable``."""
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
                    f"{error.code().name}: {error.details()}; is the kubelet up, is the folder mounted?",
                ) from None
        read = {}
        fresh = 0
        for encoded in answer.pod_resources:
            known = self._read.get(encoded)
            if known is None:
                pod = PodResources.FromString(encoded)
                known = f"{pod.namespace}/{pod.name}", _devices(pod, self._ours)
                fresh += 1 + sum(len(container.devices) for container in pod.containers)
            read[encoded] = known
            if fresh > _ENTRIES_AT_ONCE:
                fresh = 0
                await asyncio.sleep(0)
        self._read = read
        return dict(read.values())


def _devices(pod: PodResources, ours: Container[str]) -> dict[tuple[str, str], frozenset[str]]:
    devices: dict[tuple[str, str], list[str]] = {}
    for container in pod.containers:
        for entry in container.devices:
            if entry.resource_name in ours:
                devices.setdefault((container.name, entry.resource_name), []).extend(entry.device_ids)
    return {name: frozenset(ids) for name, ids in devices.items()}
