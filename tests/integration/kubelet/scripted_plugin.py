"""A device plugin scripted by a test, over real gRPC."""

import asyncio
import select

import grpc
from grpc import aio

from gpushare.kubeletapi import deviceplugin_pb2 as pb
from gpushare.kubeletapi import deviceplugin_pb2_grpc as rpc
from gpushare.kubeletapi import podresources_pb2 as resources_pb
from gpushare.kubeletapi import podresources_pb2_grpc as resources_rpc
from gpushare_playground.kubelet.paths import Folders


class ScriptedPlugin(rpc.DevicePluginServicer):
    """Serves one resource; ``devices`` is ID → healthy; calls are recorded."""

    def __init__(
        self, folders: Folders, resource="example.com/part", devices=None, *, prefers=True, pre_start=False
    ):
        self.folders = folders
        self.resource = resource
        self.devices = (
            devices if devices is not None else {f"{gpu}-{part}": True for gpu in "01" for part in range(4)}
        )
        self.prefers = prefers
        self.pre_start = pre_start
        self.socket = folders.device_plugins / (resource.replace("/", "-") + ".sock")
        self.preferences = []
        self.allocations = []
        self.pre_started = []
        self.refusal = ""
        self.gate = asyncio.Event()
        self.gate.set()
        self.prefer = lambda available, must, size: sorted(available)[:size]
        self.answer = lambda ids: {"envs": {"DEVICES": ",".join(sorted(ids))}}
        self._changed = asyncio.Event()
        self._server = None

    async def serve(self):
        self.socket.unlink(missing_ok=True)
        self._server = aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        return self

    async def register(self, **changes):
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=self.socket.name, resource_name=self.resource
        )
        for name, value in changes.items():
            setattr(request, name, value)
        async with aio.insecure_channel(f"unix:{self.folders.registration_socket}") as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=15)
        return self

    async def start(self):
        """Serve, register, and wait until the kubelet has the devices."""
        await self.serve()
        await self.register()
        healthy = {one for one, good in self.devices.items() if good}
        async with asyncio.timeout(15):
            while await self._known() != healthy:
                await asyncio.to_thread(select.select, [], [], [], 0.01)
        return self

    async def _known(self):
        async with aio.insecure_channel(f"unix:{self.folders.pod_resources_socket}") as channel:
            stub = resources_rpc.PodResourcesListerStub(channel)
            answer = await stub.GetAllocatableResources(resources_pb.AllocatableResourcesRequest(), timeout=5)
        return {
            device
            for one in answer.devices
            if one.resource_name == self.resource
            for device in one.device_ids
        }

    async def die(self):
        """As when the process is killed: the connection closes immediately."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        self.socket.unlink(missing_ok=True)

    def change(self, devices):
        self.devices = devices
        self._changed.set()

    async def GetDevicePluginOptions(self, request, context):  # noqa: N802
        return pb.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=self.prefers
        )

    async def ListAndWatch(self, request, context):  # noqa: N802
        while True:
            self._changed.clear()
            listed = [
                pb.Device(ID=one, health="Healthy" if good else "Unhealthy")
                for one, good in self.devices.items()
            ]
            yield pb.ListAndWatchResponse(devices=listed)
            await self._changed.wait()

    async def GetPreferredAllocation(self, request, context):  # noqa: N802
        answer = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
            self.preferences.append((available, must, one.allocation_size))
            answer.container_responses.add(deviceIDs=self.prefer(available, must, one.allocation_size))
        return answer

    async def Allocate(self, request, context):  # noqa: N802
        await self.gate.wait()
        ids = list(request.container_requests[0].devices_ids)
        self.allocations.append(ids)
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(**self.answer(ids))])

    async def PreStartContainer(self, request, context):  # noqa: N802
        self.pre_started.append(list(request.devices_ids))
        return pb.PreStartContainerResponse()
