"""A pod's GPU request, computed like Kubernetes computes a pod's resources."""

import re
from enum import Enum
from functools import lru_cache
from math import ceil
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, InvalidRequest
from gpushare.api.node.device import Device, Placement
from gpushare.api.objects import Container, Pod, ResourceRequirements
from gpushare.api.quantity import Quantity, parse_amount, parse_quantity
from gpushare.api.request.choice_formats import FORMATS, problem
from gpushare.api.request.gpu_selection import GpuSelection, selection_of
from gpushare.api.request.unit_conversion import read_requested

#: More units, or GPUs, than any node has. Larger requests are invalid, so that amounts fit an int32 and their MiB an int64.
MOST_UNITS: Final = (1 << 31) - 1
_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


class ContainerKind(Enum):
    """How long a container holds its resources."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"
    """An init container with ``restartPolicy: Always``, which keeps running beside all later containers."""


class ContainerRequest(msgspec.Struct, frozen=True):
    """The request of a container; ``index`` is its position in its own list (containers or initContainers).

    ``memory_units``: over all its GPUs together, as in its manifest and as the kubelet counts; ``whole_gpus``: its amount of
    ``aliyun.com/gpu``.
    """

    name: str
    kind: ContainerKind
    index: int
    memory_units: int
    core_percent: int
    whole_gpus: int = 0


class Request(msgspec.Struct, frozen=True):
    """The request of a pod: units and percent on **each** of ``gpu_count`` GPUs of one node.

    ``whole_device``: it needs exclusive GPUs, allocated completely; ``memory_units`` is then their minimum size. ``containers``: only
    those that request GPUs, in start order, init containers first. ``cpu_milli``: CPU request in thousandths. ``unit_mib``: the unit that
    admission used to convert MiB or percent, so that only nodes with that unit fit; 0: any. ``by_gpu``: it requests whole GPUs by number,
    with ``aliyun.com/gpu``, on ``topology`` nodes, and each container gets its own. ``apart``: each container gets one of the GPUs, and
    their requests are equal. ``selection``: which GPUs it may have; ``None``: any.
    ``gpu_placement`` and ``node_placement``: the policy among the GPUs of a node and among nodes; ``None``: the node's and the cluster's.
    """

    memory_units: int
    core_percent: int
    containers: tuple[ContainerRequest, ...]
    gpu_count: int = 1
    whole_device: bool = False
    cpu_milli: int = 0
    unit_mib: int = 0
    by_gpu: bool = False
    apart: bool = False
    selection: GpuSelection | None = None
    gpu_placement: Placement | None = None
    node_placement: Placement | None = None

    @property
    def takes_instances(self) -> bool:
        """Whether a MIG instance will do: it is no whole GPU, and a CUDA process uses one at most, without GPUs beside it."""
        return self.gpu_count == 1 and not self.by_gpu

    @property
    def wants_core(self) -> bool:
        """Whether compute is requested in addition to memory."""
        return self.core_percent > 0

    @property
    def is_ordinary(self) -> bool:
        """Whether it requests a share of one GPU, as nearly all pods do."""
        return self.gpu_count == 1 and not self.whole_device

    def allows(self, gpu: Device) -> bool:
        """Whether the pod may have this GPU, whatever is free on it."""
        return self.selection is None or self.selection.allows(gpu)

    def part_of(self, container: ContainerRequest) -> int:
        """The units that ``container`` requests on each of its GPUs."""
        return container.memory_units if self.apart else container.memory_units // self.gpu_count

    def allocated_units(self, units: int, device_units: int) -> int:
        """The units allocated for ``units`` requested on a GPU of ``device_units``.

        They are the same, except for exclusive GPUs: there the ratio of ``units`` to the pod's request is applied to the whole GPU,
        rounded down. So the pod gets the whole GPU, and containers that run together never exceed it.
        """
        return units * device_units // self.memory_units if self.whole_device else units


def request_of(pod: Pod) -> Request | None:
    """The pod's request, or ``None`` if it requests no GPU.

    Raises ``InvalidRequest`` (subject ``pod NAMESPACE/NAME``) if it violates the rules of spec §2: such a pod never fits any node.
    """
    request = unlabelled_request_of(pod)
    if request is None:
        return None
    annotations = pod.metadata.annotations
    if annotations and not FORMATS.keys().isdisjoint(annotations):
        request = _with_choices(request, annotations, f"pod {pod.key}")
    if request.by_gpu:
        return request
    requested = read_requested(pod)
    if requested is not None:
        request = msgspec.structs.replace(request, unit_mib=requested.unit_mib)
    if not pod.metadata.labels:
        return request
    labels, subject = pod.metadata.labels, f"pod {pod.key}"
    gpu_count = _gpu_count(labels, request.containers, subject)
    whole_device = _whole_device(labels, subject)
    if _is_apart(labels, request.containers, subject):
        first = request.containers[0]
        return msgspec.structs.replace(
            request,
            memory_units=first.memory_units,
            core_percent=first.core_percent,
            gpu_count=len(request.containers),
            apart=True,
        )
    if gpu_count == 1 and not whole_device:
        return request
    return msgspec.structs.replace(
        request,
        memory_units=request.memory_units // gpu_count,
        gpu_count=gpu_count,
        whole_device=whole_device,
    )


def _with_choices(request: Request, annotations: dict[str, str], subject: str) -> Request:
    if text := problem(annotations):
        raise InvalidRequest(subject, text)
    gpu, node = annotations.get(names.ANN_GPU_PLACEMENT), annotations.get(names.ANN_NODE_PLACEMENT)
    return msgspec.structs.replace(
        request,
        selection=selection_of(annotations),
        gpu_placement=None if gpu is None else Placement(gpu),
        node_placement=None if node is None else Placement(node),
    )


def requests_share(pod: Pod) -> bool:
    """Whether the pod requests a GPU in any way, even an invalid one: a bound pod's allocation counts regardless."""
    try:
        return request_of(pod) is not None
    except InvalidRequest:
        return True


def unlabelled_request_of(pod: Pod) -> Request | None:
    """The request of the pod's containers, as if for one GPU: for bound pods, whose allocation record counts instead of their labels.

    ``None`` and errors as in ``request_of``.
    """
    subject = f"pod {pod.key}"
    requests = _container_requests(pod, subject)
    if not requests:
        return None
    if any(container.whole_gpus for container in requests):
        return _by_gpu(pod, requests, subject)
    for container in requests:
        _check_container(container, subject)
    if len({container.core_percent > 0 for container in requests}) > 1:
        with_core = ", ".join(container.name for container in requests if container.core_percent)
        raise InvalidRequest(
            subject,
            f"containers ask for different kinds of GPU resource (only {with_core} asks for {names.GPU_CORE}); "
            f"give every GPU container {names.GPU_MEM} alone, or both",
        )
    return Request(
        memory_units=_total(
            [(container.kind, container.memory_units) for container in requests], names.GPU_MEM, subject
        ),
        core_percent=effective_amount([(container.kind, container.core_percent) for container in requests]),
        containers=tuple(requests),
        cpu_milli=cpu_milli_of(pod),
    )


def _by_gpu(pod: Pod, requests: list[ContainerRequest], subject: str) -> Request:
    shared = ", ".join(
        f"container {container.name}"
        for container in requests
        if container.memory_units or container.core_percent
    )
    if shared:
        raise InvalidRequest(
            subject,
            f"{names.GPU_WHOLE} cannot be combined with {names.GPU_MEM}, because no node offers both: a share for {shared}; "
            "use the same one in all containers",
        )
    return Request(
        memory_units=1,  # the minimum; each GPU is allocated completely
        core_percent=0,
        containers=tuple(requests),
        gpu_count=_total(
            [(container.kind, container.whole_gpus) for container in requests], names.GPU_WHOLE, subject
        ),
        whole_device=True,
        cpu_milli=cpu_milli_of(pod),
        by_gpu=True,
    )


def cpu_milli_of(pod: Pod) -> int:
    """The pod's CPU request in thousandths, 0 if invalid.

    Without the overhead of its runtime class. An in-place resize changes it.
    """
    pod_level = _cpu_milli(pod.spec.resources)
    if pod_level is not None:
        return pod_level
    return effective_amount(
        [(kind, _cpu_milli(container.resources) or 0) for _, container, kind in listed_containers(pod)]
    )


def _cpu_milli(resources: ResourceRequirements | None) -> int | None:
    """``None`` without a CPU request."""
    if resources is not None:
        for amounts in (resources.requests, resources.limits):
            if amounts and "cpu" in amounts:
                return milli_of(amounts["cpu"])
    return None


@lru_cache(maxsize=1024)
def milli_of(text: Quantity) -> int:
    """Thousandths of a quantity, rounded up like Kubernetes; 0 if invalid or negative."""
    try:
        return max(ceil(1000 * parse_quantity(text)), 0)
    except InvalidQuantity:
        return 0


def listed_containers(pod: Pod) -> list[tuple[int, Container, ContainerKind]]:
    """The pod's containers in start order, each with its index in its own list."""
    listed: list[tuple[int, Container, ContainerKind]] = []
    for index, container in enumerate(pod.spec.init_containers or ()):
        sidecar = container.restart_policy == "Always"
        listed.append((index, container, ContainerKind.SIDECAR if sidecar else ContainerKind.INIT))
    listed += [(index, container, ContainerKind.APP) for index, container in enumerate(pod.spec.containers)]
    return listed


def _container_requests(pod: Pod, subject: str) -> list[ContainerRequest]:
    requests = []
    for index, container, kind in listed_containers(pod):
        memory_units = _amount(container, names.GPU_MEM, subject)
        core_percent = _amount(container, names.GPU_CORE, subject)
        whole_gpus = _amount(container, names.GPU_WHOLE, subject)
        if memory_units or core_percent or whole_gpus:
            requests.append(
                ContainerRequest(container.name, kind, index, memory_units, core_percent, whole_gpus)
            )
    return requests


def _amount(container: Container, resource: str, subject: str) -> int:
    """``container``'s limit of ``resource``, or its request if there is no limit."""
    resources = container.resources
    if resources is None:
        return 0
    for amounts in (resources.limits, resources.requests):
        if amounts and resource in amounts:
            try:
                amount = parse_amount(amounts[resource])
            except InvalidQuantity as error:
                raise InvalidRequest(
                    subject, f"container {container.name} asks for {resource}: {error}"
                ) from None
            _check_amount(amount, f"container {container.name} asks", resource, subject)
            return amount
    return 0


def _total(amounts: list[tuple[ContainerKind, int]], resource: str, subject: str) -> int:
    """A pod's amount of ``resource`` from its containers'."""
    total = effective_amount(amounts)
    _check_amount(total, "its containers together ask", resource, subject)
    return total


def _check_amount(amount: int, asking: str, resource: str, subject: str) -> None:
    if amount > MOST_UNITS:
        raise InvalidRequest(
            subject,
            f"{asking} for {resource}: {amount} is more than any node has; write a number such as 3, without Mi or Gi",
        )


def _check_container(container: ContainerRequest, subject: str) -> None:
    if container.core_percent and not container.memory_units:
        raise InvalidRequest(
            subject,
            f"container {container.name} asks for {names.GPU_CORE} without {names.GPU_MEM}; add {names.GPU_MEM} to the same container",
        )
    if container.core_percent % 5 or container.core_percent > 100:
        raise InvalidRequest(
            subject,
            f"{names.GPU_CORE} must be a multiple of 5 from 5 to 100: container {container.name} asks for {container.core_percent}",
        )


def _gpu_count(labels: dict[str, str], requests: tuple[ContainerRequest, ...], subject: str) -> int:
    """The number of GPUs over which the pod is spread; admission has the same messages (``gpushare.admission.rules.request_rules``)."""
    label = names.LABEL_POD_GPU_COUNT
    text = labels.get(label, "1")
    if _COUNT.fullmatch(text) is None:
        raise InvalidRequest(
            subject,
            f"label {label} must be a whole number from 1 to 9999, without leading zeros: it is '{text}'; "
            "write the number of GPUs, or remove the label",
        )
    count = int(text)
    if count == 1:
        return count
    as_written = sorted(requests, key=lambda container: container.kind is not ContainerKind.APP)
    computing = ", ".join(f"container {container.name}" for container in as_written if container.core_percent)
    if computing:
        raise InvalidRequest(
            subject,
            f"label {label}={text} and {names.GPU_CORE} exclude each other: remove the label, "
            f"or {names.GPU_CORE} from {computing}",
        )
    uneven = [container for container in as_written if container.memory_units % count]
    if uneven:
        listed = ", ".join(
            f"container {container.name} asks for {container.memory_units}" for container in uneven
        )
        raise InvalidRequest(
            subject,
            f"label {label}={text} spreads {names.GPU_MEM} over {text} GPUs equally, in whole units: {listed}; "
            f"use a multiple of {text}, or change the label",
        )
    return count


def _is_apart(labels: dict[str, str], requests: tuple[ContainerRequest, ...], subject: str) -> bool:
    """Whether each container gets a separate GPU; admission has the same messages (``gpushare.admission.rules.request_rules``)."""
    label = names.LABEL_POD_APART
    text = labels.get(label, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(
            subject,
            f"label {label} must be 'true' or 'false': it is '{text}'; correct it, or remove the label",
        )
    if text == "false":
        return False
    conflicts = {
        key: labels[key] for key in (names.LABEL_POD_GPU_COUNT, names.LABEL_POD_PLACEMENT) if key in labels
    }
    conflicts = {key: value for key, value in conflicts.items() if value != "1"}
    if conflicts:
        listed = ", ".join(f"{key}={value}" for key, value in conflicts.items())
        raise InvalidRequest(
            subject,
            f"label {label}=true gives each container its own GPU and cannot be combined with label {listed}: remove one of them",
        )
    early = ", ".join(
        f"container {container.name}" for container in requests if container.kind is not ContainerKind.APP
    )
    if early:
        raise InvalidRequest(
            subject,
            f"label {label}=true does not support init containers with GPU requests: {early}; "
            "request GPUs only in regular containers, or remove the label",
        )
    if len({(container.memory_units, container.core_percent) for container in requests}) > 1:
        listed = ", ".join(_request_text(container) for container in requests)
        raise InvalidRequest(
            subject,
            f"label {label}=true requires the same request in every GPU container: {listed}; "
            "use equal requests, or remove the label",
        )
    return len(requests) > 1


def _request_text(container: ContainerRequest) -> str:
    core = f" and {container.core_percent}%" if container.core_percent else ""
    return f"container {container.name} asks for {container.memory_units}{core}"


def _whole_device(labels: dict[str, str], subject: str) -> bool:
    value = labels.get(names.LABEL_POD_PLACEMENT)
    if value not in (None, names.POD_PLACEMENT_WHOLE_DEVICE):
        raise InvalidRequest(
            subject,
            f"label {names.LABEL_POD_PLACEMENT} accepts only the value {names.POD_PLACEMENT_WHOLE_DEVICE}: it is '{value}'; "
            "correct it, or remove the label",
        )
    return value is not None


def wants_whole_device(pod: Pod) -> bool:
    """Whether the pod's label requests whole GPUs, even if the pod is otherwise invalid."""
    return (pod.metadata.labels or {}).get(names.LABEL_POD_PLACEMENT) == names.POD_PLACEMENT_WHOLE_DEVICE


def effective_amount(amounts: list[tuple[ContainerKind, int]]) -> int:
    """A pod's amount from its containers' (source: k8s.io/component-helpers ``PodRequests``).

    Apps and sidecars run together; an init container runs only beside the sidecars before it.
    """
    together = sum(amount for kind, amount in amounts if kind is not ContainerKind.INIT)
    peak, sidecars = 0, 0
    for kind, amount in amounts:
        if kind is ContainerKind.SIDECAR:
            sidecars += amount
        elif kind is ContainerKind.INIT:
            peak = max(peak, sidecars + amount)
    return max(together, peak)
