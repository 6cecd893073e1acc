"""A pod's GPU request, computed like Kubernetes computes a pod's resources."""

import re
from enum import Enum
from functools import lru_cache
from math import ceil
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, InvalidRequest
from gpushare.api.objects import Container, Pod, ResourceRequirements
from gpushare.api.quantity import Quantity, parse_amount, parse_quantity
from gpushare.api.request.unit_conversion import read_requested

_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


class ContainerKind(Enum):
    """How long a container holds its resources."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"
    """A sidecar: an init container with ``restartPolicy: Always``, which runs along with all later ones."""


class ContainerRequest(msgspec.Struct, frozen=True):
    """What one container asks for; ``index`` counts within its own list (containers or initContainers).

    ``memory_units`` are those of all its GPUs together, as its manifest says and the kubelet counts; ``whole_gpus`` are
    those that it asks for with ``aliyun.com/gpu``.
    """

    name: str
    kind: ContainerKind
    index: int
    memory_units: int
    core_percent: int
    whole_gpus: int = 0


class Request(msgspec.Struct, frozen=True):
    """What a pod asks for: units and percent of **each** of ``gpu_count`` GPUs of one node, as the scheduler must find them.

    ``whole_device``: only GPUs of which nobody holds anything, and all of each of them; ``memory_units`` is the least
    that they must have then. ``containers`` holds only those that ask, init containers first, in the order in which
    they start. ``cpu_milli`` is what the pod asks of its node's processors, in thousandths of one. ``unit_mib`` is the unit in
    which admission has counted a request in people's units: only nodes that count alike give what was asked for; 0: any.
    ``by_gpu``: it counts GPUs, with ``aliyun.com/gpu``, which ``topology`` nodes give; it is for whole ones then, and
    ``containers`` have theirs each. ``apart``: each of the ``containers`` is for one of the GPUs, and they ask alike.
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

    @property
    def wants_core(self) -> bool:
        """Whether compute is requested in addition to memory."""
        return self.core_percent > 0

    @property
    def is_ordinary(self) -> bool:
        """Whether it requests a share of one GPU, as nearly all do."""
        return self.gpu_count == 1 and not self.whole_device

    def part_of(self, container: ContainerRequest) -> int:
        """The units that ``container`` requests on each of its GPUs."""
        return container.memory_units if self.apart else container.memory_units // self.gpu_count

    def given(self, units: int, device_units: int) -> int:
        """What ``units`` of those asked for on each GPU come to on a GPU of ``device_units``.

        They are what is given, but where GPUs are given whole: then it is the same part of the GPU as of the pod's request,
        rounded down. So the whole pod gets all of it, and containers that run together never more than that.
        """
        return units * device_units // self.memory_units if self.whole_device else units


def request_of(pod: Pod) -> Request | None:
    """The pod's request, or ``None`` if it requests no GPU.

    Raises ``InvalidRequest`` (subject ``pod NAMESPACE/NAME``) when the rules of spec §2 are broken:
    such a pod fits no node, ever, until it is changed.
    """
    request = unlabelled_request_of(pod)
    if request is None or request.by_gpu:
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
        one = request.containers[0]
        return msgspec.structs.replace(
            request,
            memory_units=one.memory_units,
            core_percent=one.core_percent,
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


def requests_share(pod: Pod) -> bool:
    """Whether the pod requests a GPU in any way, even an invalid one: a bound pod's allocation counts regardless."""
    try:
        return request_of(pod) is not None
    except InvalidRequest:
        return True


def unlabelled_request_of(pod: Pod) -> Request | None:
    """What its containers ask for, as if for one GPU: what a bound pod was given is in its record, whatever its labels say.

    ``None`` and errors as with ``request_of``.
    """
    subject = f"pod {pod.key}"
    asked = _asked(pod, subject)
    if not asked:
        return None
    if any(one.whole_gpus for one in asked):
        return _by_gpu(pod, asked, subject)
    for one in asked:
        _check_container(one, subject)
    if len({one.core_percent > 0 for one in asked}) > 1:
        with_core = ", ".join(one.name for one in asked if one.core_percent)
        raise InvalidRequest(
            subject,
            f"containers ask for different kinds of GPU resource (only {with_core} asks for {names.GPU_CORE}); "
            f"give every GPU container {names.GPU_MEM} alone, or both",
        )
    return Request(
        memory_units=effective_amount([(one.kind, one.memory_units) for one in asked]),
        core_percent=effective_amount([(one.kind, one.core_percent) for one in asked]),
        containers=tuple(asked),
        cpu_milli=cpu_milli_of(pod),
    )


def _by_gpu(pod: Pod, asked: list[ContainerRequest], subject: str) -> Request:
    shared = ", ".join(f"container {one.name}" for one in asked if one.memory_units or one.core_percent)
    if shared:
        raise InvalidRequest(
            subject,
            f"{names.GPU_WHOLE} cannot be had beside {names.GPU_MEM}, no node offers both: a share for {shared}; "
            "ask for one of them in all containers",
        )
    return Request(
        memory_units=1,  # the least that there is: all of each GPU is given
        core_percent=0,
        containers=tuple(asked),
        gpu_count=effective_amount([(one.kind, one.whole_gpus) for one in asked]),
        whole_device=True,
        cpu_milli=cpu_milli_of(pod),
        by_gpu=True,
    )


def cpu_milli_of(pod: Pod) -> int:
    """The pod's CPU request in thousandths, 0 if invalid.

    Without what its runtime class adds. A resize in place changes it.
    """
    whole = _cpu_milli(pod.spec.resources)
    if whole is not None:
        return whole
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


def _asked(pod: Pod, subject: str) -> list[ContainerRequest]:
    asked = []
    for index, container, kind in listed_containers(pod):
        memory_units = _amount(container, names.GPU_MEM, subject)
        core_percent = _amount(container, names.GPU_CORE, subject)
        whole_gpus = _amount(container, names.GPU_WHOLE, subject)
        if memory_units or core_percent or whole_gpus:
            asked.append(
                ContainerRequest(container.name, kind, index, memory_units, core_percent, whole_gpus)
            )
    return asked


def _amount(container: Container, resource: str, subject: str) -> int:
    """``container``'s limit of ``resource``, or its request if there is no limit."""
    resources = container.resources
    if resources is None:
        return 0
    for amounts in (resources.limits, resources.requests):
        if amounts and resource in amounts:
            try:
                return parse_amount(amounts[resource])
            except InvalidQuantity as error:
                raise InvalidRequest(
                    subject, f"container {container.name} asks for {resource}: {error}"
                ) from None
    return 0


def _check_container(one: ContainerRequest, subject: str) -> None:
    if one.core_percent and not one.memory_units:
        raise InvalidRequest(
            subject,
            f"container {one.name} asks for {names.GPU_CORE} without {names.GPU_MEM}; add {names.GPU_MEM} beside it",
        )
    if one.core_percent % 5 or one.core_percent > 100:
        raise InvalidRequest(
            subject,
            f"{names.GPU_CORE} must be a multiple of 5 from 5 to 100: container {one.name} asks for {one.core_percent}",
        )


def _gpu_count(labels: dict[str, str], asked: tuple[ContainerRequest, ...], subject: str) -> int:
    """The number of GPUs over which the pod is spread; admission refuses in the same words (``gpushare.admission.rules.request_rules``)."""
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
    as_written = sorted(asked, key=lambda one: one.kind is not ContainerKind.APP)
    computing = ", ".join(f"container {one.name}" for one in as_written if one.core_percent)
    if computing:
        raise InvalidRequest(
            subject,
            f"label {label}={text} and {names.GPU_CORE} exclude each other: remove the label, "
            f"or {names.GPU_CORE} from {computing}",
        )
    uneven = [one for one in as_written if one.memory_units % count]
    if uneven:
        told = ", ".join(f"container {one.name} asks for {one.memory_units}" for one in uneven)
        raise InvalidRequest(
            subject,
            f"label {label}={text} spreads {names.GPU_MEM} over {text} GPUs in equal whole parts: {told}; "
            f"ask for a multiple of {text}, or change the label",
        )
    return count


def _is_apart(labels: dict[str, str], asked: tuple[ContainerRequest, ...], subject: str) -> bool:
    """Whether each container gets a GPU of its own; admission refuses in the same words (``gpushare.admission.rules.request_rules``)."""
    label = names.LABEL_POD_APART
    text = labels.get(label, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(
            subject,
            f"label {label} must be 'true' or 'false': it is '{text}'; correct it, or remove the label",
        )
    if text == "false":
        return False
    beside = {
        one: labels[one] for one in (names.LABEL_POD_GPU_COUNT, names.LABEL_POD_PLACEMENT) if one in labels
    }
    beside = {one: value for one, value in beside.items() if value != "1"}
    if beside:
        told = ", ".join(f"{one}={value}" for one, value in beside.items())
        raise InvalidRequest(
            subject,
            f"label {label}=true gives each container one GPU, and excludes label {told}: remove one of them",
        )
    early = ", ".join(f"container {one.name}" for one in asked if one.kind is not ContainerKind.APP)
    if early:
        raise InvalidRequest(
            subject,
            f"label {label}=true is for containers that run side by side: {early} of initContainers "
            "asks for a GPU; ask in containers alone, or remove the label",
        )
    if len({(one.memory_units, one.core_percent) for one in asked}) > 1:
        told = ", ".join(_amounts(one) for one in asked)
        raise InvalidRequest(
            subject,
            f"label {label}=true needs containers that ask alike, each for one GPU: {told}; "
            "ask for as much in each, or remove the label",
        )
    return len(asked) > 1


def _amounts(one: ContainerRequest) -> str:
    core = f" and {one.core_percent}%" if one.core_percent else ""
    return f"container {one.name} asks for {one.memory_units}{core}"


def _whole_device(labels: dict[str, str], subject: str) -> bool:
    value = labels.get(names.LABEL_POD_PLACEMENT)
    if value not in (None, names.POD_PLACEMENT_WHOLE_DEVICE):
        raise InvalidRequest(
            subject,
            f"label {names.LABEL_POD_PLACEMENT} has one value, {names.POD_PLACEMENT_WHOLE_DEVICE}: it is '{value}'; "
            "correct it, or remove the label",
        )
    return value is not None


def wants_whole_device(pod: Pod) -> bool:
    """Whether the pod's label requests whole GPUs, even if the pod is otherwise invalid."""
    return (pod.metadata.labels or {}).get(names.LABEL_POD_PLACEMENT) == names.POD_PLACEMENT_WHOLE_DEVICE


def effective_amount(asked: list[tuple[ContainerKind, int]]) -> int:
    """A pod's amount from its containers' (source: k8s.io/component-helpers ``PodRequests``).

    Apps and sidecars run together; an init container runs alone but for the sidecars before it.
    """
    together = sum(amount for kind, amount in asked if kind is not ContainerKind.INIT)
    peak, sidecars = 0, 0
    for kind, amount in asked:
        if kind is ContainerKind.SIDECAR:
            sidecars += amount
        elif kind is ContainerKind.INIT:
            peak = max(peak, sidecars + amount)
    return max(together, peak)
