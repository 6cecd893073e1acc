"""Pods as users submit them, with the fields that only admission reads. The scheduler's ``Pod`` leaves them out: decoding costs time."""

import msgspec

from gpushare.api.objects import Container, Pod, PodSpec


class EnvironmentVariable(msgspec.Struct, gc=False):
    """An environment variable of a container, whatever its value comes from."""

    name: str = ""


class SubmittedContainer(Container, rename="camel"):
    """A container with its environment."""

    env: list[EnvironmentVariable] | None = None


class SubmittedSpec(PodSpec, rename="camel"):
    """``spec`` of a submitted pod."""

    containers: list[SubmittedContainer] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    init_containers: list[SubmittedContainer] | None = None  # type: ignore[assignment]


class SubmittedPod(Pod, rename="camel"):
    """A pod, or the pod of a template, as it was submitted."""

    spec: SubmittedSpec = msgspec.field(default_factory=SubmittedSpec)
