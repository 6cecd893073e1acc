"""Serves one resource to the kubelet, and registers it again whenever the kubelet may have lost it.

A kubelet that starts wipes the folder's sockets: our own socket vanishing is the one sure sign
(``kubelet.sock`` may come back with its old inode number). A kubelet that runs and hangs up on our device list counts
every device as gone; it does so too when the list of an agent before us ends. We serve, dial ourselves, and only
then register: the kubelet dials back at once.

That it has taken a registration does not say that it has our devices: when an earlier list ends in that moment it hangs
up on us before it has asked for ours, and never does. So we are registered when it follows our list, and not before.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

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
from gpushare.nodeagent.deviceplugin.open_connections import connections_to
from gpushare.nodeagent.deviceplugin.service import OPTIONS, DevicePlugin
from gpushare.nodeagent.observability.metrics import Metrics

logger = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
_LOOK_S: Final = 0.25
_DIAL_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_MOST_S: Final = 2.0
#: A kubelet that hangs up sooner than this after a registration has something against us.
_SOON_S: Final = 5.0
#: How long a kubelet that has taken a registration is given to ask for the devices, at first and at most.
_ASKS_FIRST_S: Final = 2.0
_ASKS_MOST_S: Final = 16.0

_LEFT_OPEN: Final[list[Any]] = []
"""Servers that end with the process alone: whatever else ends one hangs up on the kubelet."""


class ResourceServer:
    """One resource's gRPC server and its registration, at the socket ``path``.

    ``on_registered`` is called after each registration, with the resource and when it began (the kubelet may ask before it
    has answered). While ``acts`` says no, a newer agent registers instead. It is ``registered`` while the kubelet follows its devices.
    """

    def __init__(
        self,
        resource: str,
        plugin: DevicePlugin,
        path: Path,
        *,
        metrics: Metrics,
        clock: Clock,
        acts: Callable[[], bool],
        on_registered: Callable[[str, float], None],
    ) -> None:
        self._resource = resource
        self._plugin = plugin
        self._path = path
        self._kubelet = path.parent / KUBELET_SOCKET
        self._metrics = metrics
        self._clock = clock
        self._acts = acts
        self._on_registered = on_registered
        self._news = asyncio.Event()
        self._registered_at_s = 0.0
        self._followers = 0
        self._cut = False
        self._asks = Backoff(_ASKS_FIRST_S, _ASKS_MOST_S)
        self._asks_until_s: float | None = None
        """Until when the kubelet may ask for the devices of the last registration; ``None``: no registration waits for that."""
        self._stays_open = False
        self.registered = False
        plugin.on_followed, plugin.on_cut = self._on_followed, self._on_cut

    @property
    def busy(self) -> bool:
        """Whether the kubelet waits for an answer."""
        return self._plugin.busy

    def register_again(self) -> None:
        """The kubelet may not think of us any more."""
        self.registered = False
        self._asks_until_s = None
        self._news.set()

    def _on_followed(self) -> None:
        self._followers += 1
        if self._asks_until_s is not None:
            self._followed()

    def _on_cut(self) -> None:
        self._cut = True
        self.register_again()

    def _followed(self) -> None:
        self.registered = True
        self._asks_until_s = None
        self._asks.reset()
        self._news.set()
        logger.info("%s is registered with the kubelet", self._resource)

    def connections(self) -> list[socket.socket]:
        """A second handle of each connection that the kubelet has with us; the caller closes them."""
        return connections_to(self._path)

    def stay_open(self) -> None:
        """Hang up on nobody when ``run`` is cancelled: another process keeps our connections."""
        self._stays_open = True

    async def run(self) -> None:
        """Serve and keep registered until cancelled."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S)
        cuts = Backoff(_RETRY_FIRST_S)
        while True:
            try:
                async with self._served() as inode:
                    while inode is not None and self._inode() == inode:
                        if self.registered or not self._acts() or self._may_ask():
                            await self._pause(_LOOK_S)
                            continue
                        await self._hold_back(cuts)
                        if not self._acts():
                            # A newer agent came meanwhile. Who registers last is asked, and we shall leave.
                            continue
                        try:
                            await self._register()
                        except grpc.aio.AioRpcError as error:
                            await self._wait(backoff, f"{error.code().name}: {error.details()}")
                        else:
                            backoff.reset()
                logger.warning("%s has vanished: the kubelet was restarted", self._path)
            except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                await self._wait(backoff, f"cannot serve {self._path} ({error})")
            finally:
                self.registered = False
                self._asks_until_s = None

    def _may_ask(self) -> bool:
        """Whether the kubelet is about to ask for the devices, as far as we know."""
        if self._asks_until_s is None:
            return False
        if self._clock.monotonic() < self._asks_until_s:
            return True
        self._asks_until_s = None
        logger.warning(
            "the kubelet accepted the registration of %s but does not list its devices; registering again",
            self._resource,
        )
        return False

    async def _hold_back(self, cuts: Backoff) -> None:
        """Be quick after the kubelet hung up once, and slow when it goes on so."""
        if not self._cut:
            return
        self._cut = False
        if self._clock.monotonic() - self._registered_at_s >= _SOON_S:
            cuts.reset()
        hasty = cuts.tries > 0
        wait_s = cuts.next_s()
        if hasty:
            logger.warning(
                "the kubelet keeps closing the connection of %s; retrying in %.1f s", self._resource, wait_s
            )
            await self._clock.sleep(wait_s)

    async def _pause(self, seconds: float) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[int | None]:
        """A server on a fresh socket, which answers; the socket's inode number."""
        if not self._path.parent.is_dir():
            raise FileNotFoundError(f"no folder {self._path.parent}")
        self._path.unlink(missing_ok=True)
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{self._path}")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._path}") as channel:
                stub = DevicePluginStub(channel)  # type: ignore[no-untyped-call]
                await stub.GetDevicePluginOptions(Empty(), timeout=_DIAL_S, wait_for_ready=True)
            yield self._inode()
        finally:
            if self._stays_open:
                _LEFT_OPEN.append(server)
            else:
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
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            stub = RegistrationStub(channel)  # type: ignore[no-untyped-call]
            began_at_s, followers, self._cut = self._clock.monotonic(), self._followers, False
            await stub.Register(request, timeout=_DIAL_S)
        self._registered_at_s = self._clock.monotonic()
        self._metrics.registrations.add(self._resource)
        self._on_registered(self._resource, began_at_s)
        if self._cut:
            # Meanwhile, and it may be this one that was hung up on.
            return
        self._asks_until_s = self._registered_at_s + self._asks.next_s()
        if self._followers > followers:
            self._followed()

    async def _wait(self, backoff: Backoff, why: str) -> None:
        wait_s = backoff.next_s()
        logger.warning(
            "%s is not registered with the kubelet (%s); retrying in %.1f s", self._resource, why, wait_s
        )
        await self._clock.sleep(wait_s)

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except OSError:
            return None
