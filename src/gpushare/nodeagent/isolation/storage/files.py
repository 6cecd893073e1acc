"""The files with a container's share: ``limits`` for its library, ``claim.json`` for us. Pure.

``limits`` is read by the library in the container and by the arbiter, of this release or another. Its first line is
``gpushare-limits MAJOR.MINOR``. A reader ignores unknown keys if the minor number is higher, and refuses another major number.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from gpushare.nodeagent.isolation.options import CorePolicy

LIMITS: Final = "limits"
USAGE: Final = "usage"
CLAIM: Final = "claim.json"
ALLOWANCE: Final = "allowance"

#: Where the container finds them, and the driver's own libraries, to which ours are linked by these paths.
IN_CONTAINER: Final = "/run/gpushare"
#: Our libraries, by the names that programs use for the driver's, and the names of the real ones in a container.
SHIMS: Final = {"libcuda.so.1": "libcuda.so", "libnvidia-ml.so.1": "libnvidia-ml.so"}
#: Further names: programs that open the driver by the name of a compiler's link (as numba does) would otherwise find the real library.
_LINKS: Final = ("libcuda.so", "libnvidia-ml.so")
#: What a container's programs load.
LIBRARIES: Final = (*SHIMS, *_LINKS)
#: What ours are linked to: each depends on the driver's library if that is there, by its name in a container.
OPTIONAL: Final = {
    "libcuda.so": "libgpushare-optional-cuda.so.1",
    "libnvidia-ml.so": "libgpushare-optional-nvml.so.1",
}
#: All that is delivered to a node.
DELIVERED: Final = (*LIBRARIES, *OPTIONAL.values())

#: The most GPUs that one ``limits`` can name: ``LIMITED_GPUS_MAX`` of isolation/files/limits.h.
MOST_GPUS: Final = 16

_FORMAT: Final = "gpushare-limits 1.2"
_MIB: Final = 1 << 20


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner of a directory. ``container`` is its name, ``gpu`` a UUID, ``mib`` its share of that GPU; ``more`` has its
    shares of other GPUs, by UUID. Without a ``container`` it is a ResourceClaim: ``pod`` is the claim's namespace and name, ``uid``
    its UID.

    ``ids`` is the ``fingerprint`` of its device IDs, by which it is found again if the kubelet gave the response to a pod with an
    identical request. ``library`` names the release of our libraries that it got, empty if none; ``compute_class`` is what its pod
    declares of its work, empty if nothing; ``compute_policy`` that of its claim, ``None``: that of the node. ``limit_mib``: how much it may
    use of its GPU while that is free, 0 if not more than its share; ``allowance``: there is a file with what it may use at the moment.
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
    limit_mib: int = 0
    allowance: bool = False
    version: int = 1

    @property
    def mib_by_gpu(self) -> dict[str, int]:
        """The share of each of its GPUs, by UUID."""
        return {self.gpu: self.mib, **self.more}

    @property
    def whose(self) -> str:
        """The owner, for people."""
        return (
            f"pod {self.pod}, container {self.container}" if self.container else f"ResourceClaim {self.pod}"
        )


def fingerprint(ids: Iterable[str]) -> str:
    """Equal for equal sets of device IDs only."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


def limits_text(claimed: Claimed, policy: CorePolicy) -> bytes:
    """The contents of ``limits``; ``policy`` is that of the node."""
    policy = claimed.compute_policy or policy
    core = f" core_percent={claimed.core_percent} core_policy={policy}" if claimed.core_percent else ""
    if core and claimed.compute_class:
        core += f" core_class={claimed.compute_class}"
    gpus = (f"gpu {gpu} memory_bytes={mib * _MIB}{core}\n" for gpu, mib in claimed.mib_by_gpu.items())
    name = f"{claimed.pod}/{claimed.container}".rstrip("/")
    allowance = f"{ALLOWANCE}\n" if claimed.allowance else ""
    return f"{_FORMAT}\ncontainer {name} {claimed.uid}\n{''.join(gpus)}{allowance}".encode()


def claim_text(claimed: Claimed) -> bytes:
    """The contents of ``claim.json``."""
    return msgspec.json.encode(claimed) + b"\n"


def read_claim(text: bytes) -> Claimed | None:
    """The contents of ``claim.json``; ``None`` if they are not valid."""
    try:
        claimed = msgspec.json.decode(text, type=Claimed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return claimed if claimed.version == 1 else None
