"""The programs of a cluster in one folder: existing ones are used, the rest is built once."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.hosts import HOSTS
from tests.e2e.cluster.kept import CannotBuild, cache, digest, making, renamed
from tests.e2e.cluster.programs import KUBERNETES, chosen, of_host

INIT: Final = "machine-init"
"""Process 1 of machines and pods, compiled from ``init.c``."""

_SOURCE = Path(__file__).parent / "init.c"


def build(
    k8s: str = KUBERNETES[0],
    names: Iterable[str] = (),
    *,
    ready: Path | None = None,
    host: str = "kubeadm",
    report: Callable[[str], None] = print,
) -> Path:
    """A folder that holds the programs ``names`` (all when there is none) and those of ``host``, and :data:`INIT`.

    What is in ``ready`` (else ``$KUBEBUILDER_ASSETS``) is taken from there, unless the host has its own; the rest is built where the cache
    lacks it. The folder is named by what is in it and never changes. Raises :class:`CannotBuild`.
    """
    assets = ready or (
        Path(os.environ["KUBEBUILDER_ASSETS"]) if os.environ.get("KUBEBUILDER_ASSETS") else None
    )
    if assets and not assets.is_dir():
        raise CannotBuild(f"{assets}: no such folder of binaries")
    own = {p.name: p for p in of_host(HOSTS[host])}
    wanted = {p.name: p for p in chosen(k8s, names)} | own
    existing = {
        name: assets / name for name in wanted if assets and name not in own and (assets / name).is_file()
    }
    lacking = [p for p in wanted.values() if p.name not in existing]
    found = {INIT: _init(report)} | existing | built(lacking, report)
    return _gathered(k8s, found)


def _gathered(k8s: str, found: dict[str, Path]) -> Path:
    """One folder of hard links to ``found``."""
    what = [
        f"{name} {path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for name, path in found.items()
    ]
    folder = cache() / "bin" / f"{k8s}-{digest(what)}"
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
    return renamed(temporary, folder)


def _init(report: Callable[[str], None]) -> Path:
    target = cache() / "programs" / f"{INIT}-{digest([_SOURCE.read_text()])}" / INIT
    if target.is_file():
        return target
    if not shutil.which("gcc"):
        raise CannotBuild(f"{INIT}: needs gcc; run scripts/install-e2e-packages")
    report(f"building {INIT} …")
    with making(target) as out:
        subprocess.run(["gcc", "-Os", "-static", "-s", "-o", out, _SOURCE], check=True)
    return target
