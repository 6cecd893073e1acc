"""Copies our libraries from the image to the host, where container runtimes find them to mount.

Each release has a directory that is named after its contents and never changes: containers that have an older release keep it. So
that two successive agents do not remove each other's release before a container has it, each renews its directory's modification
time. Every function may block.
"""

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.nodeagent.errors import NodeAgentError
from gpushare.nodeagent.isolation.storage.directories import sync_folder
from gpushare.nodeagent.isolation.storage.files import DELIVERED, IN_CONTAINER, LIBRARIES

#: The list of libraries that the dynamic linker loads first, regardless of the environment.
PRELOAD: Final = "ld.so.preload"
_NEW: Final = ".new-"
_LEAVING: Final = ".gone-"
#: Seconds after which no process can still be writing a release.
_OLD_S: Final = 3600.0
#: How often the modification time is renewed, and how long that protects a release: its self-test may take minutes.
_RENEW_S: Final = 60.0
HELD_S: Final = 600.0


class NoLibrary(NodeAgentError):
    """Our libraries are missing, or cannot be copied to the host."""


@dataclass(frozen=True, slots=True)
class Release:
    """Libraries on the host: ``name`` follows from their contents."""

    name: str
    folder: Path


def deliver(source: Path, target: Path) -> Release:
    """Copy the libraries of ``source`` into their own directory under ``target`` if needed; raises ``NoLibrary``."""
    try:
        contents = {name: (source / name).read_bytes() for name in DELIVERED}
    except OSError as error:
        raise NoLibrary(
            str(error.filename),
            f"{error.strerror}; it is part of the image, or made by make -C isolation (--isolation-library-dir)",
        ) from None
    contents[PRELOAD] = "".join(f"{IN_CONTAINER}/lib/{name}\n" for name in LIBRARIES).encode()
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    release = Release(digest.hexdigest()[:16], target / digest.hexdigest()[:16])
    hold(release)
    try:
        if not is_whole(release):
            _copy(contents, release.folder)
        if os.statvfs(release.folder).f_flag & os.ST_NOEXEC:
            raise NoLibrary(
                str(target),
                "it is mounted noexec, so no program can load a library from it; choose another --isolation-dir",
            )
    except OSError as error:
        raise NoLibrary(
            str(target), f"it cannot be written: {error.strerror or error}; mount it into the node agent"
        ) from None
    return release


def is_whole(release: Release) -> bool:
    """Whether the release has all its files on the host."""
    return all((release.folder / name).is_file() for name in (*DELIVERED, PRELOAD))


def hold(release: Release) -> None:
    """Mark the release as in use for other agents of this node."""
    if _is_old(release.folder, _RENEW_S):
        with suppress(OSError):
            os.utime(release.folder)


def _copy(contents: dict[str, bytes], folder: Path) -> None:
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = folder.parent / f"{_NEW}{secrets.token_hex(8)}"
    new.mkdir(mode=0o755)
    try:
        for name, content in contents.items():
            with (new / name).open("wb") as file:
                os.fchmod(file.fileno(), 0o644 if name == PRELOAD else 0o755)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(new)
        try:
            new.rename(folder)
        except OSError:
            # Another agent copied the same meanwhile, or it was here and incomplete.
            if not folder.is_dir():
                raise
            for name in contents:
                (new / name).replace(folder / name)
            sync_folder(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def remove_others(target: Path, keep: Collection[str], held_s: float = HELD_S) -> list[str]:
    """Remove the releases under ``target`` that are not in ``keep``, and incomplete ones; returns the removed names.

    A release that an agent marked less than ``held_s`` seconds ago stays.
    """
    gone = []
    try:
        found = [one for one in target.iterdir() if one.is_dir()]
    except OSError:
        return []
    for folder in found:
        if folder.name.startswith("."):
            if folder.name.startswith(_LEAVING) or _is_old(folder, _OLD_S):
                shutil.rmtree(folder, ignore_errors=True)
        elif folder.name not in keep and _is_old(folder, held_s):
            # Renamed first: an incomplete release under its own name would be used by an agent that goes back to it.
            leaving = target / f"{_LEAVING}{folder.name}"
            with suppress(OSError):
                folder.rename(leaving)
                gone.append(folder.name)
            shutil.rmtree(leaving, ignore_errors=True)
    return gone


def _is_old(folder: Path, seconds: float) -> bool:
    try:
        return time.time() - folder.stat().st_mtime > seconds
    except OSError:
        return False


def remove_all(*folders: Path) -> None:
    """Remove these directories and their parent, if that is empty and not a mount point."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for above in {folder.parent for folder in folders}:
        with suppress(OSError):
            above.rmdir()
