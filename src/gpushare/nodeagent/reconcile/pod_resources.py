"""The kubelet's pod resources interface: which devices containers have."""

import asyncio
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio

from gpushare.api.node.other_plugins import gpu_of, is_of_other_plugin
from gpushare.kubeletapi.podresources_pb2 import ListPodResourcesRequest, PodResources
from gpushare.kubeletapi.podresources_pb2_grpc import PodResourcesListerStub
from gpushare.nodeagent.allocate.grant_log import DeviceListing
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
        """``namespace/name`` → (container, resource) → IDs of ours; raises ``PodResourcesUnavailable``."""


class KubeletPodResources:
    """The socket of a real kubelet."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._ours = all_plugins()
        self.held_by_others: Mapping[str, str] = {}
        self._read: dict[bytes, tuple[dict[tuple[str, str], frozenset[str]], dict[str, str]]] = {}
        """Parsed entries of the last list by pod: most do not change, and parsing is slow."""

    async def read(self, timeout_s: float) -> DeviceListing:
        """``namespace/name`` → (container, resource) → IDs of ours; raises ``PodResourcesUnavailable``."""
        options = [("grpc.max_receive_message_length", _MOST_BYTES)]
        # One channel per call: after a restart of the kubelet an old channel would wait for its back-off first.
        async with grpc.aio.insecure_channel(f"unix://{self._socket}", options=options) as channel:
            stub = PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = await stub.List(ListPodResourcesRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                raise PodResourcesUnavailable(
                    f"pod resources socket {self._socket}",
                    f"{error.code().name}: {error.details()}; is the kubelet up, is the folder mounted?",
                ) from None
        listing: dict[str, dict[tuple[str, str], frozenset[str]]] = {}
        read = {}
        others: dict[str, str] = {}
        fresh = 0
        for pod in answer.pod_resources:
            part = pod.SerializeToString()
            known = self._read.get(part)
            if known is None:
                known = (_devices(pod, self._ours), dict(_of_others(pod)))
                fresh += 1 + sum(len(container.devices) for container in pod.containers)
            read[part] = known
            listing[f"{pod.namespace}/{pod.name}"], held = known
            others |= held
            if fresh > _ENTRIES_AT_ONCE:
                fresh = 0
                await asyncio.sleep(0)
        self._read = read
        self.held_by_others = others
        return listing


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
