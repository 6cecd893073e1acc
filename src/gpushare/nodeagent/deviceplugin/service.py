"""The kubelet's ``DevicePlugin`` service for one resource."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio

from gpushare.kubeletapi import deviceplugin_pb2 as pb
from gpushare.kubeletapi.deviceplugin_pb2_grpc import DevicePluginServicer
from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.deviceplugin.device_lists import DeviceList
from gpushare.nodeagent.deviceplugin.resource import Decider
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.kubelet_calls import to_completion

#: ``pre_start_required`` stays off: with it no container restarts while the node agent is down.
OPTIONS = pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


class DeviceFeed:
    """The current device list of one resource, and a signal when it changes."""

    def __init__(self) -> None:
        self.current = DeviceList()
        self._changed = asyncio.Event()

    def put(self, devices: DeviceList) -> bool:
        """Replace the list; whether it differs."""
        if devices == self.current:
            return False
        self.current = devices
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def follow(self) -> AsyncIterator[bytes]:
        """The current list, encoded, then each newer one (skipping those in between)."""
        while True:
            changed, encoded = self._changed, self.current.encoded
            yield encoded
            await changed.wait()


class DevicePlugin(DevicePluginServicer):
    """One resource, served from its feed and by the decider."""

    def __init__(self, resource: str, feed: DeviceFeed, decider: Decider) -> None:
        self._resource = resource
        self._feed = feed
        self._decider = decider
        self._in_progress = 0
        self.on_followed: Callable[[], None] = lambda: None
        """Called when a client begins to follow the device list."""
        self.on_cut: Callable[[], None] = lambda: None
        """Called when a client that followed the device list disconnects."""

    @property
    def busy(self) -> bool:
        """Whether a call is in progress."""
        return self._in_progress > 0

    async def GetDevicePluginOptions(  # noqa: N802 - the kubelet's name
        self, request: pb.Empty, context: Any
    ) -> pb.DevicePluginOptions:
        """Preferences, and nothing before a container starts."""
        return OPTIONS

    async def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: Any
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Every device, again whenever one changes."""
        self.on_followed()
        try:
            async for encoded in self._feed.follow():
                # Decoded only for sending: thousands of devices are small only as bytes.
                yield pb.ListAndWatchResponse.FromString(encoded)
        finally:
            self.on_cut()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        """The IDs on the GPUs that the scheduler decided for."""
        with self._call():
            return await self._preferred(request, context)

    async def _preferred(
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            try:
                ids = await self._decider.prefer(
                    self._resource,
                    one.allocation_size,
                    list(one.available_deviceIDs),
                    list(one.must_include_deviceIDs),
                )
            except AllocationRefused as refusal:
                await _refuse(context, refusal)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802
        """What containers with these IDs receive."""
        containers = [list(one.devices_ids) for one in request.container_requests]
        with self._call():
            try:
                injections = await to_completion(self._decider.allocate(self._resource, containers))
            except AllocationRefused as refusal:
                await _refuse(context, refusal)
        return pb.AllocateResponse(container_responses=[_response(one) for one in injections])

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        """Nothing; the kubelet does not call it."""
        return pb.PreStartContainerResponse()

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1


async def _refuse(context: Any, refusal: AllocationRefused) -> NoReturn:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
    raise AssertionError("abort raises")


def _response(one: Injection) -> pb.ContainerAllocateResponse:
    answer = pb.ContainerAllocateResponse(envs=one.envs, annotations=one.annotations)
    for mount in one.mounts:
        answer.mounts.add(
            container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
        )
    for node in one.devices:
        answer.devices.add(
            container_path=node.container_path, host_path=node.host_path, permissions=node.permissions
        )
    for name in one.cdi_devices:
        answer.cdi_devices.add(name=name)
    return answer
