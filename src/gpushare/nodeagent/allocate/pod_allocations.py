"""The pods of this node, reduced to what allocating devices needs."""

from collections.abc import Mapping

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare, allocated_share
from gpushare.api.allocation.annotations import is_allocated, read_allocation, read_stamp
from gpushare.api.errors import InvalidRequest, MalformedAllocation
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.objects import ObjectReference, Pod, PodStatus
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.gpu_selection import bound_selection
from gpushare.api.request.memory_limit import bound_memory_limits
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request, unlabelled_request_of

#: The annotations in which allocations are recorded.
ALLOCATION_ANNOTATIONS = (
    names.ANN_SHARE,
    names.ANN_ALSO,
    names.ANN_MEM_INDEX,
    names.ANN_MEM_POD,
    names.ANN_MEM_DEVICE,
    names.ANN_MEM_ASSIGNED,
    names.ANN_MEM_ASSUME_TIME,
    names.ANN_ALLOCATION,
    names.ANN_ASSIGNED,
    names.ANN_ASSUME_TIME,
    names.ANN_CORE,
)


class ContainerStatus(msgspec.Struct, rename={"container_id": "containerID"}, gc=False):
    """The state of one container; ``container_id`` is of the form ``containerd://ID``."""

    name: str = ""
    container_id: str = ""


class ReportingPodStatus(PodStatus, rename="camel", gc=False):
    """``status`` of a pod, with its containers."""

    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class ReportingPod(Pod, gc=False):
    """A pod, with the states of its containers."""

    status: ReportingPodStatus = msgspec.field(default_factory=ReportingPodStatus)


_POD = msgspec.json.Decoder(ReportingPod)


def container_names(status: ReportingPodStatus) -> dict[str, str]:
    """Names of containers by ID, as far as the status has them."""
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return {one.container_id.rpartition("/")[2]: one.name for one in statuses if one.container_id}


class BoundPod(msgspec.Struct, frozen=True):
    """A pod of this node that requests GPUs and has not finished.

    ``request`` is what its containers request, as if of one GPU: labels may change after binding and no longer count.
    ``annotations`` are those of ``ALLOCATION_ANNOTATIONS`` that it has. ``compute_class`` is that of its label, one of
    ``names.COMPUTE_CLASSES``, or empty; a container keeps the one with which it was started.
    """

    uid: str
    namespace: str
    name: str
    created: str
    request: Request
    annotations: dict[str, str]
    terminating: bool = False
    running: bool = False
    containers: dict[str, str] = {}
    """Names of its containers by ID, as far as its status has them."""
    compute_class: str = ""
    memory_limits_mib: dict[str, int] = {}
    """What its containers, by name, may use of their GPU while that is free; a container keeps that with which it was started."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def annotated(self, annotations: Mapping[str, str | None]) -> "BoundPod":
        """This pod as it is once ``annotations`` are written (``None``: removed)."""
        merged = {**self.annotations, **annotations}
        kept = {name: value for name, value in merged.items() if value is not None}
        return msgspec.structs.replace(self, annotations=kept)

    @property
    def reference(self) -> ObjectReference:
        """For events about it."""
        return ObjectReference("Pod", self.name, self.namespace, self.uid)


class AllocatedPod(msgspec.Struct, frozen=True):
    """A bound pod and what the scheduler decided for it.

    ``request`` is the pod's, with the number of GPUs of the record. ``by_index``: the record has GPU indices only, because it was
    written before the node published its GPUs; ``allocation`` has the UUIDs nevertheless.
    """

    bound: BoundPod
    request: Request
    allocation: Allocation
    assume_time_ns: int
    assigned: bool
    by_index: bool = False

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.bound.uid

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return self.bound.key

    @property
    def request_signature(self) -> tuple[object, ...]:
        """Equal for pods with identical requests, which ``Allocate`` cannot distinguish, and that may have the same GPUs."""
        request = self.request
        return (
            self.allocation.unit,
            len(self.allocation.gpus),
            request.gpu_count,
            request.whole_device,
            request.selection,
            *((one.kind, one.memory_units, one.core_percent) for one in request.containers),
        )

    @property
    def on_same_gpus(self) -> bool:
        """Whether all its containers have the same GPUs: some schedulers give each container its own."""
        return len(self.allocation.gpus) == self.request.gpu_count

    def decided_shares(self, container: ContainerRequest) -> tuple[GpuShare, ...]:
        """The shares that were decided for ``container``; those of the pod's first GPUs if the record does not name it."""
        by_container = self.allocation.containers
        shares = by_container.get(container.name)
        if shares is None and container.kind is ContainerKind.APP:
            shares = by_container.get(
                f"#{container.index}"
            )  # records of other schedulers know the index alone
        return (shares or self.allocation.gpus)[: self.request.gpu_count]

    def decided_gpus(self, container: ContainerRequest) -> frozenset[str]:
        """The GPUs (UUIDs) that were decided for ``container``."""
        return frozenset(share.uuid for share in self.decided_shares(container))

    def share_on(self, device: Device, container: ContainerRequest, unit: MemoryUnit) -> GpuShare:
        """The share of ``container`` on ``device``: as decided, or computed in the unit of the decision.

        ``unit`` is the node's, for decisions without a unit.
        """
        units = self.request.part_of(container)
        device_units = self._device_units(device, unit)
        for decided in self.decided_shares(container):
            if decided.uuid == device.uuid and decided.units == self.request.allocated_units(
                units, decided.device_units
            ):
                device_units = decided.device_units
        return allocated_share(device, device_units, self.request, units, container.core_percent)

    def pod_share_on(self, device: Device, unit: MemoryUnit) -> GpuShare:
        """The whole pod's share on a ``device`` that was not decided for it."""
        request, first = self.request, self.allocation.gpus[0]
        # As recorded: it may be more than requested.
        units = request.memory_units if request.whole_device else first.units
        return allocated_share(device, self._device_units(device, unit), request, units, first.core_percent)

    def _device_units(self, device: Device, unit: MemoryUnit) -> int:
        return (self.allocation.unit or unit).count_in(device.total_mib)


def bound_pod(pod: Pod) -> BoundPod | None:
    """``pod`` as a record; ``None`` if it has finished or requests nothing that could be allocated."""
    if pod.finished:
        return None
    try:
        request = unlabelled_request_of(pod)
    except InvalidRequest:
        return None  # the scheduler reports it; no device can be for it
    if request is None:
        return None
    meta = pod.metadata
    labels = meta.labels or {}
    if labels.get(names.LABEL_POD_PLACEMENT) == names.POD_PLACEMENT_WHOLE_DEVICE:
        request = msgspec.structs.replace(request, whole_device=True)
    annotations = meta.annotations or {}
    selection = bound_selection(annotations)
    if selection is not None:
        request = msgspec.structs.replace(request, selection=selection)
    compute_class = labels.get(names.LABEL_POD_COMPUTE_CLASS, "")
    return BoundPod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        created=meta.creation_timestamp or "",
        request=request,
        annotations={name: annotations[name] for name in ALLOCATION_ANNOTATIONS if name in annotations},
        terminating=meta.deletion_timestamp is not None,
        running=pod.status.phase == "Running",
        containers=container_names(pod.status) if isinstance(pod.status, ReportingPodStatus) else {},
        compute_class=compute_class if compute_class in names.COMPUTE_CLASSES else "",
        memory_limits_mib=bound_memory_limits(annotations, [one.name for one in request.containers]),
    )


def decode_reporting_pod(raw: bytes) -> ReportingPod:
    """A pod's JSON; raises ``msgspec.DecodeError``."""
    return _POD.decode(raw)


def decode_bound_pod(raw: bytes) -> tuple[str, BoundPod] | None:
    """A pod's JSON as a record with its key; raises ``msgspec.DecodeError``."""
    record = bound_pod(decode_reporting_pod(raw))
    return None if record is None else (record.key, record)


def allocated_pod(pod: BoundPod, node: NodeDevices) -> AllocatedPod | None:
    """``pod`` with its allocation; ``None`` if nothing was decided for it. Raises ``MalformedAllocation``."""
    subject = f"pod {pod.key}"
    if not is_allocated(pod.annotations):
        return None
    allocation = read_allocation(pod.annotations, node, subject)
    if allocation is None or not allocation.gpus:
        raise MalformedAllocation(subject, "its allocation annotations name no GPU")
    stamp = read_stamp(pod.annotations, subject)
    located = _located(allocation, node)
    request = _recorded(pod.request, allocation)
    return AllocatedPod(
        pod, request, located, stamp.assume_time_ns, stamp.assigned, by_index=located != allocation
    )


def _recorded(request: Request, allocation: Allocation) -> Request:
    """``request`` with the number of GPUs of the record, and for whole GPUs if the record has them whole.

    A record of a whole GPU may also be that of a pod that requests as much memory; only then the label decides.
    """
    gpu_count = max(map(len, allocation.containers.values()), default=1) or 1
    memory_units = request.memory_units * request.gpu_count // gpu_count
    whole = len(allocation.gpus) == gpu_count and all(
        share.units == share.device_units for share in allocation.gpus
    )
    more = any(share.units > memory_units for share in allocation.gpus)
    return msgspec.structs.replace(
        request,
        memory_units=memory_units,
        gpu_count=gpu_count,
        whole_device=whole and (more or request.whole_device),
    )


def _located(allocation: Allocation, node: NodeDevices) -> Allocation:
    """``allocation`` with the UUIDs of its GPUs where the record has indices only."""

    def real(share: GpuShare) -> GpuShare:
        device = node.device_of(share.uuid, share.index)
        if device is None or device.uuid == share.uuid:
            return share
        return msgspec.structs.replace(share, uuid=device.uuid)

    return msgspec.structs.replace(
        allocation,
        gpus=tuple(map(real, allocation.gpus)),
        containers={name: tuple(map(real, shares)) for name, shares in allocation.containers.items()},
    )


def amount_of(container: ContainerRequest, resource: str) -> int:
    """What ``container`` requests of a resource: units of GPU memory, percent of compute, or whole GPUs."""
    if resource == names.GPU_WHOLE:
        return container.whole_gpus
    return container.core_percent if resource == names.GPU_CORE else container.memory_units


def amount_text(resource: str, amount: int) -> str:
    """An amount for people: ``3 units``, ``30% compute``."""
    return f"{amount}% compute" if resource == names.GPU_CORE else counted(amount, "unit")


def is_complete(pod: AllocatedPod, ids: Mapping[tuple[str, str], frozenset[str]]) -> bool:
    """Whether all containers of the pod have what they request.

    The kubelet lists no devices of init containers; they were served if one after them is.
    """
    return all(has_all(pod.request, resource, ids) for resource in (names.GPU_MEM, names.GPU_CORE))


def has_all(request: Request, resource: str, ids: Mapping[tuple[str, str], frozenset[str]]) -> bool:
    """The same of one resource."""
    lasting = [one for one in request.containers if one.kind is not ContainerKind.INIT]
    return all(
        (one.name, resource) in ids for one in lasting or request.containers if amount_of(one, resource)
    )
