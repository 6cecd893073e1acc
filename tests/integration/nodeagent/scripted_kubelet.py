"""The kubelet's device manager over real gRPC sockets, one step at a time.

Based on k8s.io/kubernetes ``pkg/kubelet/cm/devicemanager`` (``devicesToAllocate``,
``allocateContainerResources``) and on observation: one pod after the other, init containers first, resources
in any order, IDs of a finished init container used again, preferred IDs requested among all that are free in
random order; a restart wipes the sockets and keeps the checkpoint.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grpc
import grpc.aio

from gpushare.kubeletapi import deviceplugin_pb2 as pb
from gpushare.kubeletapi import deviceplugin_pb2_grpc as rpc
from gpushare.kubeletapi import podresources_pb2 as resources_pb
from gpushare.kubeletapi import podresources_pb2_grpc as resources_rpc
from tests.integration.nodeagent.changing import Changes

_CALL_S = 30.0


#: Before it has requested the devices, or when it has them and has not answered the registration yet.
HangsUp = Literal["unasked", "unanswered"]


class AlreadyConnected(Exception):
    """The kubelet follows a list at that socket."""


class AdmissionFailed(Exception):
    """UnexpectedAdmissionError, with the plugin's own message."""


@dataclass
class Endpoint:
    """A registered plugin: its channel, and the health of each device."""

    socket: str
    channel: grpc.aio.Channel
    stub: Any
    options: pb.DevicePluginOptions
    devices: dict[str, str] = field(default_factory=dict)
    lists: list[int] = field(default_factory=list)
    """Encoded sizes of the lists that came, in bytes."""
    healthy: list[int] = field(default_factory=list)
    """How many devices were healthy in each of them."""
    watch: asyncio.Task[None] | None = None
    alive: bool = True
    resource: str = ""


@dataclass
class Admitted:
    """An admitted pod: container → resource → IDs, and container → environment."""

    pod: dict[str, Any]
    devices: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    envs: dict[str, dict[str, str]] = field(default_factory=dict)
    answers: dict[str, pb.ContainerAllocateResponse] = field(default_factory=dict)
    whole: bool = False
    """Admitted with all its containers."""
    listed: resources_pb.PodResources | None = None


class ScriptedKubelet:
    """``folder`` holds its sockets. ``pick``, when set, overrides which IDs are taken, preference or not."""

    def __init__(self, folder: Path, changes: Changes, *, seed: int = 1) -> None:
        self.plugins_dir = folder / "device-plugins"
        self.resources_socket = folder / "pod-resources.sock"
        self.changes = changes
        self.endpoints: dict[str, Endpoint] = {}
        self.admitted: dict[str, Admitted] = {}
        self.admitting: dict[str, Admitted] = {}
        self.calls: list[str] = []
        self.registrations: list[str] = []
        self.disconnections: list[str] = []
        self.replaced: list[Endpoint] = []
        """Plugins that registered before the present one of their resource."""
        self.listing_works = True
        self.lists_admitting = True
        """Whether a pod is listed before it has all its devices."""
        self.pick: Callable[[str, Sequence[str], int], list[str]] | None = None
        self.apart = False
        """Whether it follows each socket for itself, as from 1.37 on: the end of one leaves the others alone, and none is taken twice."""
        self.hangs_up: list[HangsUp] = []
        """On those who register next, as where an earlier plugin's list ends in that moment."""
        self._random = random.Random(seed)
        self._servers: list[grpc.aio.Server] = []

    # --- lifecycle -----------------------------------------------------------------------------

    async def start(self) -> None:
        self.plugins_dir.mkdir(parents=True, exist_ok=True)
        for socket in self.plugins_dir.glob("*.sock"):
            socket.unlink()
        registration, resources = grpc.aio.server(), grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(_Registration(self), registration)
        registration.add_insecure_port(f"unix://{self.plugins_dir / 'kubelet.sock'}")
        resources_rpc.add_PodResourcesListerServicer_to_server(_PodResources(self), resources)
        resources.add_insecure_port(f"unix://{self.resources_socket}")
        await registration.start()
        await resources.start()
        self._servers = [registration, resources]

    async def stop(self) -> None:
        for endpoint in (*self.endpoints.values(), *self.replaced):
            await _close(endpoint)
        self.endpoints, self.replaced = {}, []
        for server in self._servers:
            await server.stop(grace=None)
        self._servers = []

    async def restart(self) -> None:
        """Stop, wipe the sockets, start; the checkpoint is kept."""
        await self.stop()
        await self.start()

    async def register(self, request: pb.RegisterRequest) -> None:
        assert request.version == "v1beta1"
        if self.apart and any(
            one.socket == request.endpoint for one in self._connected(request.resource_name)
        ):
            raise AlreadyConnected(request.endpoint)
        channel = grpc.aio.insecure_channel(f"unix://{self.plugins_dir / request.endpoint}")
        stub = rpc.DevicePluginStub(channel)
        options = await stub.GetDevicePluginOptions(pb.Empty(), timeout=_CALL_S)
        endpoint = Endpoint(request.endpoint, channel, stub, options, resource=request.resource_name)
        old = self.endpoints.get(request.resource_name)
        if old is not None:
            # It stays connected: its list is followed as before, and counts for the resource.
            endpoint.devices = old.devices
            self.replaced.append(old)
        self.endpoints[request.resource_name] = endpoint
        self.registrations.append(request.resource_name)
        when = self.hangs_up.pop(0) if self.hangs_up else None
        if when == "unasked":
            await self._hang_up(request.resource_name)
            self.changes.notify()
            return
        endpoint.watch = asyncio.create_task(self._watch(request.resource_name, endpoint))
        self.changes.notify()
        if when == "unanswered":
            await self.changes.until(lambda: bool(endpoint.lists), "the devices are listed")
            await self._hang_up(request.resource_name)
            await asyncio.wait([endpoint.watch])
            # The plugin is known by the time when it answers anything else.
            async with grpc.aio.insecure_channel(f"unix://{self.plugins_dir / request.endpoint}") as other:
                for _ in range(3):
                    await rpc.DevicePluginStub(other).GetDevicePluginOptions(pb.Empty(), timeout=_CALL_S)

    async def _watch(self, resource: str, endpoint: Endpoint) -> None:
        with suppress(grpc.aio.AioRpcError):
            async for message in endpoint.stub.ListAndWatch(pb.Empty()):
                devices = {device.ID: device.health for device in message.devices}
                self.endpoints[resource].devices = devices
                endpoint.lists.append(message.ByteSize())
                endpoint.healthy.append(sum(1 for health in devices.values() if health == "Healthy"))
                assert len(devices) == len(message.devices), "an ID came twice"
                self.changes.notify()
        remaining = [one for one in self._connected(resource) if one is not endpoint]
        if self.apart and remaining:
            endpoint.alive = False
            if self.endpoints[resource] is endpoint:
                remaining[0].devices = endpoint.devices
                self.endpoints[resource] = remaining[0]
            await endpoint.channel.close()
        else:
            # As the real one before 1.37: whichever list it was, the plugin that registered last is
            # considered gone.
            await self._hang_up(resource)
        self.changes.notify()

    def _connected(self, resource: str) -> list[Endpoint]:
        endpoints = (*self.endpoints.values(), *self.replaced)
        return [one for one in endpoints if one.resource == resource and one.alive]

    async def _hang_up(self, resource: str) -> None:
        last = self.endpoints.get(resource)
        if last is not None and last.alive:
            last.alive = False
            last.devices = dict.fromkeys(last.devices, "Unhealthy")
            self.disconnections.append(resource)
            await last.channel.close()

    # --- for assertions ------------------------------------------------------------------------

    def capacity(self, resource: str) -> int | None:
        """Healthy and unhealthy devices; ``None``: not registered."""
        endpoint = self.endpoints.get(resource)
        return None if endpoint is None or not endpoint.lists else len(endpoint.devices)

    def is_served(self, resource: str) -> bool:
        """Registered by a connected plugin whose list has arrived."""
        endpoint = self.endpoints.get(resource)
        return endpoint is not None and endpoint.alive and bool(endpoint.lists)

    def is_alone(self) -> bool:
        """No plugin's list is followed any more."""
        endpoints = (*self.endpoints.values(), *self.replaced)
        return all(endpoint.watch is None or endpoint.watch.done() for endpoint in endpoints)

    def allocatable(self, resource: str) -> int:
        endpoint = self.endpoints.get(resource)
        return (
            0 if endpoint is None else sum(1 for health in endpoint.devices.values() if health == "Healthy")
        )

    def went(self, resource: str, *healthy: int, since: int) -> bool:
        """Whether these numbers of devices were healthy one after the other, in the lists from number
        ``since`` on.
        """
        health = iter(self.endpoints[resource].healthy[since:])
        return all(wanted in health for wanted in healthy)

    async def admit(self, pod: dict[str, Any], *, resources: Sequence[str] = ()) -> Admitted:
        """Allocate for all containers, in the order in which they start; ``resources`` orders those of each."""
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        entry = self.admitting[key] = Admitted(pod)
        reusable: dict[str, set[str]] = {}
        spec = pod["spec"]
        try:
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                is_init = container in spec.get("initContainers", ())
                is_sidecar = is_init and container.get("restartPolicy") == "Always"
                await self._allocate(entry, container, reusable, resources)
                for resource, ids in entry.devices.get(container["name"], {}).items():
                    pool = reusable.setdefault(resource, set())
                    pool.update(ids) if is_init and not is_sidecar else pool.difference_update(ids)
        except grpc.aio.AioRpcError as error:
            raise AdmissionFailed(f"{error.code().name}: {error.details()}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise AdmissionFailed("CANCELLED: the client connection is closing") from None
        finally:
            del self.admitting[key]
        entry.whole = True
        self.admitted[key] = entry
        return entry

    def remove(self, key: str) -> None:
        """The pod has ended; its IDs are free."""
        del self.admitted[key]

    # --- the device manager -------------------------------------------------------------------

    async def _allocate(
        self, entry: Admitted, container: dict[str, Any], reusable: dict[str, set[str]], order: Sequence[str]
    ) -> None:
        name, limits = container["name"], container.get("resources", {}).get("limits", {})
        requested = [resource for resource in limits if resource in self.endpoints]
        for resource in sorted(requested, key=lambda one: order.index(one) if one in order else 0):
            amount = int(limits[resource])
            ids = await self._choose(entry, resource, amount, reusable.get(resource, set()))
            self.calls.append(f"Allocate {resource} {len(ids)}")
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
            answer = await self.call_allocate(self.endpoints[resource].stub, request)
            entry.devices.setdefault(name, {})[resource] = ids
            entry.envs.setdefault(name, {}).update(answer.container_responses[0].envs)
            entry.answers.setdefault(name, pb.ContainerAllocateResponse()).MergeFrom(
                answer.container_responses[0]
            )

    async def call_allocate(self, stub: Any, request: pb.AllocateRequest) -> pb.AllocateResponse:
        answer: pb.AllocateResponse = await stub.Allocate(request, timeout=_CALL_S)
        return answer

    async def _choose(self, entry: Admitted, resource: str, amount: int, reusable: set[str]) -> list[str]:
        endpoint = self.endpoints[resource]
        own = sorted(reusable)
        self._random.shuffle(own)
        allocated = own[:amount]
        if len(allocated) == amount:
            return allocated
        used = {
            device_id
            for one in (*self.admitted.values(), entry)
            for devices in one.devices.values()
            for device_id in devices.get(resource, ())
        }
        free = [one for one, health in endpoint.devices.items() if health == "Healthy" and one not in used]
        self._random.shuffle(free)
        needed = amount - len(allocated)
        if len(free) < needed:
            raise AdmissionFailed(f"requested {needed} of {resource}, {len(free)} available")
        if self.pick is not None:
            return [*allocated, *self.pick(resource, free, needed)]
        self.calls.append(f"GetPreferredAllocation {resource} {amount}")
        answer = await endpoint.stub.GetPreferredAllocation(
            pb.PreferredAllocationRequest(
                container_requests=[
                    pb.ContainerPreferredAllocationRequest(
                        available_deviceIDs=[*free, *allocated],
                        must_include_deviceIDs=allocated,
                        allocation_size=amount,
                    )
                ]
            ),
            timeout=_CALL_S,
        )
        preferred = [one for one in answer.container_responses[0].deviceIDs if one in free]
        return [*allocated, *preferred, *(one for one in free if one not in preferred)][:amount]


class _Registration(rpc.RegistrationServicer):
    def __init__(self, kubelet: ScriptedKubelet) -> None:
        self._kubelet = kubelet

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        # The kubelet dials back before it answers, as the real one does with its own client.
        await self._kubelet.register(request)
        return pb.Empty()


class _PodResources(resources_rpc.PodResourcesListerServicer):
    def __init__(self, kubelet: ScriptedKubelet) -> None:
        self._kubelet = kubelet

    async def List(self, request: Any, context: Any) -> resources_pb.ListPodResourcesResponse:  # noqa: N802
        if not self._kubelet.listing_works:
            self._kubelet.calls.append("failed List")
            self._kubelet.changes.notify()
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no pod resources here")
        self._kubelet.calls.append("List")
        self._kubelet.changes.notify()
        admitting = self._kubelet.admitting if self._kubelet.lists_admitting else {}
        pods = {**self._kubelet.admitted, **admitting}
        return resources_pb.ListPodResourcesResponse(pod_resources=[_listed(*one) for one in pods.items()])


def _listed(key: str, entry: Admitted) -> resources_pb.PodResources:
    """One entry a device, as the kubelet has it; made once for a pod whose containers are all admitted."""
    if entry.listed is not None:
        return entry.listed
    namespace, _, name = key.partition("/")
    pod = resources_pb.PodResources(name=name, namespace=namespace)
    spec = entry.pod["spec"]
    lasting = [one for one in spec.get("initContainers", ()) if one.get("restartPolicy") == "Always"]
    for container in (*lasting, *spec["containers"]):
        one = pod.containers.add(name=container["name"])
        for resource, ids in entry.devices.get(container["name"], {}).items():
            for device_id in ids:
                one.devices.add(resource_name=resource, device_ids=[device_id])
    if entry.whole:
        entry.listed = pod
    return pod


async def _close(endpoint: Endpoint) -> None:
    if endpoint.watch is not None:
        endpoint.watch.cancel()
        with suppress(asyncio.CancelledError):
            await endpoint.watch
    await endpoint.channel.close()
