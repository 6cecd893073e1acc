"""The CDI file of each prepared claim: what its containers get in addition to GPUs. Also the record of prepared claims.

Runtimes resolve CDI names at every container start, so a file is written before the kubelet gets its response, and stays until the
claim is unprepared. It is in memory (``/var/run/cdi``), because the kubelet prepares every claim again after a reboot. A claim for
which MIG instances are created has a record of them before, which no runtime reads.
"""

import json
import logging
import os
import time
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
_BEGUN: Final = ".begun"
_NAME: Final = "gpushare.dev/claim"
_SHARES: Final = "gpushare.dev/shares"
_INSTANCES: Final = "gpushare.dev/instances"
#: Seconds after which no process can still be writing a file.
_OLD_S: Final = 60.0


class ClaimedShare(NamedTuple):
    """The limits of a prepared claim on one GPU (UUID); 0 percent: compute is not limited. No ``core_policy``: the node's."""

    gpu: str
    mib: int
    core_percent: int
    core_policy: CorePolicy | None = None


class PreparedClaim(NamedTuple):
    """A prepared claim, and its shares of GPUs; none if it only monitors them, or while its MIG instances are being created.

    ``instances``: the MIG instances that were created for it and perhaps others, by the names of their devices.
    """

    claim: ClaimReference
    shares: tuple[ClaimedShare, ...]
    instances: tuple[str, ...] = ()


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
            **({_INSTANCES: ",".join(prepared.instances)} if prepared.instances else {}),
        },
        "devices": [
            {
                "name": prepared.claim.uid,
                "containerEdits": {field: values for field, values in edits.items() if values},
            }
        ],
    }
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


#: Inode and modification time of a file, which is never changed in place.
_Version = tuple[int, int]


class ClaimFiles:
    """The files in ``folder``, the last of the CDI folders. Every method may block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last_read: dict[str, tuple[_Version, PreparedClaim | None]] = {}

    def begin(self, prepared: PreparedClaim) -> None:
        """Record the MIG instances that a claim is about to get; raises ``OSError``."""
        self._replace(self._path(prepared.claim.uid, _BEGUN), claim_spec(prepared, Injection()))

    def write(self, prepared: PreparedClaim, injection: Injection) -> None:
        """Write the claim's file atomically; raises ``OSError``."""
        self._replace(self._path(prepared.claim.uid), claim_spec(prepared, injection))
        self._path(prepared.claim.uid, _BEGUN).unlink(missing_ok=True)

    def _replace(self, path: Path, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            new.write_bytes(content)
            new.chmod(0o644)
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def remove(self, uid: str) -> None:
        """Remove the claim's files, if they exist; raises ``OSError``."""
        self._path(uid).unlink(missing_ok=True)
        self._path(uid, _BEGUN).unlink(missing_ok=True)

    def read(self) -> dict[str, PreparedClaim | None]:
        """Every claim that has a file, by UID: ``None`` if it cannot be read now. Raises ``OSError``."""
        try:
            with os.scandir(self._folder) as entries:
                files = {one.name: one for one in entries if one.name.startswith(_PREFIX)}
        except FileNotFoundError:
            return {}
        self._last_read = {name: last for name, last in self._last_read.items() if name in files}
        found: dict[str, PreparedClaim | None] = {}
        for suffix in (_BEGUN, _SUFFIX):  # what the CDI file says counts
            for name in sorted(files):
                if name.endswith(suffix):
                    uid = name.removeprefix(_PREFIX).removesuffix(suffix)
                    found[uid] = self._read(files[name], uid) or found.get(uid)
        return found

    def _read(self, file: "os.DirEntry[str]", uid: str) -> PreparedClaim | None:
        try:
            status = file.stat()
            version = (status.st_ino, status.st_mtime_ns)
            last = self._last_read.get(file.name)
            if last is not None and last[0] == version:
                return last[1]
            content = Path(file).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s cannot be read and is ignored: %s", file.path, error)
            return None
        prepared = _parsed(file.path, content, uid)
        self._last_read[file.name] = (version, prepared)
        return prepared

    def sweep(self) -> None:
        """Remove partly written files of processes that died; never raises. Another agent may be writing young ones."""
        with suppress(OSError):
            for path in self._folder.glob(f".{_PREFIX}*"):
                if time.time() - path.stat().st_mtime > _OLD_S:
                    path.unlink(missing_ok=True)

    def _path(self, uid: str, suffix: str = _SUFFIX) -> Path:
        return self._folder / f"{_PREFIX}{uid}{suffix}"


def _parsed(path: str, content: bytes, uid: str) -> PreparedClaim | None:
    try:
        notes = json.loads(content)["annotations"]
        namespace, _, name = notes[_NAME].partition("/")
        shares = tuple(map(_read_share, filter(None, notes[_SHARES].split(","))))
        instances = tuple(filter(None, notes.get(_INSTANCES, "").split(",")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read and is ignored: %s", path, error)
        return None
    return PreparedClaim(ClaimReference(namespace, name, uid), shares, instances)


def _read_share(text: str) -> ClaimedShare:
    """A share as ``claim_spec`` writes it; raises ``ValueError``."""
    gpu, _, amounts = text.partition("=")
    mib, core_percent, policy = amounts.split("/")
    known = next((one for one in CORE_POLICIES if one == policy), None)
    return ClaimedShare(gpu, int(mib), int(core_percent), known)
