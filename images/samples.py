"""The reference documentation's sample images for a test bed without a registry.

What they run is described once, for the playground's images (``gpushare_playground/images``): the same programs run
here, on a small Debian with Python, a shell and NVML's binding. The driver is not in them, as it is in no CUDA
image: the container runtime puts it there.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from gpushare_playground.images.registry import Image, Registry
from images import debian, oci, product, python
from images.errors import CannotBuild
from images.parts import Part, Store, key_of

_ALI = ("registry.cn-hangzhou.aliyuncs.com", "registry.cn-beijing.aliyuncs.com")
#: Archive → the names that manifests of the documentation use for the image in it.
REFS: Final[Mapping[str, Sequence[str]]] = {
    f"gpushare-sample-{tag}": [f"{host}/ai-samples/gpushare-sample:{tag}" for host in _ALI]
    for tag in ("tensorflow-1.5", "cuda-sample-11.0.3", "benchmark-tensorflow-2.2.3")
} | {"gpu-player-v2": ["docker.io/cheyang/gpu-player:v2"]}

#: What people type in a container of a sample; the product's image has no shell at all.
_WANTED: Final = ("bash", "busybox-static")
_LEFT_OUT: Final = ("debianutils", *product.LEFT_OUT)
_PACKAGE: Final = product.PROJECT / "src" / "gpushare_playground"
_SITE: Final = f"/{python.SITE}"
_PYTHON: Final = "/usr/bin/python3"
#: As in NVIDIA's CUDA images, where older runtimes put the driver.
_ENV: Final = {
    "PATH": "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "PYTHONUTF8": "1",
}


def build(store: Store) -> list[Path]:
    """Write one archive for each of :data:`REFS`."""
    lowest = product.base(store)
    shell = _shell(store, lowest)
    programs = _programs(store, lowest, product.pinned(store, lowest))
    registry = Registry()
    archives = []
    for name, refs in REFS.items():
        image = registry.find(refs[0])
        if any(registry.find(ref) is not image for ref in refs):
            raise CannotBuild(f"{', '.join(refs)} are described as different images; see {_PACKAGE}/images")
        made_of = sorted(set(image.files.values()))
        part = store.part(name, key_of([Path(__file__), *made_of], repr(image), _SITE))
        if part.stale:
            part.keep(furnishing(image), [], f"the programs of {refs[0]}")
        config = oci.Config(
            entrypoint=image.command, command=image.args, env=_ENV | dict(image.env), workdir=image.workdir
        )
        archive = store.folder / f"{name}.tar"
        store.write(archive, refs, [lowest.layer, shell.layer, programs.layer, part.layer], config)
        archives.append(archive)
    return archives


def furnishing(image: Image) -> Iterator[oci.Entry]:
    """The files and commands of a described image, as :meth:`Image.furnish` gives them to the playground's."""
    yield oci.folder("/root", 0o700)
    for inside, path in image.files.items():
        content = path.read_bytes()
        yield oci.file(inside, content, 0o755 if content.startswith(b"#!") else 0o644)
    for name, line in image.programs.items():
        inside_line = [_inside(word) for word in line]
        # The layer below has these.
        if inside_line != [_PYTHON] or name not in ("python", "python3"):
            yield oci.file(
                f"/usr/local/bin/{name}", f'#!/bin/sh\nexec {shlex.join(inside_line)} "$@"\n'.encode(), 0o755
            )


def _inside(word: str) -> str:
    """A word of a command line of this machine, as it must be in the image."""
    if word == sys.executable:
        return _PYTHON
    path = Path(word).resolve()
    if path.is_relative_to(_PACKAGE):
        return f"{_SITE}/{_PACKAGE.name}/{PurePosixPath(path.relative_to(_PACKAGE))}"
    return word


def _shell(store: Store, lowest: product.Base) -> Part:
    part = store.part("shell", key_of([Path(__file__), Path(debian.__file__)], lowest.layer.digest))
    if part.stale:
        store.say(f"Debian packages for {', '.join(_WANTED)}")
        root = part.fresh_root()
        below = [one.name for one in lowest.packages]
        packages = debian.fetch(_WANTED, [*_LEFT_OUT, *below], store.folder / "apt")
        debian.unpack(packages, root)
        part.keep(_with_applets(root), [], "Debian packages for people at a shell")
    return part


def _with_applets(root: Path) -> Iterator[oci.Entry]:
    """The packages' files, and a link for each thing that busybox can be."""
    for entry in oci.tree(root, ""):
        # The links of the layer below stay: one folder more of that name would hide them.
        if entry.path not in ("bin", "sbin", "lib", "lib64"):
            yield entry
    listed = subprocess.run([root / "usr/bin/busybox", "--list"], check=True, capture_output=True, text=True)
    for name in listed.stdout.split():
        if not (root / "usr/bin" / name).exists():
            yield oci.link(f"/usr/bin/{name}", "busybox")


def _programs(store: Store, lowest: product.Base, pinned: Part) -> Part:
    rooms = [_PACKAGE, _PACKAGE / "images"]
    sources = [room / "__init__.py" for room in rooms] + sorted((rooms[-1] / "programs").glob("*.*"))
    part = store.part(
        "programs", key_of([Path(__file__), *sources], lowest.layer.digest, pinned.layer.digest)
    )
    if part.stale:
        root = part.fresh_root()
        site = root / python.SITE
        for source in sources:
            _copy(source, site / _PACKAGE.name / source.relative_to(_PACKAGE))
        below = pinned.root / python.SITE
        for source in (below / "pynvml.py", *below.glob("nvidia_ml_py-*.dist-info/*")):
            if source.is_file():
                _copy(source, site / source.relative_to(below))
        python.compile_tree(lowest.root, root)
        part.keep(oci.tree(root, ""), [], "stand-in programs and NVML's binding")
    return part


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
