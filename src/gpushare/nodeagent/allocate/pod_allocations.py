"""The pods of this node, reduced to what deciding about devices needs."""

from collections.abc import Mapping

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, GpuShare, given_share
from gpushare.api.allocation.annotations import is_allocated, read_allocation, read_stamp
from gpushare.api.errors import InvalidRequest, MalformedAllocation
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.objects import ObjectReference, Pod, PodStatus
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request, unlabelled_request_of

#: The annotations that say what a pod was given.
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
    """A pod, with what the kubelet tells of its containers."""

    status: ReportingPodStatus = msgspec.field(default_factory=ReportingPodStatus)


_POD = msgspec.json.Decoder(ReportingPod)


def _container_names(status: ReportingPodStatus) -> dict[str, str]:
    told = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return {one.container_id.rpartition("/")[2]: one.name for one in told if one.container_id}


class BoundPod(msgspec.Struct, frozen=True):
    """A pod of this node that asks for GPU memory and has not finished.

    ``request`` is what its containers ask for, as if for one GPU: labels of a bound pod may be changed, and mean nothing
    more. ``annotations`` are those of ``ALLOCATION_ANNOTATIONS`` that it carries. ``compute_class`` is what its label says, one of
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
    """Names of its containers by their IDs, as far as the kubelet has told them."""
    compute_class: str = ""

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


class Claim(msgspec.Struct, frozen=True):
    """What the scheduler decided for a bound pod.

    ``request`` is the pod's, for as many GPUs, and as whole, as the record says. ``by_index``: the record names GPUs by their indices alone, as it was made before the node was described;
    ``allocation`` has the UUIDs all the same.
    """

    pod: BoundPod
    request: Request
    allocation: Allocation
    assume_time_ns: int
    assigned: bool
    by_index: bool = False

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.pod.uid

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for pods that may be taken for each other."""
        request = self.request
        return (
            self.allocation.unit,
            len(self.allocation.gpus),
            request.gpu_count,
            request.whole_device,
            *((one.kind, one.memory_units, one.core_percent) for one in request.containers),
        )

    @property
    def is_together(self) -> bool:
        """Whether all its containers lie on the same GPUs: some other schedulers give each a GPU of its own."""
        return len(self.allocation.gpus) == self.request.gpu_count

    def decided(self, container: ContainerRequest) -> tuple[GpuShare, ...]:
        """The shares that were decided for ``container``; on the pod's first GPUs where the record does not say."""
        by_container = self.allocation.containers
        shares = by_container.get(container.name)
        if shares is None and container.kind is ContainerKind.APP:
            shares = by_container.get(
                f"#{container.index}"
            )  # records of other schedulers know the index alone
        return (shares or self.allocation.gpus)[: self.request.gpu_count]

    def place(self, container: ContainerRequest) -> frozenset[str]:
        """The GPUs that were decided for ``container``, by UUID."""
        return frozenset(share.uuid for share in self.decided(container))

    def share_on(self, device: Device, container: ContainerRequest, unit: MemoryUnit) -> GpuShare:
        """What ``container`` gets on ``device``: as decided, or worked out in the unit of the decision.

        ``unit`` is the node's present one, for decisions that do not name theirs.
        """
        units = self.request.part_of(container)
        device_units = self._device_units(device, unit)
        for decided in self.decided(container):
            if decided.uuid == device.uuid and decided.units == self.request.given(
                units, decided.device_units
            ):
                device_units = decided.device_units
        return given_share(device, device_units, self.request, units, container.core_percent)

    def pod_share_on(self, device: Device, unit: MemoryUnit) -> GpuShare:
        """What the whole pod would hold on a ``device`` that was not decided for it."""
        request, first = self.request, self.allocation.gpus[0]
        # As recorded: it may be more than is asked for.
        units = request.memory_units if request.whole_device else first.units
        return given_share(device, self._device_units(device, unit), request, units, first.core_percent)

    def _device_units(self, device: Device, unit: MemoryUnit) -> int:
        return (self.allocation.unit or unit).count_in(device.total_mib)


def bound_pod(pod: Pod) -> BoundPod | None:
    """``pod`` as a record, or ``None`` when it has finished or asks for nothing that could be met."""
    if pod.finished:
        return None
    try:
        request = unlabelled_request_of(pod)
    except InvalidRequest:
        return None  # the scheduler has told its owner; no device can be meant for it
    if request is None:
        return None
    meta = pod.metadata
    labels = meta.labels or {}
    if labels.get(names.LABEL_POD_PLACEMENT) == names.POD_PLACEMENT_WHOLE_DEVICE:
        request = msgspec.structs.replace(request, whole_device=True)
    annotations = meta.annotations or {}
    said = labels.get(names.LABEL_POD_COMPUTE_CLASS, "")
    return BoundPod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        created=meta.creation_timestamp or "",
        request=request,
        annotations={name: annotations[name] for name in ALLOCATION_ANNOTATIONS if name in annotations},
        terminating=meta.deletion_timestamp is not None,
        running=pod.status.phase == "Running",
        containers=_container_names(pod.status) if isinstance(pod.status, ReportingPodStatus) else {},
        compute_class=said if said in names.COMPUTE_CLASSES else "",
    )


def decode_bound_pod(raw: bytes) -> tuple[str, BoundPod] | None:
    """A pod's JSON as the informer keeps it."""
    record = bound_pod(_POD.decode(raw))
    return None if record is None else (record.key, record)


def claim_of(pod: BoundPod, node: NodeDevices) -> Claim | None:
    """What was decided for ``pod``, or ``None`` when nothing was. Raises ``MalformedAllocation``."""
    subject = f"pod {pod.key}"
    if not is_allocated(pod.annotations):
        return None
    allocation = read_allocation(pod.annotations, node, subject)
    if allocation is None or not allocation.gpus:
        raise MalformedAllocation(subject, "its allocation annotations name no GPU")
    stamp = read_stamp(pod.annotations, subject)
    located = _located(allocation, node)
    request = _recorded(pod.request, allocation)
    return Claim(pod, request, located, stamp.assume_time_ns, stamp.assigned, by_index=located != allocation)


def _recorded(request: Request, allocation: Allocation) -> Request:
    """``request`` for as many GPUs as the record gives each container, and whole ones if it gives them whole.

    A record of all that a GPU has may also be that of a pod that just asks for as much; only then the label decides.
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
    """``allocation`` with the UUIDs that its GPUs have, where the record knew none."""

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
