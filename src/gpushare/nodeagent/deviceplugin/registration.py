"""Serves one resource to the kubelet, and registers it again whenever the kubelet may have lost it.

A kubelet that starts removes all sockets in its directory: our own socket vanishing is the only reliable sign (``kubelet.sock`` may
come back with its old inode number). A running kubelet that closes our device list counts every device as gone; it also does
so when the list of the previous agent ends. We serve, dial ourselves, and only then register: the kubelet dials back immediately.

An accepted registration does not mean that the kubelet has our devices: if an earlier list ends in that moment it closes our
connection before it has requested ours, and never does. So we count as registered only once it follows our list.

From 1.37 on a kubelet follows all sockets of a resource, and the end of one list leaves the others alone. It refuses the registration of a
socket that it follows, and would then not notice that socket's end. So there we register again from another socket.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
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
#: A restarted kubelet ends its connection, too, so a look whether the socket is still there rarely finds anything.
_LOOK_S: Final = 2.0
_LOOK_UNSETTLED_S: Final = 0.5
_DIAL_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_MOST_S: Final = 2.0
#: A kubelet that disconnects sooner than this after a registration will probably do so again.
_SOON_S: Final = 5.0
#: How long a kubelet that accepted a registration may take to request the devices, at first and at most.
_ASKS_FIRST_S: Final = 2.0
_ASKS_MOST_S: Final = 16.0

_LEFT_OPEN: Final[list[Any]] = []
"""Servers that end only with the process: anything else that ends one disconnects the kubelet."""


class ResourceServer:
    """One resource's gRPC server and its registration, at the socket ``path``.

    ``on_registered`` is called after each registration, with the resource and when it began (the kubelet may call before it
    has responded). While ``acts`` is false, a newer agent registers instead. ``registered``: the kubelet follows its devices. ``apart``:
    whether it is a kubelet that keeps sockets apart.
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
        apart: Callable[[], bool] = lambda: False,
    ) -> None:
        self._resource = resource
        self._plugin = plugin
        self._first_path = self._path = path
        self._moves = 0
        self._apart = apart
        self._kubelet = path.parent / KUBELET_SOCKET
        self._metrics = metrics
        self._clock = clock
        self._acts = acts
        self._on_registered = on_registered
        self._changed = asyncio.Event()
        self._registered_at_s = 0.0
        self._followers = 0
        self._cut = False
        self._list_wait = Backoff(_ASKS_FIRST_S, _ASKS_MOST_S)
        self._list_expected_s: float | None = None
        """When the kubelet should follow the list of the last registration; ``None``: that is not awaited."""
        self._stays_open = False
        self.registered = False
        plugin.on_followed, plugin.on_cut = self._on_followed, self._on_cut

    @property
    def busy(self) -> bool:
        """Whether a call of the kubelet is in progress."""
        return self._plugin.busy

    def register_again(self) -> None:
        """The kubelet may have forgotten us."""
        self.registered = False
        self._list_expected_s = None
        self._changed.set()

    def _on_followed(self) -> None:
        self._followers += 1
        if self._list_expected_s is not None:
            self._followed()

    def _on_cut(self) -> None:
        self._cut = True
        self.register_again()

    def _followed(self) -> None:
        self.registered = True
        self._list_expected_s = None
        self._list_wait.reset()
        self._changed.set()
        logger.info("%s is registered with the kubelet", self._resource)

    def connections(self) -> list[socket.socket]:
        """A duplicate of each connection of the kubelet that has to outlast this agent; the caller closes them."""
        return [] if self._apart() else connections_to(self._path)

    def stay_open(self) -> None:
        """Close no connection when ``run`` is cancelled: another process holds them."""
        self._stays_open = True

    async def run(self) -> None:
        """Serve and keep registered until cancelled."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S)
        cuts = Backoff(_RETRY_FIRST_S)
        while True:
            try:
                async with self._served() as inode:
                    while inode is not None and self._inode() == inode:
                        if self.registered or not self._acts() or self._awaits_list():
                            await self._pause(_LOOK_S if self.registered else _LOOK_UNSETTLED_S)
                            continue
                        await self._delay(cuts)
                        if not self._acts():
                            # A newer agent appeared meanwhile. The kubelet calls the agent that registered last, and this one will leave.
                            continue
                        if self._apart() and self._is_connected():
                            self._move()
                            break
                        try:
                            await self._register()
                        except grpc.aio.AioRpcError as error:
                            await self._wait(backoff, f"{error.code().name}: {error.details()}")
                        else:
                            backoff.reset()
                    else:
                        logger.warning("%s has vanished: the kubelet was restarted", self._path)
            except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                await self._wait(backoff, f"cannot serve {self._path} ({error})")
            finally:
                self.registered = False
                self._list_expected_s = None

    def _is_connected(self) -> bool:
        connections = connections_to(self._path)
        for one in connections:
            one.close()
        return bool(connections)

    def _move(self) -> None:
        """Serve at another path from now on, which the next agent finds by our generation, too."""
        self._moves += 1
        stem, _, generation = self._first_path.name.rpartition("-")
        self._path = self._first_path.with_name(f"{stem}-{self._moves}-{generation}")

    def _awaits_list(self) -> bool:
        """Whether the kubelet may still follow the list of the last registration."""
        if self._list_expected_s is None:
            return False
        if self._clock.monotonic() < self._list_expected_s:
            return True
        self._list_expected_s = None
        logger.warning(
            "the kubelet accepted the registration of %s but does not list its devices; registering again",
            self._resource,
        )
        return False

    async def _delay(self, cuts: Backoff) -> None:
        """Retry immediately after the first disconnect, and ever more slowly after further ones."""
        if not self._cut:
            return
        self._cut = False
        if self._clock.monotonic() - self._registered_at_s >= _SOON_S:
            cuts.reset()
        repeated = cuts.tries > 0
        wait_s = cuts.next_s()
        if repeated:
            logger.warning(
                "the kubelet keeps closing the connection of %s; retrying in %.1f s", self._resource, wait_s
            )
            await self._clock.sleep(wait_s)

    async def _pause(self, seconds: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[int | None]:
        """A responding server on a new socket; the socket's inode number."""
        path = self._path
        if not path.parent.is_dir():
            raise FileNotFoundError(f"no folder {path.parent}")
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                stub = DevicePluginStub(channel)  # type: ignore[no-untyped-call]
                await stub.GetDevicePluginOptions(Empty(), timeout=_DIAL_S, wait_for_ready=True)
            yield self._inode()
        finally:
            if self._stays_open:
                _LEFT_OPEN.append(server)
            else:
                # Stopping removes the file at this path, no matter which server created it: the next server binds only afterwards.
                await server.stop(grace=None)
            # An error here would replace a cancellation, and we would go on serving.
            with suppress(OSError):
                path.unlink()

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
            # Disconnected meanwhile, perhaps from this registration.
            return
        self._list_expected_s = self._registered_at_s + self._list_wait.next_s()
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
