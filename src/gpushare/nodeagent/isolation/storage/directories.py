"""A directory for each isolated container, on the host: ``limits``, ``usage``, ``claim.json``, and perhaps ``allowance``.

A directory is made under another name and renamed once it is complete, and renamed again before it is deleted: readers find only
complete ones, whenever this process dies. Everything is on disk before ``Allocate`` returns: the kubelet keeps the response over
a power failure and does not call again. Every method may block.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gpushare.nodeagent.isolation.options import CorePolicy
from gpushare.nodeagent.isolation.storage.allowance_file import ALLOWANCE_BYTES
from gpushare.nodeagent.isolation.storage.files import (
    ALLOWANCE,
    CLAIM,
    LIMITS,
    USAGE,
    Claimed,
    claim_text,
    limits_text,
    read_claim,
)

#: Size in bytes of ``usage``: ``REGION_BYTES`` of isolation/files/region.h.
USAGE_BYTES: Final = 496_640

#: What every container's directory has.
_FILES: Final = frozenset((CLAIM, LIMITS, USAGE))
_MADE: Final = ".new-"
_LEAVING: Final = ".gone-"


class Directories:
    """The directories under ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._making: set[str] = set()

    def prepare(self) -> None:
        """Create the root and check that it has room for a container's directory; raises ``OSError``."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self.root / f"{_MADE}{secrets.token_hex(8)}"
        try:
            probe.mkdir(mode=0o700)
            _write(probe / USAGE, b"", 0o600, size=USAGE_BYTES)
        finally:
            _delete(probe)

    def make(self, claimed: Claimed, policy: CorePolicy, name: str = "") -> Path:
        """A complete directory for one container, on disk; raises ``OSError``.

        ``name``: of a directory that was lost or is incomplete. What remains of it is replaced.
        """
        name = name or secrets.token_hex(8)
        # A new name each time: one that was left incomplete by a process that died is in no other's way.
        new = self.root / f"{_MADE}{secrets.token_hex(8)}"
        made = self.root / name
        self._making.add(new.name)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.mkdir(mode=0o755)
            _write(new / CLAIM, claim_text(claimed), 0o600)
            _write(new / LIMITS, limits_text(claimed, policy), 0o444)
            # For any user of the container: the driver's device files are open to all of them, too.
            _write(new / USAGE, b"", 0o666, size=USAGE_BYTES)
            if claimed.allowance:
                # Zeros: its programs wait until they are allowed something.
                _write(new / ALLOWANCE, bytes(ALLOWANCE_BYTES), 0o644)
            sync_folder(new)
            with suppress(FileNotFoundError):
                self.remove(name)
            new.rename(made)
            sync_folder(self.root)
        except OSError:
            _delete(new)
            raise
        finally:
            self._making.discard(new.name)
        return made

    def keep(self, claimed: Claimed, policy: CorePolicy, name: str) -> Path:
        """The directory ``name``, created unless it exists already for the same share; raises ``OSError``.

        Running containers have the files of the existing one, in which their memory accounts must continue.
        """
        existing = self.claim(name)
        if existing is None or not self.is_whole(name, existing) or _share(existing) != _share(claimed):
            return self.make(claimed, policy, name)
        made = self.root / name
        if existing != claimed:
            new = made / f"{CLAIM}.new"
            new.unlink(missing_ok=True)
            _write(new, claim_text(claimed), 0o600)
            new.replace(made / CLAIM)
            sync_folder(made)
        return made

    def names(self) -> list[str]:
        """The names of all complete directories, oldest first."""
        made: list[tuple[int, str]] = []
        with suppress(OSError), os.scandir(self.root) as entries:
            for entry in entries:
                # An entry that is removed meanwhile must not hide the others.
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        made.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        return [name for _, name in sorted(made)]

    def found(self) -> dict[str, Claimed | None]:
        """Every complete directory by name, and its container; ``None`` if that cannot be read. Oldest first."""
        return {name: self.claim(name) for name in self.names()}

    def is_whole(self, name: str, claimed: Claimed | None) -> bool:
        """Whether the directory of ``claimed`` has all its files."""
        try:
            files = os.listdir(f"{self.root}/{name}")
        except OSError:
            return False
        return {*files} >= _FILES and (claimed is None or not claimed.allowance or ALLOWANCE in files)

    def claim(self, name: str) -> Claimed | None:
        """The container of a directory; ``None`` if that cannot be read."""
        try:
            return read_claim((self.root / name / CLAIM).read_bytes())
        except OSError:
            return None

    def remove(self, name: str) -> None:
        """Remove a directory; raises ``OSError``. Containers that have its files mounted keep them."""
        leaving = self.root / f"{_LEAVING}{secrets.token_hex(8)}"
        (self.root / name).rename(leaving)
        _delete(leaving)

    def incomplete(self) -> set[str]:
        """Directories that another process is creating or removing, or that a process that died has left incomplete."""
        try:
            with os.scandir(self.root) as entries:
                names = {entry.name for entry in entries if entry.name.startswith((_MADE, _LEAVING))}
        except OSError:
            return set()
        return names - self._making

    def remove_incomplete(self, name: str) -> None:
        """Remove one of ``incomplete``; never raises."""
        _delete(self.root / name)


def _share(claimed: Claimed) -> Claimed:
    """The fields that determine the limits; not the release of the libraries."""
    return msgspec.structs.replace(claimed, library="")


def sync_folder(folder: Path) -> None:
    """Sync a directory's entries to disk; raises ``OSError``."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: Path, content: bytes, mode: int, *, size: int = 0) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if size:
            # Blocks, not a hole: a full disk fails here, not in a program that writes into its mapping.
            os.posix_fallocate(handle, 0, size)
        os.write(handle, content)
        os.fchmod(handle, mode)
        os.fsync(handle)
    finally:
        os.close(handle)


def _delete(folder: Path) -> None:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                os.unlink(entry.path)
        folder.rmdir()
    except OSError:
        return
