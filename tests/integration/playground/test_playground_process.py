"""The playground from its user's view: nothing is left behind, and errors are reported.

Its walk is a step of its own in CI: ``make run ARGS=--exit``.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.playground.running_playground import Playground, a_pod, start, wait_until


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder for this playground's state: in a shared one the next playground to start, which may be
    another test's, cleans up.
    """
    with tempfile.TemporaryDirectory(prefix="gs", dir="/tmp") as folder:
        yield Path(folder)


def test_nothing_outlives_a_killed_supervisor_and_the_next_one_cleans_up(own_folder: Path) -> None:
    first = Playground(own_folder)
    first.apply(a_pod("lonely", gpu_mem=2))
    first.kubectl("wait", "--for=condition=Ready", "pod/lonely", "--timeout=60s")
    assert first.processes("sleep", "3600")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    assert first.process.stdout is not None
    first.process.stdout.close()
    wait_until(lambda: not first.processes(), within_s=60, detail=first.processes)
    assert first.state.exists()
    second = Playground(own_folder)
    assert not first.state.exists()
    assert second.end() == 0
    assert not second.state.exists()


def test_missing_build_output_is_reported_with_the_command_that_builds_it(tmp_path: Path) -> None:
    process = start("--isolation", str(tmp_path))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"{tmp_path} has no open/libcuda.so.1, no open/libnvidia-ml.so.1, " in output
    assert "no open/libgpushare-optional-nvml.so.1, no arbiter" in output
    assert "build them with: make isolation" in output


@pytest.mark.parametrize("part", ["controllers", "kubescheduler"])
def test_a_component_reports_what_is_wrong_with_its_kubeconfig(part: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("apiVersion: v1\nkind: Config\n")
    command = [sys.executable, "-m", f"gpushare_playground.{part}", "--kubeconfig", str(broken)]
    if part == "kubescheduler":
        command += ["--extender", "http://127.0.0.1:1/gpushare"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert str(broken) in done.stderr
    assert "Traceback" not in done.stderr
