"""The plugin as one file: the same output as the installed package, with every Python on this machine from 3.9 on."""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.inspect.sources.decision_client import proxy_path
from tests.integration.inspect.conftest import DEADLINE_S, PLUGIN, ScriptedKubectl
from tests.integration.inspect.test_command import listed
from tests.unit.inspect.clusters import device, first_generation, foreign_node, node, placed, pod
from tests.unit.inspect.test_claims import claim
from tests.unit.inspect.test_why_claims import offered, requesting
from tests.unit.inspect.test_why_claims import pod as claiming

ROOT = Path(__file__).parents[3]
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def pythons() -> list[str]:
    """Every Python on this machine, one of each version."""
    found: dict[str, str] = {".".join(map(str, sys.version_info[:2])): sys.executable}
    for version in VERSIONS:
        offered = [shutil.which(f"python{version}")]
        offered += map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
        for one in filter(None, offered):
            works = subprocess.run([one, "-c", ""], capture_output=True, timeout=DEADLINE_S, check=False)
            if works.returncode == 0:
                found.setdefault(version, one)
    return [found[version] for version in VERSIONS if version in found]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plugin") / "kubectl-inspect-cgpu"
    command = [sys.executable, str(ROOT / "plugins/kubectl/build.py"), str(made)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert "runs with Python 3.9 or newer" in ran.stdout
    return made


def cluster(kubectl: ScriptedKubectl) -> None:
    """Nodes of ours and of others, valid and malformed records, a pending pod, and a scheduler that answers."""
    gpus = [device(0), device(1)]
    nodes = [
        foreign_node("other", "10.0.0.9", 2, 15),
        node("n1", "10.0.0.1", gpus, mode=NodeMode.CORE_MEM),
        node("n2", "10.0.0.2", [device(0, 8192, healthy=False, reason="XID 79")]),
    ]
    nodes.append(node("n3", "10.0.0.3", [device(0)], mode=NodeMode.DRA, advertised=False))
    pods = [
        pod("job", "other", 3, first_generation(0, 3)),
        placed("train", "n1", gpus[0], 6),
        pod("wrong", "n1", 3, {names.ANN_SHARE: '{"version": 1, "gpus": [{"index": "x"}]}'}),
        pod("waits", "", 12),
    ]
    kubectl.answer("/api/v1/nodes", listed(nodes))
    kubectl.answer("'/api/v1/pods?'*", listed(pods))
    held = claim("share", (0, "3Gi", 30), pods=("a",), pool="n3")
    claims = {"items": [held, requesting("large", "100Gi")]}
    kubectl.answer("/api/v1/namespaces/team/pods/late", json.dumps(claiming("late", "large")))
    kubectl.answer("/apis/resource.k8s.io/v1/resourceclaims", json.dumps(claims))
    kubectl.answer(
        "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/large", json.dumps(claims["items"][1])
    )
    kubectl.answer("'/apis/resource.k8s.io/v1/resourceslices?'*", json.dumps(offered([])))
    record = {
        "scheduler": {"name": "s", "started": 1.0, "firstAsked": 2.0, "lastAsked": 3.0},
        "waiting": [
            {
                "key": "default/waits",
                "uid": "u",
                "since": 0,
                "asks": "aliyun.com/gpu-mem: 12",
                "category": "memory",
                "reason": "no single GPU has 12 GiB free (largest free: 9 GiB on GPU 0)",
                "suggestion": "a GPU with 12 free: ü",
            }
        ],
    }
    kubectl.answer(f"{proxy_path('kube-system/ack-co-scheduler')}/gpushare/decisions", json.dumps(record))


#: For every Python but the oldest, which lacks the most.
SOME = ("", "--pending -o yaml", "--recommend -o json")


def answers(
    command: list[str], kubectl: ScriptedKubectl, some: Sequence[str] = ()
) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr by flags; only of ``some``, if there are any."""
    found = {}
    for flags in some or (
        "",
        "-d",
        "-o wide",
        "-o json",
        "-o yaml",
        "n1",
        "--fragmentation",
        "--pending",
        "--pending -o yaml",
        "--why x",
        "--why late -n team",
        "--why late -n team -o json",
        "--recommend",
        "--recommend -o json",
        "--recommend -o yaml",
        f"--recommend -o json --config {kubectl.path.parent / 'options.json'}",
        f"--recommend --config {kubectl.path.parent / 'wrong.json'}",
        "completion bash",
        "__complete --w",
        "--nonsense",
    ):
        done = subprocess.run(
            [*command, *flags.split()],
            env={**os.environ, "KUBECTL": str(kubectl.path), "GPUSHARE_INSPECT_WINDOW": "6h"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        found[flags] = (done.returncode, done.stdout, done.stderr)
    return found


def test_its_output_equals_the_installed_packages_with_every_python(
    file: Path, kubectl: ScriptedKubectl
) -> None:
    cluster(kubectl)
    folder = kubectl.path.parent
    (folder / "options.json").write_text('{"inspect": {"headroom": 30}, "scheduler": {"unit": "128MiB"}}')
    (folder / "wrong.json").write_text('{"inspect": {"headroom": "30", "min-histroy": "1h"}}')
    expected = answers([PLUGIN], kubectl)
    (code, output, _), wrong = (expected[key] for key in expected if "--config" in key)
    assert code == 0
    assert (json.loads(output)["marginPercent"], json.loads(output)["windowSeconds"]) == (30, 6 * 3600)
    assert (wrong[0], "did you mean min-history?" in wrong[2]) == (2, True)
    assert expected[""][0] == expected["--pending"][0] == 0, expected
    assert "pod default/wrong" in expected[""][2]
    assert "no GPU offers 102400 MiB" in expected["--why late -n team"][1]
    assert "3/15" in next(line for line in expected[""][1].splitlines() if line.startswith("n3"))
    tried = pythons()
    assert tried
    for python in tried:
        # -I and -S: nothing that is installed can be imported.
        got = answers([python, "-I", "-S", str(file)], kubectl, () if python == tried[0] else SOME)
        assert got == {flags: expected[flags] for flags in got}, python


def test_every_module_in_it_is_valid_for_python_3_9(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {"__main__.py", "msgspec.py", "gpushare/inspect/views/explain.py"} <= set(sources)
    for name, source in sources.items():
        tree = ast.parse(source, name, feature_version=(3, 9))
        imported = {
            one.partition(".")[0]
            for found in ast.walk(tree)
            for one in (
                [alias.name for alias in found.names]
                if isinstance(found, ast.Import)
                else [found.module or ""]
                if isinstance(found, ast.ImportFrom)
                else []
            )
        }
        # Only a YAML file needs it, and its absence is reported.
        optional = {"yaml"} if name == "gpushare/options/yaml_text.py" else set()
        assert imported <= sys.stdlib_module_names | {"gpushare", "msgspec"} | optional, name


def test_a_yaml_file_without_a_yaml_module_is_refused_with_advice(file: Path, tmp_path: Path) -> None:
    options = tmp_path / "options.yaml"
    options.write_text("inspect: {headroom: 30}\n")
    command = [sys.executable, "-I", "-S", str(file), "--recommend", f"--config={options}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2
    assert (
        f"error: {options}: cannot be read: this Python has no PyYAML; write JSON, in a file whose name ends in .json"
        in done.stderr
    )


def test_the_same_checkout_gives_the_same_file(file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    subprocess.run(
        [sys.executable, str(ROOT / "plugins/kubectl/build.py"), str(again)],
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert again.read_bytes() == file.read_bytes()
    assert os.access(again, os.X_OK)


def test_a_python_that_is_too_old_is_refused(file: Path) -> None:
    old = next(iter(sorted(Path.home().glob(".pyenv/versions/3.[678].*/bin/python"))), None)
    entry = zipfile.ZipFile(file).read("__main__.py").decode()
    if old is None:
        assert "needs Python 3.9 or newer" in entry
        return
    done = subprocess.run(
        [str(old), str(file)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1
    assert "kubectl-inspect-cgpu needs Python 3.9 or newer, this is 3." in done.stderr


def test_it_is_packed_for_krew_with_its_checksum(file: Path, tmp_path: Path) -> None:
    def krew(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(ROOT / "plugins/kubectl/krew.py"), str(file), str(tmp_path), *words],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    assert krew("v1.2.3", "https://example.invalid/it.tar.gz").returncode == 0
    manifest = yaml.safe_load((tmp_path / "inspect-cgpu.yaml").read_text())
    archive = tmp_path / "kubectl-inspect-cgpu.tar.gz"
    (platform,) = manifest["spec"]["platforms"]
    assert manifest["spec"]["version"] == "v1.2.3"
    assert platform["uri"] == "https://example.invalid/it.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["kubectl-inspect-cgpu", "LICENSE"]
        assert packed.getmember(platform["bin"]).mode == 0o755
    assert "write v1.2.3" in krew("1.2", "https://x").stderr
    assert "https address" in krew("v1.2.3", "").stderr
