"""krew itself installs the one-file plugin from the archive and the manifest that ``make krew`` writes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.kept import CannotBuild
from tests.e2e.cluster.programs import Program
from tests.patience import SLOWNESS

KREW = Program("krew", "krew", "sigs.k8s.io/krew/cmd/krew")
ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0 * SLOWNESS


@pytest.fixture(scope="module")
def krew() -> Path:
    """The program, built or from the cache."""
    try:
        return built([KREW], print)[KREW.name]
    except CannotBuild as error:
        if "module version is not available" not in str(error):
            raise
        pytest.skip(f"this Go module proxy has no krew; what is packed for it was checked alone: {error}")


def typed(*argv: object, environment: Mapping[str, str] | None = None) -> str:
    ran = subprocess.run(
        [str(argument) for argument in argv],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, f"{argv}: {ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


# In every pull, the one file that is packed for krew is run by every Python (tests/integration/inspect/test_one_file.py).
@pytest.mark.nightly
def test_krew_installs_it_and_kubectl_finds_it(krew: Path, binaries: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "kubectl-inspect-cgpu"
    typed(sys.executable, ROOT / "plugins/kubectl/build.py", plugin)
    typed(
        sys.executable,
        ROOT / "plugins/kubectl/krew.py",
        plugin,
        tmp_path,
        "v1.2.3",
        "https://example.invalid/it",
    )
    plugin.unlink()
    root = tmp_path / "root"
    environment = {"KREW_ROOT": str(root), "PATH": os.pathsep.join((str(root / "bin"), os.environ["PATH"]))}
    files = (f"--manifest={tmp_path}/inspect-cgpu.yaml", f"--archive={tmp_path}/kubectl-inspect-cgpu.tar.gz")
    output = typed(krew, "install", *files, environment=environment)
    assert "Installed plugin: inspect-cgpu" in output
    (receipt,) = (root / "receipts").iterdir()
    assert yaml.safe_load(receipt.read_text())["spec"]["version"] == "v1.2.3"
    helped = typed(binaries / "kubectl", "inspect-cgpu", "--help", environment=environment)
    assert "--why POD" in helped
