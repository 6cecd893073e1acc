"""The files that a container's share is written in: ``limits`` for its library, ``claim.json`` for us. Pure.

``limits`` is read by the library in the container and by the arbiter, of this release or another: first line
``gpushare-limits MAJOR.MINOR``; a reader passes over keys that it does not know where the minor number is higher, and
refuses another major one.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from gpushare.nodeagent.isolation.options import CorePolicy

LIMITS: Final = "limits"
USAGE: Final = "usage"
CLAIM: Final = "claim.json"

#: Where the container finds them, and the driver's own libraries, which ours are linked to by these paths.
IN_CONTAINER: Final = "/run/gpushare"
#: Our libraries, by the names that programs know the driver's by, and what the real ones are called in a container.
SHIMS: Final = {"libcuda.so.1": "libcuda.so", "libnvidia-ml.so.1": "libnvidia-ml.so"}
#: What has a name alone: programs that open the driver by the name of a compiler's link (numba does) would find the real one behind it.
_LINKS: Final = ("libcuda.so", "libnvidia-ml.so")
LIBRARIES: Final = (*SHIMS, *_LINKS)

#: GPUs that one ``limits`` can name: ``LIMITED_GPUS_MAX`` of isolation/files/limits.h.
MOST_GPUS: Final = 16

_FORMAT: Final = "gpushare-limits 1.1"
_MIB: Final = 1 << 20


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whom a directory was made for. ``container`` is its name, ``gpu`` a UUID, ``mib`` its share of that; ``more`` has
    the shares of its other GPUs, by UUID. Without a ``container`` it was made for a ResourceClaim: ``pod`` is the claim's namespace
    and name, ``uid`` its UID.

    ``ids`` is what ``fingerprint`` makes of its device IDs: by them it is found again, if the kubelet gave what was
    answered to a pod that asked alike. ``library`` names the release of our libraries that it was given, empty if none;
    ``compute_class`` is what its pod said of its work, empty if nothing; ``compute_policy`` that of its claim, ``None``: of the node.
    """

    pod: str
    uid: str
    container: str
    gpu: str
    mib: int
    ids: str
    core_percent: int = 0
    library: str = ""
    more: dict[str, int] = {}
    compute_class: str = ""
    compute_policy: CorePolicy | None = None
    version: int = 1

    @property
    def mib_by_gpu(self) -> dict[str, int]:
        """Its share of each of its GPUs, by UUID."""
        return {self.gpu: self.mib, **self.more}

    @property
    def whose(self) -> str:
        """For people."""
        return (
            f"pod {self.pod}, container {self.container}" if self.container else f"ResourceClaim {self.pod}"
        )


def fingerprint(ids: Iterable[str]) -> str:
    """Equal for equal sets of device IDs, and else not."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


def limits_text(claimed: Claimed, policy: CorePolicy) -> bytes:
    """The contents of ``limits``; ``policy`` is that of the node."""
    policy = claimed.compute_policy or policy
    core = f" core_percent={claimed.core_percent} core_policy={policy}" if claimed.core_percent else ""
    if core and claimed.compute_class:
        core += f" core_class={claimed.compute_class}"
    gpus = (f"gpu {gpu} memory_bytes={mib * _MIB}{core}\n" for gpu, mib in claimed.mib_by_gpu.items())
    name = f"{claimed.pod}/{claimed.container}".rstrip("/")
    return f"{_FORMAT}\ncontainer {name} {claimed.uid}\n{''.join(gpus)}".encode()


def claim_text(claimed: Claimed) -> bytes:
    """The contents of ``claim.json``."""
    return msgspec.json.encode(claimed) + b"\n"


def read_claim(text: bytes) -> Claimed | None:
    """What ``claim.json`` says; ``None`` if it cannot be understood."""
    try:
        claimed = msgspec.json.decode(text, type=Claimed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return claimed if claimed.version == 1 else None
