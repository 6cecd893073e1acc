"""Build results cached by content, safe for concurrent processes."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path


class CannotBuild(RuntimeError):
    """A program cannot be built; the message says what to do."""


def cache() -> Path:
    """``$GPUSHARE_E2E_CACHE``, else ``~/.cache/gpushare/e2e``."""
    configured = os.environ.get("GPUSHARE_E2E_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "gpushare" / "e2e"


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """An exclusive lock for ``what``, held while the block runs."""
    lock = cache() / "programs" / f".{what}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def making(target: Path) -> Iterator[Path]:
    """A path to write; ``target`` appears with its folder once it is written, or not at all."""
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent.parent, prefix=".making-"))
    try:
        yield temporary / target.name
        if (temporary / target.name).is_file():
            temporary.chmod(0o755)
            renamed(temporary, target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def renamed(temporary: Path, folder: Path) -> Path:
    """``temporary`` becomes ``folder``, unless another process was faster."""
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(temporary)
    return folder


def digest(parts: Iterable[str]) -> str:
    """A short name for what ``parts`` say."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
