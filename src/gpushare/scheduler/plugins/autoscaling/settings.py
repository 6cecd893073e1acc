"""Settings of the autoscaling plugin. Each part is off by default."""

import re
from types import SimpleNamespace
from typing import Final

import msgspec

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_LABEL: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


class PlaceholderLimits(msgspec.Struct, frozen=True):
    """At most ``most`` placeholder pods in ``namespace``, for pods that have been pending for ``wait_s`` seconds.

    Nodes with the same value of the label ``kind_label`` have the same GPUs.
    """

    namespace: str
    kind_label: str = INSTANCE_TYPE
    wait_s: float = 30.0
    most: int = 10

    def __post_init__(self) -> None:
        """Raises ``ValueError`` with the name of the option."""
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(f"--placeholder-pods {self.namespace}: write the name of a namespace")
        if not _LABEL.fullmatch(self.kind_label):
            raise ValueError(
                f"--placeholder-pods-group-label {self.kind_label}: write the name of a node label"
            )


class Autoscaling(msgspec.Struct, frozen=True):
    """``placeholders``: ``None`` disables placeholder pods. ``startup_taint``: whether to remove the taint once a node has its GPUs."""

    placeholders: PlaceholderLimits | None = None
    startup_taint: bool = False


def autoscaling_of(options: SimpleNamespace) -> Autoscaling | None:
    """The settings of the command line; ``None`` if no part is enabled. Raises ``ValueError``."""
    limits = None
    if options.placeholder_pods is not None:
        limits = PlaceholderLimits(
            options.placeholder_pods,
            options.placeholder_pods_group_label,
            options.placeholder_pods_min_pending,
            options.placeholder_pods_max,
        )
    return Autoscaling(limits, options.startup_taint) if limits or options.startup_taint else None
