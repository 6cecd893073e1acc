"""Serves one resource to the kubelet, and again whenever the kubelet was started anew.

A kubelet that starts wipes the folder's sockets: our own socket vanishing is the one sure sign
(``kubelet.sock`` may come back with its old inode number). We serve, dial ourselves, and only then register: the
kubelet dials back at once.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import Clock
from gpushare.kubeletapi import DEVICE_PLUGIN_VERSION
from gpushare.kubeletapi.deviceplugin_pb2 import Empty, RegisterRequest
from gpushare.kubeletapi.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from gpushare.nodeagent.metrics import Metrics
from gpushare.nodeagent.plugin import OPTIONS, DevicePlugin

logger = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
_LOOK_S: Final = 0.25
_DIAL_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_MOST_S: Final = 2.0


class ResourceServer:
    """One resource's gRPC server and its registration. ``on_registered`` is called after each registration."""

    def __init__(
        self,
        resource: str,
        plugin: DevicePlugin,
        folder: Path,
        socket: str,
        *,
        metrics: Metrics,
        clock: Clock,
        on_registered: Callable[[], None],
    ) -> None:
        self._resource = resource
        self._plugin = plugin
        self._path = folder / socket
        self._kubelet = folder / KUBELET_SOCKET
        self._metrics = metrics
        self._clock = clock
        self._on_registered = on_registered
        self.registered = False

    async def run(self) -> None:
        """Serve and keep registered until cancelled."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S)
        while True:
            try:
                async with self._served() as inode:
                    while inode is not None and self._inode() == inode:
                        if self.registered:
                            await self._clock.sleep(_LOOK_S)
                            continue
                        try:
                            await self._register()
                        except grpc.aio.AioRpcError as error:
                            await self._wait(backoff, f"{error.code().name}: {error.details()}")
                        else:
                            backoff.reset()
                logger.warning("%s has vanished: the kubelet was started anew", self._path)
            except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                await self._wait(backoff, f"cannot serve {self._path} ({error})")
            finally:
                self.registered = False

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[int | None]:
        """A server on a fresh socket, which answers; the socket's inode number."""
        if not self._path.parent.is_dir():
            raise FileNotFoundError(f"no folder {self._path.parent}")
        self._path.unlink(missing_ok=True)
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix://{self._path}")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix://{self._path}") as channel:
                stub = DevicePluginStub(channel)  # type: ignore[no-untyped-call]
                await stub.GetDevicePluginOptions(Empty(), timeout=_DIAL_S, wait_for_ready=True)
            yield self._inode()
        finally:
            # Stopping removes the file at this path, whoever made it: the next server binds only afterwards.
            await server.stop(grace=None)
            self._path.unlink(missing_ok=True)

    async def _register(self) -> None:
        request = RegisterRequest(
            version=DEVICE_PLUGIN_VERSION,
            endpoint=self._path.name,
            resource_name=self._resource,
            options=OPTIONS,
        )
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet}") as channel:
            stub = RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request, timeout=_DIAL_S)
        self.registered = True
        logger.info("%s is registered with the kubelet", self._resource)
        self._metrics.registrations.add(self._resource)
        self._on_registered()

    async def _wait(self, backoff: Backoff, why: str) -> None:
        wait_s = backoff.next_s()
        logger.warning(
            "%s is not registered with the kubelet (%s); again in %.1f s", self._resource, why, wait_s
        )
        await self._clock.sleep(wait_s)

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except OSError:
            return None
