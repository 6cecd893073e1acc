"""How containers get their GPU: by NVIDIA's runtime or by CDI. Pure.

NVIDIA's runtime reads ``NVIDIA_VISIBLE_DEVICES`` from the container's environment. CDI needs a container runtime that supports it,
and a spec of the GPUs on the node. The variable is set in both cases, because the documentation promises it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from gpushare.nodeagent.runtime.cdi.derive_spec import Derived

#: The first kubelet that honours CDI names in a device plugin's response (gate DevicePluginCDIDevices, beta).
CDI_FIELD_SINCE: Final = (1, 29)
#: Read in kubelet 1.37.2: ``PluginConnected`` and ``PluginDisconnected`` go by the path of the socket.
SOCKETS_APART_SINCE: Final = (1, 37)

_ADVICE: Final = (
    "Generate a CDI spec on the node with NVIDIA's container toolkit (`nvidia-ctk cdi generate "
    "--output=/var/run/cdi/nvidia.yaml`), or choose NVIDIA's runtime (--container-runtime nvidia)"
)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


class Asked(Enum):
    """Values of ``--container-runtime``."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    CDI = "cdi"


Way = Literal["nvidia", "cdi"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How containers get their GPU, why, and what is wrong if the requested way is not possible."""

    way: Way
    why: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """Versions in the node's status: ``containerd://2.4.2``, ``v1.36.3``; empty if not reported."""

    container_runtime: str = ""
    kubelet: str = ""

    @property
    def keeps_sockets_apart(self) -> bool:
        """Whether the kubelet follows several sockets of one resource, each for itself, and refuses one that it follows already."""
        version = _version(self.kubelet)
        return version is not None and version >= SOCKETS_APART_SINCE


def choose(
    asked: Asked, reported: Reported, derived: Derived | None, gpus: Sequence[str], faults: Sequence[str]
) -> Choice:
    """The way for a node whose ``gpus`` (UUIDs) work. ``faults``: CDI files that cannot be used, one text each."""
    if asked is Asked.NVIDIA:
        return Choice("nvidia", "it is configured")
    without = _not_described(derived, gpus, faults)
    if asked is Asked.CDI:
        unable = _never(reported.container_runtime)
        trouble = (
            f"{unable}. Upgrade it, or choose NVIDIA's runtime (--container-runtime nvidia)" if unable else ""
        )
        return Choice("cdi", "it is configured", trouble or (f"{without}. {_ADVICE}" if without else ""))
    unsure = _never(reported.container_runtime) or _perhaps_not(reported.container_runtime)
    if unsure or without or derived is None:
        return Choice("nvidia", unsure or without or "there is no GPU to describe")
    return Choice(
        "cdi", f"{reported.container_runtime} supports CDI, and {derived.source} describes every GPU"
    )


def needs_annotation(reported: Reported) -> bool:
    """Whether the kubelet passes CDI names on only as annotations of the container."""
    version = _version(reported.kubelet)
    return version is not None and version < CDI_FIELD_SINCE


def _not_described(derived: Derived | None, gpus: Sequence[str], faults: Sequence[str]) -> str:
    """Why CDI cannot assign every GPU; empty if it can."""
    missing = [uuid for uuid in gpus if derived is None or uuid not in derived.covered]
    if not missing:
        return ""
    broken = f" ({'; '.join(faults)})" if faults else ""
    if derived is None:
        return f"no CDI description of this node's GPUs was found{broken}"
    return f"the CDI description {derived.source} does not have GPU {', '.join(missing)}{broken}"


def _never(runtime: str) -> str:
    """Why this runtime does not support CDI; empty if it may."""
    name, version = _named(runtime)
    if name == "docker":
        return f"{runtime} gets no CDI names from the kubelet"
    least = {"containerd": (1, 7), "cri-o": (1, 23)}.get(name)
    if least is not None and version is not None and version < least:
        return f"{runtime} is older than {name} {least[0]}.{least[1]}, the first version with CDI support"
    return ""


def _perhaps_not(runtime: str) -> str:
    """Why it is unknown whether this runtime supports CDI; empty if it does."""
    name, version = _named(runtime)
    if name == "cri-o" and version is not None:
        return ""
    if name == "containerd" and version is not None:
        if version >= (2, 0):
            return ""
        return (
            f"{runtime} supports CDI only with enable_cdi = true, which the agent cannot detect; "
            "if it is set, use --container-runtime cdi"
        )
    return f"it is unknown whether the container runtime {runtime or '(not reported)'} supports CDI"


def _named(runtime: str) -> tuple[str, tuple[int, int] | None]:
    name, _, version = runtime.partition("://")
    return name, _version(version)


def _version(text: str) -> tuple[int, int] | None:
    match = _VERSION.match(text)
    return None if match is None else (int(match[1]), int(match[2]))
