"""What a pod asks of a GPU, counted as Kubernetes counts a pod's resources."""

from enum import Enum

import msgspec

from gpushare.model import names
from gpushare.model.errors import InvalidQuantity, InvalidRequest
from gpushare.model.objects import Container, Pod
from gpushare.model.quantity import parse_amount


class ContainerKind(Enum):
    """How long a container holds what it asks for."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"
    """An init container with ``restartPolicy: Always``: it runs beside all that start after it."""


class ContainerRequest(msgspec.Struct, frozen=True):
    """What one container asks for; ``index`` counts within its own list (containers or initContainers)."""

    name: str
    kind: ContainerKind
    index: int
    memory_units: int
    core_percent: int


class Request(msgspec.Struct, frozen=True):
    """What a pod asks for: units and percent of **one** GPU, as the scheduler must find them.

    ``containers`` holds only those that ask, init containers first, in the order in which they start.
    """

    memory_units: int
    core_percent: int
    containers: tuple[ContainerRequest, ...]

    @property
    def wants_core(self) -> bool:
        """Whether compute is asked for, and not memory alone."""
        return self.core_percent > 0


def request_of(pod: Pod) -> Request | None:
    """The pod's request, or ``None`` when it asks for nothing of ours.

    Raises ``InvalidRequest`` (subject ``pod NAMESPACE/NAME``) when the rules of spec §2 are broken:
    such a pod fits no node, ever, until it is changed.
    """
    subject = f"pod {pod.key}"
    asked = _asked(pod, subject)
    if not asked:
        return None
    for one in asked:
        _check_container(one, subject)
    if len({one.core_percent > 0 for one in asked}) > 1:
        with_core = ", ".join(one.name for one in asked if one.core_percent)
        raise InvalidRequest(
            subject,
            f"containers ask for different kinds of GPU resource (only {with_core} asks for {names.GPU_CORE}); "
            f"give every GPU container {names.GPU_MEM} alone, or both",
        )
    _check_labels(pod, subject)
    return Request(
        memory_units=effective_amount([(one.kind, one.memory_units) for one in asked]),
        core_percent=effective_amount([(one.kind, one.core_percent) for one in asked]),
        containers=tuple(asked),
    )


def _asked(pod: Pod, subject: str) -> list[ContainerRequest]:
    listed: list[tuple[int, Container, ContainerKind]] = []
    for index, container in enumerate(pod.spec.init_containers or ()):
        sidecar = container.restart_policy == "Always"
        listed.append((index, container, ContainerKind.SIDECAR if sidecar else ContainerKind.INIT))
    listed += [(index, container, ContainerKind.APP) for index, container in enumerate(pod.spec.containers)]
    asked = []
    for index, container, kind in listed:
        memory_units = _amount(container, names.GPU_MEM, subject)
        core_percent = _amount(container, names.GPU_CORE, subject)
        if memory_units or core_percent:
            asked.append(ContainerRequest(container.name, kind, index, memory_units, core_percent))
    return asked


def _amount(container: Container, resource: str, subject: str) -> int:
    """What ``container`` asks of ``resource``: its limit, or its request where only that is set."""
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


def _check_labels(pod: Pod, subject: str) -> None:
    labels = pod.metadata.labels or {}
    count = labels.get(names.LABEL_POD_GPU_COUNT)
    if count not in (None, "1"):
        raise InvalidRequest(
            subject,
            f"label {names.LABEL_POD_GPU_COUNT}={count}: this version gives a pod one GPU; remove the label",
        )
    placement = labels.get(names.LABEL_POD_PLACEMENT)
    if placement is not None:
        raise InvalidRequest(
            subject,
            f"label {names.LABEL_POD_PLACEMENT}={placement} is not supported by this version; remove it",
        )


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
