"""The kubelet's interfaces to a DRA driver: registration, preparation of claims, and health, at one socket in its plugin folder.

The kubelet watches the folder. It asks each new socket for its purpose, stays connected, and deletes the driver's
ResourceSlices of the node if none of its sockets has responded for half a minute. Each agent has its own socket, so that two
successive agents can coexist; the kubelet calls the one that registered last.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from gpushare.api import names
from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import Clock
from gpushare.kubeletapi import DRA_HEALTH_SERVICES, DRA_PLUGIN_TYPE, DRA_SERVICE
from gpushare.kubeletapi import dra_pb2 as pb
from gpushare.kubeletapi import pluginregistration_pb2 as registration
from gpushare.kubeletapi.dra_pb2_grpc import DRAPluginServicer, add_DRAPluginServicer_to_server
from gpushare.kubeletapi.drahealth_pb2 import NodeWatchResourcesRequest, NodeWatchResourcesResponse
from gpushare.kubeletapi.drahealth_pb2_grpc import DRAResourceHealthServicer
from gpushare.kubeletapi.pluginregistration_pb2_grpc import (
    RegistrationServicer,
    RegistrationStub,
    add_RegistrationServicer_to_server,
)
from gpushare.nodeagent.deviceplugin.socket_names import SUFFIX, socket_name
from gpushare.nodeagent.dra.claims import ClaimReference
from gpushare.nodeagent.dra.preparer import ClaimPreparer
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.kubelet_calls import to_completion

logger = logging.getLogger(__name__)

_STEM: Final = f"{names.DRA_DRIVER}-"
_LOOK_S: Final = 1.0
_DIAL_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_MOST_S: Final = 5.0


class DraPlugin(DRAPluginServicer, RegistrationServicer):
    """Serves the kubelet. ``on_registered`` is called when ``refusal`` or ``registered`` changes."""

    def __init__(self, preparer: ClaimPreparer, on_registered: Callable[[], None]) -> None:
        self._preparer = preparer
        self._on_registered = on_registered
        self.registered = False
        self.refusal = ""
        """Why the kubelet rejected this driver."""

    async def GetInfo(self, request: registration.InfoRequest, context: Any) -> registration.PluginInfo:  # noqa: N802
        """A DRA driver, served at the same socket. Kubelets before 1.37 ask for health whether that is listed or not."""
        services = [DRA_SERVICE, *DRA_HEALTH_SERVICES]
        return registration.PluginInfo(
            type=DRA_PLUGIN_TYPE, name=names.DRA_DRIVER, supported_versions=services
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        """The kubelet reports the result of the registration."""
        self.registered, self.refusal = request.plugin_registered, request.error
        if self.registered:
            logger.info("DRA driver %s is registered with the kubelet", names.DRA_DRIVER)
        else:
            logger.error("the kubelet refuses DRA driver %s: %s", names.DRA_DRIVER, self.refusal)
        self._on_registered()
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(  # noqa: N802
        self, request: pb.NodePrepareResourcesRequest, context: Any
    ) -> pb.NodePrepareResourcesResponse:
        """The devices of each claim, or why it has none."""
        answer = pb.NodePrepareResourcesResponse()
        for claim in _named(request.claims):
            answer.claims[claim.uid].CopyFrom(await self._prepared(claim))
        return answer

    async def NodeUnprepareResources(  # noqa: N802
        self, request: pb.NodeUnprepareResourcesRequest, context: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        """An entry for each claim, empty on success."""
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in _named(request.claims):
            error = ""
            try:
                await to_completion(self._preparer.unprepare(claim))
            except AllocationRefused as refusal:
                logger.error("not unprepared: %s", refusal)
                error = refusal.problem
            answer.claims[claim.uid].CopyFrom(pb.NodeUnprepareResourceResponse(error=error))
        return answer

    async def _prepared(self, claim: ClaimReference) -> pb.NodePrepareResourceResponse:
        try:
            devices = await to_completion(self._preparer.prepare(claim))
        except AllocationRefused as refusal:
            logger.error("not prepared: %s", refusal)
            # The kubelet's own message already names the claim.
            return pb.NodePrepareResourceResponse(error=refusal.problem)
        return pb.NodePrepareResourceResponse(
            devices=[
                pb.Device(
                    request_names=[device.allocated.request],
                    pool_name=device.allocated.pool,
                    device_name=device.allocated.device,
                    cdi_device_ids=device.cdi_devices,
                    share_id=device.allocated.share_id or None,
                )
                for device in devices
            ]
        )


def _named(claims: Iterable[pb.Claim]) -> list[ClaimReference]:
    return [ClaimReference(one.namespace, one.name, one.uid) for one in claims]


def _health_handlers(health: DRAResourceHealthServicer) -> "list[grpc.GenericRpcHandler[Any, Any]]":
    """``health`` under each of its names."""
    watch = grpc.unary_stream_rpc_method_handler(
        health.NodeWatchResources,
        request_deserializer=NodeWatchResourcesRequest.FromString,
        response_serializer=NodeWatchResourcesResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch})
        for service in DRA_HEALTH_SERVICES
    ]


class PluginServer:
    """Serves ``plugin`` and ``health`` in the kubelet's plugin ``folder``, at a socket named after ``generation``.

    ``on_change`` is called when ``fault`` changes.
    """

    def __init__(
        self,
        plugin: DraPlugin,
        health: DRAResourceHealthServicer,
        folder: Path,
        generation: int,
        *,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._plugin = plugin
        self._health = health
        self._folder = folder
        self._path = folder / socket_name(_STEM, generation)
        self._clock = clock
        self._on_change = on_change
        self.fault = ""
        """Why nothing is served."""

    async def run(self) -> None:
        """Serve until cancelled, at a new socket whenever the socket is lost."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S)
        while True:
            try:
                async with self._served():
                    self._set_fault("")
                    backoff.reset()
                    while self._path.exists():
                        await asyncio.to_thread(self._remove_dead_sockets)
                        await self._clock.sleep(_LOOK_S)
                logger.warning("%s has vanished and is served again", self._path)
            except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                wait_s = backoff.next_s()
                logger.warning(
                    "DRA driver %s is not served: %s; again in %.1f s", names.DRA_DRIVER, error, wait_s
                )
                self._set_fault(f"it is not served to the kubelet: {error}")
                await self._clock.sleep(wait_s)
            finally:
                self._plugin.registered = False

    def _set_fault(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            self._on_change()

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        if not self._folder.is_dir():
            raise FileNotFoundError(f"no folder {self._folder}; mount it into the node agent")
        self._path.unlink(missing_ok=True)
        server = grpc.aio.server()
        add_DRAPluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        add_RegistrationServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        server.add_generic_rpc_handlers(_health_handlers(self._health))
        server.add_insecure_port(f"unix:{self._path}")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._path}") as channel:
                stub = RegistrationStub(channel)  # type: ignore[no-untyped-call]
                await stub.GetInfo(registration.InfoRequest(), timeout=_DIAL_S, wait_for_ready=True)
            yield
        finally:
            await server.stop(grace=None)
            # An error here would replace a cancellation, and we would go on serving.
            with suppress(OSError):
                self._path.unlink()

    def _remove_dead_sockets(self) -> None:
        """Remove sockets of agents that died: otherwise the kubelet would retry them indefinitely."""
        for path in self._folder.glob(f"{_STEM}*{SUFFIX}"):
            if path == self._path:
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, suppress(OSError):
                other.settimeout(_DIAL_S)
                try:
                    other.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink(missing_ok=True)
                    logger.info("%s was left by an agent that is gone", path)
