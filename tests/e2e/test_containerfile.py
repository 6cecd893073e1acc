"""The Containerfile, built by buildah as the page has it typed, on a Debian that mmdebstrap makes, without any registry."""

import fcntl
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import __version__
from images import debian, native, product
from tests.docs.assigned import commands_typed_by
from tests.e2e.cluster.binaries import cache
from tests.e2e.unpacked import ROLES, Unpacked, arguments, unpack
from tests.patience import SLOWNESS

PROJECT = product.PROJECT
BASE = "localhost/usual-base:1"
COMPILER = "localhost/usual-compiler:1"
#: The command that the page has a reader type. It builds an image with the name that the charts use.
[TYPED] = commands_typed_by(__file__, "docs/developer/images.md")
# It makes a Debian and installs into it twice: two minutes, and many times that next to other work.
pytestmark = pytest.mark.timeout(1500 * SLOWNESS)

_DEADLINE_S = 1200.0 * SLOWNESS


#: Steps of previous builds are cached up to this size, as on the machine of a user who builds twice.
MOST_KEPT_BYTES = 4 << 30


class Buildah:
    """buildah with a storage of its own, ``storage``, which outlives it; ``run`` does not."""

    def __init__(self, storage: Path, run: Path) -> None:
        self._options = [
            "--root",
            storage,
            "--runroot",
            run,
            "--storage-driver",
            "overlay",
        ]

    def __call__(self, *arguments: object, timeout: float = _DEADLINE_S) -> str:
        return _done(["buildah", *map(str, self._options), *map(str, arguments)], timeout)

    def typed(self, text: str, folder: Path, options: list[str]) -> str:
        """A command as a reader types it; ``options`` are what ``buildah build`` needs in addition without a
        registry. ``folder`` is new.
        """
        program = shutil.which("buildah")
        assert program, "buildah is not here: scripts/install-e2e-packages"
        there = shlex.join([program, *map(str, self._options)])
        folder.mkdir()
        (folder / "buildah").write_text(
            f'#!/bin/sh\n[ "$1" = build ] || exit 64\nshift\nexec {there} build {shlex.join(options)} "$@"\n'
        )
        (folder / "buildah").chmod(0o755)
        return _done(["env", f"PATH={folder}:{os.environ['PATH']}", "bash", "-c", text], _DEADLINE_S)


def _done(command: list[str], timeout: float) -> str:
    """Its output; it must succeed."""
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=timeout, check=False)
    output = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, f"{shlex.join(command)}: {output}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    storage = cache() / "buildah"
    storage.mkdir(parents=True, exist_ok=True)
    with (storage / "one-at-a-time").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Buildah(storage / "storage", tmp_path_factory.mktemp("buildah"))
        # Leftovers of an interrupted run.
        made("rm", "--all")
        yield made
        made("rm", "--all")
        size = sum(path.lstat().st_size for path in storage.rglob("*"))
        if size > MOST_KEPT_BYTES:
            made("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def base(buildah: Buildah, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a usual Debian with Python, as ``python:3.11-slim`` is one."""
    return _debian(buildah, BASE, ["python3", "python3-venv"], tmp_path_factory.mktemp("apt"))


@pytest.fixture(scope="module")
def compiler(buildah: Buildah, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a usual Debian with a C compiler, as ``python:3.11`` is one."""
    return _debian(buildah, COMPILER, ["gcc", "libc6-dev", "make"], tmp_path_factory.mktemp("apt"))


def _debian(buildah: Buildah, name: str, packages: list[str], folder: Path) -> str:
    if buildah("images", "--quiet", "--filter", f"reference={name}"):
        return name
    system = PROJECT / "build" / "images" / f"{name.partition('/')[2].partition(':')[0]}.tar"
    if not system.exists():
        making = system.with_suffix(".part.tar")
        sources = folder / "sources.list"
        sources.write_text("".join(f"deb {one}\n" for one in debian.mirrors()))
        options = ["--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
        argv = ["mmdebstrap", *options, debian.release(), making, sources]
        subprocess.run(argv, check=True, timeout=_DEADLINE_S)
        making.rename(system)
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, system, "/")
    buildah("commit", "--quiet", container, name)
    buildah("rm", container)
    return name


@pytest.fixture(scope="module")
def built(buildah: Buildah, base: str, compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    folder = tmp_path_factory.mktemp("containerfile")
    options = ["--layers", "--isolation", "chroot", "--network", "host", "--pull-never"]
    options += ["--build-arg", f"BASE={base}", "--build-arg", f"COMPILER={compiler}"]
    # The name is another's until the build takes it: otherwise an image of a former run could be used.
    buildah("tag", base, product.REF)
    buildah.typed(TYPED.text, folder / "programs", options + _machines_own_pip(folder))
    archive = folder / "built.tar"
    buildah("push", "--quiet", product.REF, f"oci-archive:{archive}:test")
    root = folder / "root"
    root.mkdir()
    for path in (root, *root.parents[:2]):
        path.chmod(0o755)
    return unpack(archive, root)


def _machines_own_pip(folder: Path) -> list[str]:
    """Mounts that let pip within the build find packages as this machine's own pip does."""
    wanted = {"cert": "PIP_CERT", "find-links": "PIP_FIND_LINKS", "index-url": "PIP_INDEX_URL"}
    settings = {key: os.environ[name] for key, name in wanted.items() if name in os.environ}
    config = folder / "pip.conf"
    config.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    mounts = [f"{config}:/etc/pip.conf:ro"]
    mounts += [f"{value}:{value}:ro" for value in settings.values() if value.startswith("/")]
    return [option for mount in mounts for option in ("--volume", mount)]


def test_it_starts_like_the_image_that_is_built_here(built: Unpacked) -> None:
    assert built.config["User"] == f"{product.USER}:{product.USER}"
    assert built.config["Entrypoint"] == ["gpushare"]
    labels = built.config["Labels"]
    assert {key: labels[key] for key in product.LABELS} == product.LABELS
    result = built.run(*arguments(built, ["--version"]))
    assert result.stdout == f"gpushare {__version__}\n", result.stderr


@pytest.mark.parametrize("role", ROLES)
def test_each_role_starts_on_a_read_only_root(built: Unpacked, role: str) -> None:
    result = built.run(*arguments(built, [role, "--help"]))
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_it_holds_the_pinned_packages(built: Unpacked) -> None:
    listing = "import importlib.metadata as m, json; print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
    result = built.run("/opt/gpushare/bin/python", "-c", listing)
    held = json.loads(result.stdout)
    pins = (PROJECT / "requirements" / "product.txt").read_text()
    pinned = dict(line.split(" ")[0].split("==") for line in pins.splitlines() if "==" in line)
    assert {name.replace("_", "-"): version for name, version in held.items()} == pinned | {
        "gpushare": __version__
    }


def test_the_isolation_libraries_equal_those_of_the_image_built_here(built: Unpacked) -> None:
    folder = built.root / native.PLACE
    assert {one.name for one in folder.iterdir()} == set(native.FILES)
    for name in native.FILES:
        assert (folder / name).stat().st_mode & 0o777 == 0o755
        needed = subprocess.run(
            ["readelf", "-d", folder / name], check=True, capture_output=True, text=True
        ).stdout
        driver = {
            "libgpushare-optional-cuda.so.1": "libcuda.so",
            "libgpushare-optional-nvml.so.1": "libnvidia-ml.so",
        }.get(name)
        assert driver is None or f"[/run/gpushare/driver/{driver}]" in needed
    # The arbiter and the image's C library fit together.
    result = built.run(f"/{native.PLACE}/arbiter", "--help")
    assert "--containers" in result.stdout + result.stderr, result


def test_buildah_accepts_the_archive_that_is_built_here(buildah: Buildah) -> None:
    archive = PROJECT / "build" / "images" / "gpushare.tar"
    taken = buildah("pull", "--quiet", f"oci-archive:{archive}")
    assert buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", product.REF) == taken
