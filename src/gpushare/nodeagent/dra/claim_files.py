"""The CDI file of each prepared claim: what its containers get in addition to GPUs. Also the record of prepared claims.

Runtimes resolve CDI names at every container start, so a file is written before the kubelet gets its response, and stays until the
claim is unprepared. It is in memory (``/var/run/cdi``), because the kubelet prepares every claim again after a reboot.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.dra.claims import ClaimReference
from gpushare.nodeagent.isolation.options import CORE_POLICIES, CorePolicy

logger = logging.getLogger(__name__)

KIND: Final = "gpushare.dev/claim"
_PREFIX: Final = "gpushare.dev-claim-"
_SUFFIX: Final = ".json"
_NAME: Final = "gpushare.dev/claim"
_SHARES: Final = "gpushare.dev/shares"


class ClaimedShare(NamedTuple):
    """The limits of a prepared claim on one GPU (UUID); 0 percent: compute is not limited. No ``core_policy``: the node's."""

    gpu: str
    mib: int
    core_percent: int
    core_policy: CorePolicy | None = None


class PreparedClaim(NamedTuple):
    """A prepared claim, and its shares of GPUs; none if it only monitors them."""

    claim: ClaimReference
    shares: tuple[ClaimedShare, ...]


def qualified(uid: str) -> str:
    """The CDI name of what a claim adds to its GPUs."""
    return f"{KIND}={uid}"


def claim_spec(prepared: PreparedClaim, injection: Injection) -> bytes:
    """The contents of a claim's CDI file."""
    edits: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in sorted(injection.envs.items())],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in injection.mounts
        ],
        "deviceNodes": [
            {"hostPath": device.host_path, "path": device.container_path, "permissions": device.permissions}
            for device in injection.devices
        ],
    }
    content = {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "annotations": {
            _NAME: prepared.claim.key,
            _SHARES: ",".join(
                f"{share.gpu}={share.mib}/{share.core_percent}/{share.core_policy or ''}"
                for share in prepared.shares
            ),
        },
        "devices": [
            {
                "name": prepared.claim.uid,
                "containerEdits": {field: values for field, values in edits.items() if values},
            }
        ],
    }
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


class ClaimFiles:
    """The files in ``folder``, the last of the CDI folders. Every method may block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, prepared: PreparedClaim, injection: Injection) -> None:
        """Write the claim's file atomically; raises ``OSError``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(prepared.claim.uid)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            new.write_bytes(claim_spec(prepared, injection))
            new.chmod(0o644)
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def remove(self, uid: str) -> None:
        """Remove the claim's file, if it exists; raises ``OSError``."""
        self._path(uid).unlink(missing_ok=True)

    def read(self) -> Iterator[PreparedClaim]:
        """Every claim that has a file; unreadable files are skipped."""
        try:
            paths = sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}"))
        except OSError:
            return
        for path in paths:
            uid = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            try:
                notes = json.loads(path.read_bytes())["annotations"]
                namespace, _, name = notes[_NAME].partition("/")
                shares = tuple(map(_read_share, filter(None, notes[_SHARES].split(","))))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                logger.warning("%s cannot be read and is passed over: %s", path, error)
                continue
            yield PreparedClaim(ClaimReference(namespace, name, uid), shares)

    def sweep(self) -> None:
        """Remove partly written files of processes that died; never raises."""
        with suppress(OSError):
            for path in self._folder.glob(f".{_PREFIX}*"):
                path.unlink(missing_ok=True)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{_PREFIX}{uid}{_SUFFIX}"


def _read_share(text: str) -> ClaimedShare:
    """A share as ``claim_spec`` writes it; raises ``ValueError``."""
    gpu, _, amounts = text.partition("=")
    mib, core_percent, policy = amounts.split("/")
    known = next((one for one in CORE_POLICIES if one == policy), None)
    return ClaimedShare(gpu, int(mib), int(core_percent), known)
