"""The kubelet's side of DRA over real gRPC sockets: it watches its folder of plugins, registers, prepares
and unprepares.

Based on k8s.io/kubernetes ``pkg/kubelet/pluginmanager`` and ``pkg/kubelet/cm/dra``.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

from gpushare.kubeletapi import dra_pb2 as pb
from gpushare.kubeletapi import drahealth_pb2
from gpushare.kubeletapi import pluginregistration_pb2 as registration
from gpushare.kubeletapi.dra_pb2_grpc import DRAPluginStub
from gpushare.kubeletapi.pluginregistration_pb2_grpc import RegistrationStub
from tests.integration.nodeagent.changing import Changes

_CALL_S = 30.0


class PrepareFailed(Exception):
    """The plugin's error for the claim."""


class DraKubelet:
    """``folder`` is its folder of plugins."""

    def __init__(self, folder: Path, changes: Changes) -> None:
        self.folder = folder
        self.changes = changes
        folder.mkdir(parents=True, exist_ok=True)

    def sockets(self) -> list[Path]:
        return sorted(
            one for one in self.folder.iterdir() if one.is_socket() and not one.name.startswith(".")
        )

    async def register(self, refusal: str = "") -> registration.PluginInfo:
        """Wait for the only plugin's socket, get its information, and report that it is registered, or why not."""
        await self.changes.until(lambda: len(self.sockets()) == 1, "a plugin's socket")
        async with self._channel() as channel:
            stub = RegistrationStub(channel)
            info: registration.PluginInfo = await stub.GetInfo(
                registration.InfoRequest(), timeout=_CALL_S, wait_for_ready=True
            )
            status = registration.RegistrationStatus(plugin_registered=not refusal, error=refusal)
            await stub.NotifyRegistrationStatus(status, timeout=_CALL_S)
        return info

    async def prepare(self, claim: dict[str, Any]) -> list[pb.Device]:
        """The devices of the claim; raises ``PrepareFailed``."""
        request = pb.NodePrepareResourcesRequest(claims=[_named(claim)])
        async with self._channel() as channel:
            answer = await DRAPluginStub(channel).NodePrepareResources(request, timeout=_CALL_S)
        (found,) = (answer.claims[uid] for uid in answer.claims)
        if found.error:
            raise PrepareFailed(found.error)
        return list(found.devices)

    async def unprepare(self, claim: dict[str, Any]) -> None:
        """Raises ``PrepareFailed``."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_named(claim)])
        async with self._channel() as channel:
            answer = await DRAPluginStub(channel).NodeUnprepareResources(request, timeout=_CALL_S)
        if error := answer.claims[claim["metadata"]["uid"]].error:
            raise PrepareFailed(error)

    async def health(self, service: str) -> AsyncIterator[dict[str, tuple[str, str]]]:
        """Health and message by device, of each report. ``service`` is the one that kubelets of a version use."""
        async with self._channel() as channel:
            watch = channel.unary_stream(
                f"/{service}/NodeWatchResources",
                request_serializer=drahealth_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=drahealth_pb2.NodeWatchResourcesResponse.FromString,
            )
            async for report in watch(drahealth_pb2.NodeWatchResourcesRequest(), timeout=_CALL_S):
                yield {
                    one.device.device_name: (drahealth_pb2.HealthStatus.Name(one.health), one.message)
                    for one in report.devices
                }

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"unix:{self.sockets()[-1]}")


def _named(claim: dict[str, Any]) -> pb.Claim:
    metadata = claim["metadata"]
    return pb.Claim(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def allocated(
    name: str, *shares: tuple[str, str, int], uid: str = "", node: str = "n1", **result: Any
) -> dict[str, Any]:
    """A ResourceClaim that kube-scheduler has allocated: (device, memory, compute) for each of its requests."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": uid or f"uid-of-{name}"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": f"gpu{number}",
                            "driver": "gpushare.dev",
                            "pool": node,
                            "device": device,
                            "shareID": f"00000000-0000-0000-0000-{number:012}",
                            "consumedCapacity": {"memory": memory, "compute": str(compute), "shares": "1"},
                            **result,
                        }
                        for number, (device, memory, compute) in enumerate(shares)
                    ]
                }
            }
        },
    }
