"""Device plugins: they register here, and the kubelet connects to them.

As in the real kubelet: sockets of an earlier process are removed before the registration socket is opened, a plugin
must already serve when it registers, its device list is a stream whose end means that the plugin is gone,
and a message above 4 MiB is rejected.
"""

import asyncio
import logging
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc import aio

from gpushare.kubeletapi import DEVICE_PLUGIN_VERSION, MAX_MESSAGE_BYTES
from gpushare.kubeletapi import deviceplugin_pb2 as pb
from gpushare.kubeletapi import deviceplugin_pb2_grpc as rpc
from gpushare_playground.kubelet.devicemanager.devices import DeviceBook
from gpushare_playground.kubelet.errors import BadSettings, DeviceUnavailable
from gpushare_playground.kubelet.paths import Folders, check_socket_path

DIAL_TIMEOUT_S: Final = 10.0
CALL_TIMEOUT_S: Final = 60.0
PRE_START_TIMEOUT_S: Final = 30.0
_HEALTHY: Final = "Healthy"
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LIMITS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A plugin that comes back on the same path must not wait for the back-off of its predecessor.
    ("grpc.use_local_subchannel_pool", 1),
)
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Endpoint:
    """The current connection of one plugin."""

    resource: str
    channel: aio.Channel
    stub: rpc.DevicePluginStub
    prefers: bool
    watching: asyncio.Task[None] | None = None


class Plugins(rpc.RegistrationServicer):
    """The registration service and the plugins that registered.

    ``changed`` is called, in the event loop, whenever a plugin changed the book.
    """

    def __init__(
        self,
        folders: Folders,
        book: DeviceBook,
        changed: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = folders
        self._book = book
        self._changed = changed
        self._monotonic = monotonic
        self._endpoints: dict[str, Endpoint] = {}
        self._replaced: list[Endpoint] = []
        """Replaced plugins whose device lists have not ended."""
        self._wants_pre_start: dict[str, bool] = {}
        self._ended: set[asyncio.Task[None]] = set()
        self._server: aio.Server | None = None
        self._changed_event = asyncio.Event()

    async def start(self) -> None:
        """Remove old sockets (not the checkpoint) and serve; raises ``BadSettings``."""
        for path in self._folders.device_plugins.iterdir():
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        self._server = await serve(self._folders.registration_socket, self._add_to)

    def _add_to(self, server: aio.Server) -> None:
        rpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def stop(self) -> None:
        """Disconnect; the book remains."""
        if self._server is not None:
            await self._server.stop(0)
        for resource in list(self._endpoints):
            await self._drop(self._endpoints.pop(resource))
        while self._replaced:
            await self._drop(self._replaced.pop())
        if self._ended:
            await asyncio.wait(self._ended, timeout=1.0)

    def endpoint(self, resource: str) -> Endpoint | None:
        """The plugin that serves ``resource`` now."""
        return self._endpoints.get(resource)

    async def wait_for_change(self, timeout_s: float) -> bool:
        """Wait until any plugin reports a change; ``False`` after ``timeout_s`` seconds without one."""
        self._changed_event.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed_event.wait()
        except TimeoutError:
            return False
        return True

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Called by a plugin that already serves."""
        _log.info("plugin registers (resource %s, endpoint %s)", request.resource_name, request.endpoint)
        problem = _registration_problem(request)
        if not problem:
            try:
                await self._connect(request)
            except aio.AioRpcError as error:
                problem = f"failed to connect to the device plugin {request.endpoint}: {go_error(error)}"
            except BadSettings as error:
                problem = str(error)
        if problem:
            _log.warning("registration refused (resource %s, fault %s)", request.resource_name, problem)
            await context.abort(grpc.StatusCode.UNKNOWN, problem)
        return pb.Empty()

    async def _connect(self, request: pb.RegisterRequest) -> None:
        path = self._folders.device_plugins / request.endpoint
        check_socket_path(path)
        channel = aio.insecure_channel(f"unix:{path}", options=_LIMITS)
        stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        try:
            options = await stub.GetDevicePluginOptions(
                pb.Empty(), timeout=DIAL_TIMEOUT_S, wait_for_ready=True
            )
        except BaseException:
            await channel.close(None)
            raise
        resource = request.resource_name
        endpoint = Endpoint(resource, channel, stub, options.get_preferred_allocation_available)
        self._wants_pre_start[resource] = options.pre_start_required
        earlier = self._endpoints.get(resource)
        self._endpoints[resource] = endpoint
        if earlier is not None:
            self._replaced.append(earlier)
        self._book.connected(resource)
        endpoint.watching = asyncio.create_task(self._watch(endpoint), name=f"ListAndWatch {resource}")

    async def _watch(self, endpoint: Endpoint) -> None:
        """Follow one plugin's device list until the stream ends.

        As in the real kubelet (1.28 to 1.36): a plugin that registers for a resource replaces the previous one, whose list
        is still followed; and whichever of their lists ends, the connection of the last registered one is closed.
        """
        cause = "the plugin ended its device list"
        try:
            async for listed in endpoint.stub.ListAndWatch(pb.Empty()):
                self._book.listed(
                    endpoint.resource, {device.ID: device.health == _HEALTHY for device in listed.devices}
                )
                _log.info("devices listed (resource %s, devices %s)", endpoint.resource, len(listed.devices))
                self._notify()
        except aio.AioRpcError as error:
            cause = go_error(error)
        if endpoint in self._replaced:
            self._replaced.remove(endpoint)
            await endpoint.channel.close(None)
        last = self._endpoints.pop(endpoint.resource, None)
        if last is not None:
            _log.warning("plugin is gone (resource %s, fault %s)", endpoint.resource, cause)
            self._book.disconnected(endpoint.resource, self._monotonic())
            self._notify()
            await last.channel.close(None)

    async def _drop(self, endpoint: Endpoint) -> None:
        if endpoint.watching is not None:
            endpoint.watching.cancel()
            self._ended.add(endpoint.watching)
            endpoint.watching.add_done_callback(self._ended.discard)
        await endpoint.channel.close(None)

    def _notify(self) -> None:
        self._changed_event.set()
        self._changed()

    # --- calls -----------------------------------------------------------------------------------
    async def preferred(
        self, resource: str, available: list[str], required: list[str], size: int
    ) -> set[str]:
        """The devices among ``available`` that the plugin prefers; empty if it has no preference.

        Raises ``DeviceUnavailable`` if the call fails.
        """
        endpoint = self._endpoints.get(resource)
        if endpoint is None or not endpoint.prefers:
            return set()
        request = pb.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=size
        )
        try:
            result = await _response(endpoint.stub.GetPreferredAllocation(request, timeout=CALL_TIMEOUT_S))
        except aio.AioRpcError as error:
            raise DeviceUnavailable(
                resource, f"device plugin GetPreferredAllocation rpc failed with err: {go_error(error)}"
            ) from None
        return {device for response in result.container_responses[:1] for device in response.deviceIDs}

    async def allocate(self, resource: str, devices: list[str]) -> bytes:
        """The plugin's response for one container, encoded; raises ``DeviceUnavailable``."""
        endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise DeviceUnavailable(resource, f"endpoint of {resource} is stopped: its device plugin is gone")
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=devices)
        try:
            result = await _response(endpoint.stub.Allocate(request, timeout=CALL_TIMEOUT_S))
        except aio.AioRpcError as error:
            raise DeviceUnavailable(resource, go_error(error)) from None
        if not result.container_responses:
            raise DeviceUnavailable(resource, f"no containers return in allocation response {result}")
        encoded: bytes = result.container_responses[0].SerializeToString()
        return encoded

    async def pre_start(self, resource: str, devices: list[str]) -> None:
        """Notify the plugin that a container with these devices starts, if it requested that.

        Raises ``DeviceUnavailable`` if the call fails: while such a plugin is absent nothing can start.
        """
        if not self._wants_pre_start.get(resource):
            return
        endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise DeviceUnavailable(
                resource,
                f"device plugin PreStartContainer rpc failed with err: endpoint of {resource} has been stopped",
            )
        try:
            request = pb.PreStartContainerRequest(devices_ids=devices)
            await _response(endpoint.stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_S))
        except aio.AioRpcError as error:
            raise DeviceUnavailable(
                resource, f"device plugin PreStartContainer rpc failed with err: {go_error(error)}"
            ) from None


async def _response(call: Any) -> Any:
    """A call's response; raises ``AioRpcError``.

    When the plugin's device list ends its channel is closed, which cancels the calls in progress:
    the awaiting task must not mistake that for its own cancellation.
    """
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise aio.AioRpcError(
            grpc.StatusCode.CANCELLED,
            aio.Metadata(),
            aio.Metadata(),
            "grpc: the client connection is closing",
            None,
        ) from None


async def serve(path: Path, add: Callable[[aio.Server], None]) -> aio.Server:
    """A gRPC server on a Unix socket; raises ``BadSettings`` if the socket cannot be opened."""
    check_socket_path(path)
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - once, at the start
    server = aio.server()
    add(server)
    try:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
    except RuntimeError as error:
        raise BadSettings(f"socket {path}", f"cannot be opened: {error}") from None
    return server


def go_error(error: aio.AioRpcError) -> str:
    """A gRPC error in the format of the Go client, as in the kubelet's messages."""
    code = error.code().name.title().replace("_", "").replace("Cancelled", "Canceled")
    return f"rpc error: code = {code} desc = {error.details()}"


def _registration_problem(request: pb.RegisterRequest) -> str:
    """Why this registration is rejected, or an empty string."""
    if request.version != DEVICE_PLUGIN_VERSION:
        return (
            f"failed to register device plugin: requested API version {request.version!r} is not supported by "
            f"kubelet. Supported version is {DEVICE_PLUGIN_VERSION!r}"
        )
    name = request.resource_name
    if not _RESOURCE.fullmatch(name) or name.split("/")[0].endswith("kubernetes.io"):
        return f"the ResourceName {name!r} is invalid"
    if not request.endpoint or "/" in request.endpoint or request.endpoint in (".", "..", "kubelet.sock"):
        return f"the endpoint {request.endpoint!r} is no name of a socket in the kubelet's folder"
    return ""
