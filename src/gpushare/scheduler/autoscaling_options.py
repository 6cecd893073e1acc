"""What the command line says of autoscaling: all of it is off unless asked for."""

import argparse
import re
from dataclasses import dataclass, field
from typing import Final

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_LABEL: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StandInLimits:
    """At most ``most`` stand-ins in ``namespace``, for pods that have waited for ``wait_s``.

    Nodes with the same value of the label ``kind_label`` have the same GPUs.
    """

    namespace: str
    kind_label: str = INSTANCE_TYPE
    wait_s: float = 30.0
    most: int = 10

    def __post_init__(self) -> None:
        """Raises ``ValueError`` that names the option."""
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(f"--stand-ins {self.namespace}: write the name of a namespace")
        if not _LABEL.fullmatch(self.kind_label):
            raise ValueError(f"--stand-ins-kind-label {self.kind_label}: write the name of a node label")
        if not 0 <= self.wait_s <= 86400:
            raise ValueError(f"--stand-ins-wait {self.wait_s}: from 0 to 86400 seconds")
        if not 1 <= self.most <= 100:
            raise ValueError(f"--stand-ins-most {self.most}: from 1 to 100")


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """``stand_ins``: ``None`` makes none. ``startup_taint``: whether it is taken from nodes that have their GPUs."""

    stand_ins: StandInLimits | None = None
    startup_taint: bool = False


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    default: object
    what: str
    help: str
    kind: type = field(default=str)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of autoscaling."""
    group = parser.add_argument_group("autoscaling", "what cluster-autoscaler cannot know by itself")
    group.add_argument(
        "--startup-taint",
        action="store_true",
        help="take the startup taint from nodes whose GPUs are registered (default: never)",
    )
    limits = StandInLimits("default")
    for option in (
        _Option(
            "", None, "NAMESPACE", "make stand-ins there for pods that no single GPU holds (default: never)"
        ),
        _Option(
            "-kind-label", limits.kind_label, "LABEL", "node label of which equal values mean equal GPUs"
        ),
        _Option("-wait", limits.wait_s, "SECONDS", "how long a pod waits before it gets one", float),
        _Option("-most", limits.most, "PODS", "stand-ins at one time at most", int),
    ):
        shown = "" if option.default is None else " (default %(default)s)"
        group.add_argument(
            f"--stand-ins{option.name}",
            type=option.kind,
            default=option.default,
            metavar=option.what,
            help=option.help + shown,
        )


def autoscaling_of(options: argparse.Namespace) -> Autoscaling | None:
    """What was asked for; ``None``: nothing. Raises ``ValueError``."""
    limits = StandInLimits(
        options.stand_ins or "default",
        options.stand_ins_kind_label,
        options.stand_ins_wait,
        options.stand_ins_most,
    )
    if not options.startup_taint and options.stand_ins is None:
        return None
    return Autoscaling(None if options.stand_ins is None else limits, options.startup_taint)
