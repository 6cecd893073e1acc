"""The pod resources service: the devices of each container, for agents of this node."""

from collections.abc import Callable, Iterable
from typing import Any

import grpc
from grpc import aio

from gpushare.kubeletapi import podresources_pb2 as pb
from gpushare.kubeletapi import podresources_pb2_grpc as rpc
from gpushare_playground.kubelet.devicemanager.devices import DeviceBook
from gpushare_playground.kubelet.devicemanager.plugins import serve
from gpushare_playground.kubelet.paths import Folders
from gpushare_playground.kubelet.podspec import Container, Pod


class PodResources(rpc.PodResourcesListerServicer):
    """Responds from the book, for the pods that ``active_pods`` returns.

    As on a real kubelet every device is a separate entry, and init containers other than sidecars are
    not listed.
    """

    def __init__(self, folders: Folders, book: DeviceBook, active_pods: Callable[[], Iterable[Pod]]) -> None:
        self._folders = folders
        self._book = book
        self._active_pods = active_pods
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Serve; raises ``BadSettings`` if the socket cannot be opened."""
        self._server = await serve(self._folders.pod_resources_socket, self._add_to)

    def _add_to(self, server: aio.Server) -> None:
        rpc.add_PodResourcesListerServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(0)

    async def List(  # noqa: N802
        self, request: pb.ListPodResourcesRequest, context: Any
    ) -> pb.ListPodResourcesResponse:
        """Every active pod."""
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._active_pods()])

    async def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:  # noqa: N802
        """One pod by name; UNKNOWN for one that is not here."""
        key = f"{request.pod_namespace}/{request.pod_name}"
        for pod in self._active_pods():
            if pod.key == key:
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )
        raise AssertionError("abort raises")

    async def GetAllocatableResources(  # noqa: N802
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        """Every healthy device, allocated or not."""
        response = pb.AllocatableResourcesResponse()
        for name, resource in self._book.resources.items():
            for device in sorted(resource.healthy):
                response.devices.add(resource_name=name, device_ids=[device])
        return response

    def _pod(self, pod: Pod) -> pb.PodResources:
        listed = [*(one for one in pod.init_containers if one.sidecar), *pod.spec.containers]
        return pb.PodResources(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            containers=[self._container(pod, container) for container in listed],
        )

    def _container(self, pod: Pod, container: Container) -> pb.ContainerResources:
        entry = pb.ContainerResources(name=container.name)
        for grant in self._book.of_container(pod.uid, container.name):
            for device in sorted(grant.devices):
                entry.devices.add(resource_name=grant.resource, device_ids=[device])
        return entry
