"""Images that a cluster cannot do without, made from programs at hand; archives that containerd imports."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.oci import Config, Entry, file, folder, link, make_layer, write_archive
from tests.e2e.cluster.binaries import INIT, CannotBuild, cache
from tests.e2e.cluster.settings import PAUSE_IMAGE

BUSYBOX_IMAGES: Final = (
    "e2e.local/busybox:1",
    "docker.io/library/busybox:1.35",
    "docker.io/library/busybox:1.36",
)
"""Names of the image with a shell, nc, httpd; its wget crashes in pods, nc does not."""

NOBODY: Final = "65532:65532"


def pause(binaries: Path) -> Path:
    """The archive of what holds a pod's namespaces."""
    program = binaries / INIT
    return _kept([PAUSE_IMAGE], [file("/pause", program, 0o755)], Config(entrypoint=["/pause"]), [program])


def busybox(refs: Sequence[str] = BUSYBOX_IMAGES, more: Sequence[Entry] = ()) -> Path:
    """The archive of a shell with everything that busybox has, and ``more``. Raises ``CannotBuild`` without busybox."""
    found = shutil.which("busybox")
    if not found:
        raise CannotBuild("busybox: missing; run scripts/install-e2e-packages")
    program = Path(found).resolve()
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    entries = [file("/bin/busybox", program, 0o755), folder("/tmp", 0o1777), folder("/etc")]
    entries += [link(f"/bin/{name}", "/bin/busybox") for name in applets if name != "busybox"]
    config = Config(command=["sh"], env={"PATH": "/bin"})
    return _kept(refs, [*entries, *more], config, [program])


def kube_scheduler(binaries: Path, version: str) -> Path:
    """The archive of ``registry.k8s.io/kube-scheduler:VERSION``, with the program where the published one has it."""
    program = binaries / "kube-scheduler"
    config = Config(env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
    entries = [file("/usr/local/bin/kube-scheduler", program, 0o755), folder("/tmp", 0o1777)]
    return _kept([f"registry.k8s.io/kube-scheduler:{version}"], entries, config, [program])


def image_of(ref: str, path: str, program: Path, *, user: str = NOBODY) -> Path:
    """The archive of an image called ``ref`` that holds one static program, at ``path`` in it, run by ``user``."""
    return _kept(
        [ref],
        [file(path, program, 0o755), folder("/tmp", 0o1777)],
        Config(entrypoint=[path], user=user),
        [program],
    )


def archives(binaries: Path, version: str) -> list[Path]:
    """All images that every node has."""
    return [pause(binaries), busybox(), kube_scheduler(binaries, version)]


def _kept(refs: Sequence[str], entries: list[Entry], config: Config, made_of: Sequence[Path]) -> Path:
    # A program's path does not identify its content.
    names = [
        (e.path, e.kind, e.mode, e.target, e.content if isinstance(e.content, bytes) else b"")
        for e in entries
    ]
    key = hashlib.sha256(repr((list(refs), names, config)).encode())
    for path in made_of:
        with path.open("rb") as content:
            key.update(hashlib.file_digest(content, "sha256").digest())
    name = refs[0].rpartition("/")[2].replace(":", "-")
    target = cache() / "images" / f"{name}-{key.hexdigest()[:16]}.tar"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as blobs:
            layer = make_layer(entries, Path(blobs), made_by="tests/e2e/cluster/sample_images.py")
            made = Path(blobs) / "archive.tar"
            write_archive(made, list(refs), [layer], config)
            os.replace(made, target)
    return target
