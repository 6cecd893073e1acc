"""Builds programs of Go modules and caches them by content: source pins, flags, Go's version."""

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.e2e.cluster.kept import CannotBuild, alone, cache, digest, making
from tests.e2e.cluster.programs import Program, arguments

_REPORT_EVERY_S: Final = 30.0

_MEMORY: Final = {"GOGC": "off", "GOMEMLIMIT": "3GiB"}
"""Go's compiler and linker live for seconds: collecting their garbage costs a tenth of the build and more."""


def built(programs: Sequence[Program], report: Callable[[str], None]) -> dict[str, Path]:
    """Each program by name: from the cache, or built by one command for all that share module and flags.

    Raises :class:`CannotBuild`.
    """
    if not programs:
        return {}
    go = shutil.which("go")
    if not go:
        names = ", ".join(one.name for one in programs)
        raise CannotBuild(f"{names}: needs Go; install it, or give a folder of binaries with --binaries")
    version = subprocess.run(
        [go, "env", "GOVERSION"], env=_environment(cgo=False), capture_output=True, text=True, check=True
    ).stdout
    targets = {one.name: _target(one, version) for one in programs}
    missing = [one for one in programs if not targets[one.name].is_file()]
    for _, some in itertools.groupby(missing, key=lambda one: (one.module, one.tags, one.ldflags, one.cgo)):
        _build(go, list(some), targets, report)
    return targets


def _target(program: Program, version: str) -> Path:
    pins = [(program.folder / name).read_text() for name in ("go.mod", "go.sum")]
    pins += [source.read_text() for source in sorted(program.folder.rglob("*.go"))]
    key = digest([*pins, *arguments([program], "out"), str(program.cgo), version])
    return cache() / "programs" / f"{program.name}-{key}" / program.name


def _build(go: str, group: list[Program], targets: dict[str, Path], report: Callable[[str], None]) -> None:
    module = group[0].module
    if group[0].cgo:
        for program in group:
            _needs(program)
    # Two concurrent builds of one module would compile everything twice.
    with alone(group[0].folder.name), ExitStack() as stack:
        group = [one for one in group if not targets[one.name].is_file()]
        if not group:
            return
        places = {one.name: stack.enter_context(making(targets[one.name])) for one in group}
        together = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=cache() / "programs", prefix=".making-"))
        )
        names = ", ".join(one.name for one in group)
        start = time.monotonic()
        report(f"building {names} ({module}) …")
        error = _run(
            [go, *arguments(group, f"{together}/")],
            group[0],
            lambda: report(f"still building {names}, for {time.monotonic() - start:.0f} s …"),
        )
        if error:
            raise CannotBuild(f"{names}: go build failed in {group[0].folder}:\n{error[-4000:]}")
        for one in group:
            (together / one.made).rename(places[one.name])
    report(f"built {names} in {time.monotonic() - start:.0f} s")


def _run(argv: list[str], like: Program, waiting: Callable[[], None]) -> str:
    """The command's errors, if it failed; ``waiting`` is called now and then until it ends."""
    with subprocess.Popen(
        argv,
        cwd=like.folder,
        env=_environment(cgo=like.cgo),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while True:
            try:
                _, errors = process.communicate(timeout=_REPORT_EVERY_S)
            except subprocess.TimeoutExpired:
                waiting()
                continue
            return errors.strip() or f"exit status {process.returncode}" if process.returncode else ""


def _environment(*, cgo: bool) -> dict[str, str]:
    own = {"GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": "1" if cgo else "0"}
    return os.environ | own | _MEMORY


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
