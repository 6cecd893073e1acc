"""What the kubelet says that containers have: its pod resources interface."""

import asyncio
from collections.abc import Container
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio

from gpushare.kubeletapi.podresources_pb2 import ListPodResourcesRequest, PodResources
from gpushare.kubeletapi.podresources_pb2_grpc import PodResourcesListerStub
from gpushare.nodeagent.allocate.grant_log import DeviceListing
from gpushare.nodeagent.errors import PodResourcesUnavailable
from gpushare.nodeagent.modes.rules import all_plugins

#: One entry a device, with its resource's name again and again: long lists are above gRPC's own 4 MiB.
_MOST_BYTES: Final = 64 << 20
#: After so many entries the event loop gets its turn: an ``Allocate`` may wait.
_ENTRIES_AT_ONCE: Final = 500


class Listing(Protocol):
    """Where the kubelet's list comes from."""

    async def read(self, timeout_s: float) -> DeviceListing:
        """``namespace/name`` → (container, resource) → IDs of ours; raises ``PodResourcesUnavailable``."""


class KubeletPodResources:
    """The socket of a real kubelet."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._ours = all_plugins()
        self._read: dict[bytes, dict[tuple[str, str], frozenset[str]]] = {}
        """What each pod's part of the last list meant: most stay as they are, and to read one is slow."""

    async def read(self, timeout_s: float) -> DeviceListing:
        """``namespace/name`` → (container, resource) → IDs of ours; raises ``PodResourcesUnavailable``."""
        options = [("grpc.max_receive_message_length", _MOST_BYTES)]
        # A channel a call: after a kubelet's restart an old one would sit out its back-off first.
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
        fresh = 0
        for pod in answer.pod_resources:
            part = pod.SerializeToString()
            known = self._read.get(part)
            if known is None:
                known = _devices(pod, self._ours)
                fresh += 1 + sum(len(container.devices) for container in pod.containers)
            read[part] = listing[f"{pod.namespace}/{pod.name}"] = known
            if fresh > _ENTRIES_AT_ONCE:
                fresh = 0
                await asyncio.sleep(0)
        self._read = read
        return listing


def _devices(pod: PodResources, ours: Container[str]) -> dict[tuple[str, str], frozenset[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for container in pod.containers:
        for entry in container.devices:
            if entry.resource_name in ours:
                found.setdefault((container.name, entry.resource_name), []).extend(entry.device_ids)
    return {name: frozenset(ids) for name, ids in found.items()}
