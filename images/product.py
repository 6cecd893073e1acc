"""The product's image: Debian's Python, the pinned packages, the isolation libraries, our wheel; a layer each."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gpushare import __version__
from images import debian, native, oci, python, sbom
from images.parts import Part, Store, key_of

PROJECT = Path(__file__).parent.parent
REF = f"docker.io/gpushare/gpushare:{__version__}"
#: Who the processes are unless a manifest says otherwise; the number that distroless images use too.
USER = 65532

#: What is asked of Debian, and what comes with it for scripts that never run here or for people at a terminal.
WANTED = (f"python{python.PYTHON}-minimal", f"libpython{python.PYTHON}-stdlib", "libstdc++6", "base-files")
LEFT_OUT = (
    "dpkg",
    "tar",
    "mawk",
    "libacl1",
    "libmd0",
    "libselinux1",
    "libpcre2-8-0",
    "libzstd1",
    "readline-common",
)

_PASSWD = f"root:x:0:0:root:/root:/usr/sbin/nologin\ngpushare:x:{USER}:{USER}:gpushare:/nonexistent:/usr/sbin/nologin\n"
_GROUP = f"root:x:0:\ngpushare:x:{USER}:\n"
_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
}
LABELS = {
    "org.opencontainers.image.title": "gpushare",
    "org.opencontainers.image.description": "Shared GPU scheduling for any Kubernetes cluster",
    "org.opencontainers.image.version": __version__,
    "org.opencontainers.image.licenses": "Apache-2.0",
}


@dataclass(frozen=True, slots=True)
class Base:
    """The layer with Debian's Python, what it was made of, and where it lies unpacked."""

    layer: oci.Layer
    packages: list[debian.Package]
    root: Path


def base(store: Store) -> Base:
    """Debian's Python with nothing to read but what runs."""
    part = store.part("debian", key_of([Path(debian.__file__), Path(python.__file__)], *WANTED, *LEFT_OUT))
    if part.stale:
        store.say(f"Debian packages for {', '.join(WANTED)}")
        root = part.fresh_root()
        packages = debian.fetch(WANTED, LEFT_OUT, store.folder / "apt")
        debian.unpack(packages, root)
        _furnish(root)
        python.compile_tree(root, root)
        part.keep(
            _entries(root), [asdict(one) | {"deb": one.deb.name} for one in packages], "Debian packages"
        )
    packages = [debian.Package(**one | {"deb": Path(one["deb"])}) for one in part.notes]
    return Base(part.layer, packages, part.root)


def build(store: Store) -> Path:
    """Write ``gpushare.tar`` and ``gpushare.spdx.json``; returns the archive."""
    lowest = base(store)
    requirements = pinned(store, lowest)
    ours = native.build(store)
    own = _own(store, lowest, requirements, ours)
    archive = store.folder / "gpushare.tar"
    config = oci.Config(
        entrypoint=["gpushare"],
        command=["--help"],
        env=_ENV,
        user=f"{USER}:{USER}",
        labels=LABELS,
    )
    store.write(archive, [REF], [lowest.layer, requirements.layer, ours.layer, own.layer], config)
    (store.folder / "gpushare.spdx.json").write_bytes((own.root / sbom.PLACE.strip("/")).read_bytes())
    return archive


def pinned(store: Store, lowest: Base) -> Part:
    """The layer of what ``requirements/product.txt`` pins."""
    requirements = PROJECT / "requirements" / "product.txt"
    part = store.part("python", key_of([requirements, Path(python.__file__)], lowest.layer.digest))
    if part.stale:
        store.say("Python packages of requirements/product.txt")
        root = part.fresh_root()
        wheels = python.install(requirements, root, store.folder / "pip")
        python.compile_tree(lowest.root, root)
        part.keep(
            oci.tree(root, ""), [asdict(one) for one in wheels], "pip install -r requirements/product.txt"
        )
    return part


def _own(store: Store, lowest: Base, below: Part, ours: Part) -> Part:
    part = store.part(
        "gpushare",
        key_of(
            [*_sources(), Path(python.__file__), Path(sbom.__file__)],
            lowest.layer.digest,
            below.layer.digest,
            ours.layer.digest,
        ),
    )
    if part.stale:
        store.say(f"gpushare {__version__}")
        root = part.fresh_root()
        made = part.folder / "wheel"
        shutil.rmtree(made, ignore_errors=True)
        wheel = python.install_wheel(python.build_wheel(PROJECT, made), root)
        python.compile_tree(lowest.root, root)
        place = root / sbom.PLACE.strip("/")
        place.parent.mkdir(parents=True)
        wheels = [python.Wheel(**one) for one in below.notes]
        natives = [python.Wheel(**one) for one in ours.notes]
        place.write_bytes(sbom.describe(wheel, wheels, natives, lowest.packages, debian.release()))
        part.keep(oci.tree(root, ""), [asdict(wheel)], "pip install gpushare")
    return part


def _sources() -> Iterator[Path]:
    """Everything that our wheel is made from."""
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "scripts/hatch_build.py",
        "scripts/generate_stubs.py",
        "lookahead/Makefile",
        "lookahead/lookahead.c",
    ):
        yield PROJECT / name
    generated = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", ".so")
    for path in sorted((PROJECT / "src" / "gpushare").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.endswith(generated):
            yield path


def _furnish(root: Path) -> None:
    """What maintainer scripts would have made."""
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text(_GROUP)
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    for name in ("python3", "python"):
        (root / "usr/bin" / name).symlink_to(f"python{python.PYTHON}")


def _entries(root: Path) -> Iterator[oci.Entry]:
    yield from oci.tree(root, "")
    # A container's runtime mounts over these; where the root cannot be written it cannot make them.
    for name in ("dev", "proc", "sys", "run"):
        yield oci.folder(name)
    yield oci.folder("tmp", 0o1777)
    yield oci.folder("root", 0o700)
