"""Builds the programs of a cluster once and keeps them by content: source pins, flags, Go's version."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.e2e.cluster.programs import KUBERNETES, Program, chosen

INIT: Final = "machine-init"
"""Process 1 of machines and pods, compiled from ``init.c``."""

_SOURCE = Path(__file__).parent / "init.c"


class CannotBuild(RuntimeError):
    """A program cannot be built; the message says what to do."""


def cache() -> Path:
    """``$GPUSHARE_E2E_CACHE``, else ``~/.cache/gpushare/e2e``."""
    named = os.environ.get("GPUSHARE_E2E_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "gpushare" / "e2e"


def build(
    k8s: str = KUBERNETES[0],
    names: Iterable[str] = (),
    *,
    ready: Path | None = None,
    told: Callable[[str], None] = print,
) -> Path:
    """A folder that holds the programs ``names`` (all when there is none), and :data:`INIT`.

    What is in ``ready`` (else ``$KUBEBUILDER_ASSETS``) is taken from there, the rest is built where the cache
    lacks it. The folder is named by what is in it and never changes. Raises :class:`CannotBuild`.
    """
    assets = ready or (
        Path(os.environ["KUBEBUILDER_ASSETS"]) if os.environ.get("KUBEBUILDER_ASSETS") else None
    )
    if assets and not assets.is_dir():
        raise CannotBuild(f"{assets}: no such folder of binaries")
    found = {INIT: _init(told)}
    for program in chosen(k8s, names):
        given = assets / program.name if assets else None
        found[program.name] = given if given and given.is_file() else _built(program, told)
    return _gathered(k8s, found)


def _gathered(k8s: str, found: dict[str, Path]) -> Path:
    """One folder of hard links to ``found``."""
    what = [
        f"{name} {path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for name, path in found.items()
    ]
    folder = cache() / "bin" / f"{k8s}-{_digest(what)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    for name, path in found.items():
        try:
            (temporary / name).hardlink_to(path.resolve())
        except OSError:  # another file system, or one without hard links
            shutil.copy2(path, temporary / name)
    temporary.chmod(0o755)
    return _renamed(temporary, folder)


def _built(program: Program, told: Callable[[str], None]) -> Path:
    go = shutil.which("go")
    if not go:
        raise CannotBuild(
            f"{program.name}: needs Go; install it, or give a folder of binaries with --binaries"
        )
    environment = os.environ | {
        "GOFLAGS": "-buildvcs=false",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "1" if program.cgo else "0",
    }
    version = subprocess.run(
        [go, "env", "GOVERSION"], env=environment, capture_output=True, text=True, check=True
    )
    pins = [(program.folder / name).read_text() for name in ("go.mod", "go.sum")]
    key = _digest([*pins, *program.arguments(Path("out")), str(program.cgo), version.stdout])
    target = cache() / "programs" / f"{program.name}-{key}" / program.name
    if target.is_file():
        return target
    if program.cgo:
        _needs(program)
    # Two builds of one module side by side would compile everything twice.
    with _alone(program.module), _making(target) as out:
        if target.is_file():
            return target
        told(f"building {program.name} ({program.module}) …")
        start = time.monotonic()
        done = subprocess.run(
            [go, *program.arguments(out)],
            cwd=program.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CannotBuild(
                f"{program.name}: go build failed in {program.folder}:\n{done.stderr.strip()[-4000:]}"
            )
    told(f"built {program.name} in {time.monotonic() - start:.0f} s")
    return target


def _needs(program: Program) -> None:
    if not shutil.which("gcc"):
        raise CannotBuild(f"{program.name}: needs gcc; run scripts/install-e2e-packages")
    if program.name == "runc":
        there = (
            subprocess.run(["pkg-config", "--exists", "libseccomp"], check=False)
            if shutil.which("pkg-config")
            else None
        )
        if there is None or there.returncode:
            raise CannotBuild("runc: needs libseccomp-dev and pkg-config; run scripts/install-e2e-packages")


def _init(told: Callable[[str], None]) -> Path:
    target = cache() / "programs" / f"{INIT}-{_digest([_SOURCE.read_text()])}" / INIT
    if target.is_file():
        return target
    if not shutil.which("gcc"):
        raise CannotBuild(f"{INIT}: needs gcc; run scripts/install-e2e-packages")
    told(f"building {INIT} …")
    with _making(target) as out:
        subprocess.run(["gcc", "-Os", "-static", "-s", "-o", out, _SOURCE], check=True)
    return target


@contextlib.contextmanager
def _alone(what: str) -> Iterator[None]:
    """Nobody else is in here for ``what``; waits for who is."""
    lock = cache() / "programs" / f".{what}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _making(target: Path) -> Iterator[Path]:
    """A path to write; ``target`` appears with its folder once it is written, or not at all."""
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent.parent, prefix=".making-"))
    try:
        yield temporary / target.name
        if (temporary / target.name).is_file():
            temporary.chmod(0o755)
            _renamed(temporary, target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _renamed(temporary: Path, folder: Path) -> Path:
    """``temporary`` becomes ``folder``, unless another process was faster."""
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(temporary)
    return folder


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
