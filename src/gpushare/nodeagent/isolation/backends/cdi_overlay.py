"""A CDI spec in which our libraries take the place of the driver's. Pure.

It is derived from our own spec of the GPUs (``cdi.derive_spec``): wherever that mounts ``libcuda.so.VERSION`` or
``libnvidia-ml.so.VERSION`` into containers, ours is mounted instead, and the driver's own is mounted where ours are linked
to. So full paths and unset variables lead to our libraries, too.
"""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gpushare.nodeagent.errors import NodeAgentError
from gpushare.nodeagent.isolation.storage.files import IN_CONTAINER, OPTIONAL, SHIMS

KIND: Final = "gpushare.dev/isolated"

_DRIVER: Final = re.compile(r"(libcuda|libnvidia-ml)\.so(\.[0-9]+)*")
#: Folders of 32-bit libraries. Ours are 64-bit only, so these would not be limited.
_NARROW: Final = re.compile(r"/(i[3-6]86[^/]*|lib32|arm-linux-gnueabihf)/")
#: A hook of NVIDIA's that prefers a driver library from the container's image, which would not be limited either.
_COMPAT: Final = "enable-cuda-compat"


class NotShimmed(NodeAgentError):
    """A spec in which our libraries cannot take the driver's place."""


def qualified(uuid: str) -> str:
    """The CDI name of a GPU with our libraries in place of the driver's."""
    return f"{KIND}={uuid}"


def shimmed(content: bytes, library: Path) -> bytes:
    """``content`` with the libraries in the host folder ``library`` in place of the driver's.

    Raises ``NotShimmed`` if it does not mount the driver's libraries.
    """
    described = json.loads(content)
    for_all = described.get("containerEdits") or {}
    wide = any("/lib64/" in str(one.get("hostPath")) for one in for_all.get("mounts") or ())
    edits, found = _edited(for_all, library, wide=wide)
    devices = []
    for device in described["devices"]:
        own, also = _edited(device.get("containerEdits") or {}, library, wide=wide)
        missing = sorted(set(SHIMS.values()) - found - also)
        if missing:
            raise NotShimmed(
                "the CDI description",
                f"it does not mount {' and '.join(missing)} of the driver for GPU {device['name']}, "
                "so our libraries cannot be mounted in their place",
            )
        devices.append({**device, "containerEdits": own})
    changed = {**described, "kind": KIND, "containerEdits": edits, "devices": devices}
    return (json.dumps(changed, indent=1, sort_keys=True) + "\n").encode()


def _edited(edits: dict[str, Any], library: Path, *, wide: bool) -> tuple[dict[str, Any], set[str]]:
    """The edits with our libraries in place, and the driver libraries that they mount."""
    found: set[str] = set()
    mounts: list[dict[str, Any]] = []
    for mount in edits.get("mounts") or ():
        match = _DRIVER.fullmatch(PurePosixPath(str(mount.get("containerPath"))).name)
        if match is None:
            mounts.append(mount)
        elif not _is_narrow(str(mount.get("hostPath")), wide=wide):
            real = f"{match[1]}.so"
            mounts.append({**mount, "hostPath": str(library / f"{real}.1")})
            if real not in found:
                found.add(real)
                mounts.append({**mount, "containerPath": f"{IN_CONTAINER}/driver/{real}"})
                optional = OPTIONAL[real]
                mounts.append(
                    {
                        **mount,
                        "hostPath": str(library / optional),
                        "containerPath": f"{IN_CONTAINER}/lib/{optional}",
                    }
                )
    changed = dict(edits)
    if mounts:
        changed["mounts"] = mounts
    if "hooks" in changed:
        changed["hooks"] = [one for one in changed["hooks"] or () if _COMPAT not in (one.get("args") or ())]
    return changed, found


def _is_narrow(path: str, *, wide: bool) -> bool:
    """Whether a library is 32-bit; ``wide``: 64-bit ones are in folders named ``lib64``."""
    return _NARROW.search(path) is not None or (wide and "/lib64/" not in path)
