"""The image archives: small, reproducible, without privileges, with a correct bill of materials, and they run."""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.util import source_hash
from pathlib import Path

import pytest
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from gpushare import __version__
from images import native, oci, product, python, samples, sbom
from images.parts import Store
from tests.e2e.unpacked import ROLES, Unpacked, arguments, unpack
from tests.patience import SLOWNESS

PROJECT = product.PROJECT
MOST_BYTES = 150_000_000
# The others' pods never start: refused, or pending forever.
EXAMPLES = sorted((PROJECT / "examples").glob("0[1-6]*.yaml"))


@pytest.fixture(scope="session")
def archives() -> dict[str, Path]:
    """Every archive, by name; made in ``build/images`` unless they are there."""
    store = Store(PROJECT / "build" / "images")
    with store.alone():
        made = [product.build(store), *samples.build(store)]
    return {path.stem if path.suffix == ".tar" else path.name: path for path in made}


@pytest.fixture(scope="session")
def unpacked(
    archives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Unpacked]:
    """The image of that name, unpacked once."""
    known: dict[str, Unpacked] = {}

    def get(name: str) -> Unpacked:
        if name not in known:
            root = tmp_path_factory.mktemp("root")
            root.chmod(0o755)
            for parent in root.parents:
                if parent.name.startswith("pytest-"):
                    parent.chmod(0o755)
            known[name] = unpack(archives[name], root)
        return known[name]

    return get


@pytest.fixture
def image(unpacked: Callable[[str], Unpacked]) -> Unpacked:
    return unpacked("gpushare")


def test_the_product_is_small(archives: dict[str, Path]) -> None:
    notes = json.loads(archives["gpushare"].with_suffix(".json").read_text())
    for layer in notes["layers"]:
        print(f"{layer['size'] / 1e6:6.1f} MB  {layer['made_by']}")
    assert notes["refs"] == [f"docker.io/gpushare/gpushare:{__version__}"]
    assert notes["size"] == archives["gpushare"].stat().st_size < MOST_BYTES


# Nothing on a pull guards this: a digest that is not the same each time is seen at night.
@pytest.mark.nightly
def test_a_build_from_scratch_elsewhere_gives_the_same_bytes(
    archives: dict[str, Path], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("images", "src", "isolation", "lookahead", "requirements", "scripts"):
        # What is generated is generated again.
        ignored = shutil.ignore_patterns("__pycache__", "*_pb2*.py*", "liblookahead.so")
        shutil.copytree(PROJECT / name, elsewhere / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, elsewhere)
    # A file may have been edited since the first test.
    store = Store(archives["gpushare"].parent)
    with store.alone():
        product.build(store)
    here = {
        "PYTHONPATH": f"{elsewhere}/src:{elsewhere}",
        "TZ": "Asia/Shanghai",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
    }
    subprocess.run(
        [sys.executable, "-m", "images", "all", "--out", tmp_path / "again"],
        cwd=elsewhere,
        env=os.environ | here,
        umask=0o077,
        check=True,
        timeout=800 * SLOWNESS,
    )
    for name, first in archives.items():
        notes = [one.with_suffix(".json").read_text() for one in (first, tmp_path / "again" / first.name)]
        assert notes[0] == notes[1]
        assert (tmp_path / "again" / first.name).read_bytes() == first.read_bytes(), f"{name} differs"
    bills = [folder / "gpushare.spdx.json" for folder in (archives["gpushare"].parent, tmp_path / "again")]
    assert bills[0].read_bytes() == bills[1].read_bytes()


def test_nothing_is_rebuilt_when_nothing_changed(archives: dict[str, Path]) -> None:
    lines: list[str] = []
    store = Store(archives["gpushare"].parent, lines.append)
    before = {path: path.stat().st_mtime_ns for path in archives.values()}
    with store.alone():
        product.build(store)
        samples.build(store)
    assert all("is up to date" in line for line in lines)
    assert before == {path: path.stat().st_mtime_ns for path in archives.values()}


def test_containers_run_unprivileged_by_default(image: Unpacked) -> None:
    assert image.config["User"] == "65532:65532"
    assert image.config["Entrypoint"] == ["gpushare"]
    assert image.config["Labels"]["org.opencontainers.image.version"] == __version__
    for one in image.members:
        assert (one.uid, one.gid) == (0, 0), one.name
        assert one.mtime == oci.MOMENT, one.name
        assert not one.mode & (stat.S_ISUID | stat.S_ISGID), f"{one.name} gives its owner's rights"
        if not one.issym():
            assert one.name == "tmp" or not one.mode & 0o022, f"{one.name} can be written by others"
    names = {one.name for one in image.members}
    assert not names & {"bin/sh", "usr/bin/sh", "usr/bin/apt-get", "usr/bin/dpkg", "usr/bin/pip"}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_starts_on_a_read_only_root(image: Unpacked, role: str) -> None:
    result = image.run(*arguments(image, [role, "--help"]))
    assert result.returncode == 0, result.stderr
    assert result.stdout.lower().lstrip().startswith(("usage", "show gpu allocations"))
    assert result.stderr == ""


def test_the_isolation_libraries_are_included_as_shipped(image: Unpacked) -> None:
    folder = image.root / native.PLACE
    assert {one.name for one in folder.iterdir()} == set(native.FILES)
    dynamic = subprocess.run(
        ["readelf", "-d", folder / "libcuda.so.1"], capture_output=True, text=True, check=True
    )
    assert "soname: [libcuda.so.1]" in dynamic.stdout
    assert "[libgpushare-optional-cuda.so.1]" in dynamic.stdout
    # It reads nothing from the environment that would change its paths.
    assert b"GPUSHARE_RUN" not in (folder / "libcuda.so.1").read_bytes()
    result = image.run(f"/{native.PLACE}/arbiter")
    assert (result.returncode, result.stderr) == (2, "usage: arbiter --containers DIR\n")


def test_it_prints_its_version_and_runs_as_an_unprivileged_user(image: Unpacked) -> None:
    assert image.run(*arguments(image, ["--version"])).stdout == f"gpushare {__version__}\n"
    identity = image.run(
        "python3", "-c", "import os; print(os.getuid(), os.getgid(), os.access('/tmp', os.W_OK))"
    )
    assert identity.stdout == "65532 65532 False\n"


def test_the_playground_is_not_in_it(image: Unpacked) -> None:
    assert not [one.name for one in image.members if "playground" in one.name]
    result = image.run(*arguments(image, ["playground"]))
    assert (result.returncode, result.stderr) == (
        2,
        "gpushare: playground is not installed: it is part of a checkout, not of the images\n",
    )


def test_every_library_that_a_module_needs_is_included(image: Unpacked) -> None:
    site = image.root / python.SITE
    built_in = (image.root / f"usr/lib/python{python.PYTHON}/lib-dynload").glob("*.so")
    modules = {path.name.partition(".")[0] for path in built_in}
    for path in (*site.rglob("*.cpython-*.so"), *site.rglob("*.abi3.so")):
        parts = path.relative_to(site).with_name(path.name.partition(".")[0]).parts
        modules.add(".".join(parts))
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(len(sys.argv))"
    )
    wanted = sorted(modules)
    result = image.run("python3", "-c", code, *wanted)
    assert result.returncode == 0, result.stderr
    assert len(wanted) > 60


def test_bytecode_matches_its_source_and_is_never_compared_with_it(image: Unpacked) -> None:
    unchecked_hash = 0b01  # PEP 552
    sources = [path for path in image.root.rglob("*.py") if path.is_file()]
    assert len(sources) > 1000
    for source in sources:
        compiled = (
            source.parent / "__pycache__" / f"{source.stem}.cpython-{python.PYTHON.replace('.', '')}.pyc"
        )
        head = compiled.read_bytes()[:16]
        assert int.from_bytes(head[4:8], "little") == unchecked_hash
        assert head[8:16] == source_hash(source.read_bytes()), source


def test_the_bill_of_materials_is_valid_and_complete(image: Unpacked, archives: dict[str, Path]) -> None:
    bill = archives["gpushare"].parent / "gpushare.spdx.json"
    assert (image.root / sbom.PLACE.strip("/")).read_bytes() == bill.read_bytes()
    document = parse_file(str(bill))
    assert validate_full_spdx_document(document) == []
    listed = {(one.name.lower().replace("_", "-"), one.version): one for one in document.packages}

    records = [path for path in (image.root / "var/lib/dpkg/status.d").iterdir() if path.suffix != ".md5sums"]
    fields = [dict(re.findall(r"^(\w+): (.*)$", path.read_text(), re.MULTILINE)) for path in records]
    debian = {(one["Package"].lower(), one["Version"]) for one in fields}
    metadata = (image.root / python.SITE).glob("*.dist-info/METADATA")
    own = [dict(re.findall(r"^(Name|Version): (.*)$", path.read_text(), re.MULTILINE)) for path in metadata]
    installed = {(one["Name"].lower().replace("_", "-"), one["Version"]) for one in own}
    assert len(debian) > 20
    assert ("gpushare", __version__) in installed
    assert listed.keys() == debian | installed | {("gpushare-isolation", __version__)}

    pins = (PROJECT / "requirements" / "product.txt").read_text()
    for name, version in installed - {("gpushare", __version__)}:
        assert f"{name}=={version}" in pins
        (checksum,) = listed[name, version].checksums
        assert checksum.value in pins, f"{name}: the SBOM names a file that is not pinned"


def test_licences_are_included_with_the_files(image: Unpacked) -> None:
    for record in (image.root / "var/lib/dpkg/status.d").glob("*.md5sums"):
        assert (image.root / "usr/share/doc" / record.stem).exists(), record.stem


@pytest.mark.parametrize("manifest", EXAMPLES, ids=lambda path: path.stem)
def test_every_image_of_the_examples_is_made_here(manifest: Path) -> None:
    made = {ref for refs in samples.REFS.values() for ref in refs}
    images = set(re.findall(r"image: (\S+)", manifest.read_text()))
    hosts = {f"docker.io/{name}" if "." not in name.partition("/")[0] else name for name in images}
    assert images
    assert hosts <= made


def _started(manifest: str) -> tuple[str, list[str], str]:
    """The image, command and working directory of an example's only container."""
    document = yaml.safe_load((PROJECT / "examples" / manifest).read_text())
    (container,) = document["spec"]["template"]["spec"]["containers"]
    return container["image"], container.get("command", []), container.get("workingDir", "")


@pytest.mark.parametrize(
    ("manifest", "name", "more"),
    [
        ("02-job-co-scheduler.yaml", "gpushare-sample-tensorflow-1.5", ["--max_steps=2", "--pause_s=0"]),
        ("03-job-share.yaml", "gpushare-sample-tensorflow-1.5", ["--max_steps=2", "--pause_s=0"]),
        ("05-core-mem.yaml", "gpushare-sample-cuda-sample-11.0.3", ["--rounds=1"]),
    ],
)
def test_a_sample_runs_as_in_its_manifest_on_the_mounted_driver(
    unpacked: Callable[[str], Unpacked], tmp_path: Path, manifest: str, name: str, more: list[str]
) -> None:
    ref, command, workdir = _started(manifest)
    assert ref in samples.REFS[name]
    image = unpacked(name)
    described = tmp_path / "node.conf"
    described.write_text(
        subprocess.run(
            [sys.executable, "-m", "gpushare_playground.gpus", "v100-16384"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    driver = PROJECT / "build" / "fakegpu" / "libnvidia-ml.so.1"
    # Where the runtime would mount them.
    inside = f"/usr/lib/{os.uname().machine}-linux-gnu/libnvidia-ml.so.1"
    for place in (inside, "/tmp/node.conf"):
        (image.root / place.strip("/")).touch()
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": "4", "ALIYUN_COM_GPU_MEM_DEV": "16"}
    result = image.run(
        *command,
        *more,
        workdir=workdir,
        env={"FAKEGPU_NODE": "/tmp/node.conf"} | share,
        binds={driver: inside, described: "/tmp/node.conf"},
    )
    assert result.returncode == 0, result.stderr
    assert "GPU 0: Tesla V100" in result.stdout
    assert "16384 MiB in all" in result.stdout
    assert "share of one GPU's memory: 4 / 16 = 0.25" in result.stdout


def test_the_players_entry_point_and_a_shell_are_included(
    unpacked: Callable[[str], Unpacked],
) -> None:
    image = unpacked("gpu-player-v2")
    assert image.environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    (program,) = arguments(image)
    script = (image.root / "usr/local/bin" / program).read_text().splitlines()[-1]
    (source,) = [argument for argument in shlex.split(script) if argument.endswith(".py")]
    assert (image.root / source.strip("/")).is_file()
    shell = image.run("sh", "-c", "env | grep ^NVIDIA_; bash -c 'echo $BASH'; ls /")
    assert shell.returncode == 0, shell.stderr
    assert "NVIDIA_VISIBLE_DEVICES=all\n/usr/bin/bash\n" in shell.stdout
