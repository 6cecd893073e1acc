"""The C tests again, under sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.integration.isolation.conftest import LimitedContainer
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import Container, build

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.sanitized,
    pytest.mark.parametrize("sanitizer", ["address", "thread"]),
]


def run(here: Container, sanitizer: str, program: str, *arguments: str | Path) -> str:
    folder = build("sanitize") / sanitizer
    # ThreadSanitizer needs address space that newer kernels' randomisation may not leave it.
    steady = ["setarch", "--addr-no-randomize"] if shutil.which("setarch") else []
    result = subprocess.run(
        [*steady, folder / program, *arguments],
        env=here.environment(folder / "open"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    return result.stdout


def test_threads_of_one_process(sanitizer: str, container: LimitedContainer) -> None:
    assert run(container(), sanitizer, "threads_race", "8", "300") == "0 failures, 0 bytes left behind\n"


def test_threads_that_share_memory(sanitizer: str, container: LimitedContainer) -> None:
    here = container()
    assert run(here, sanitizer, "sharing_race", here.usage, "3", "300") == "0 times it was not charged\n"


def test_threads_while_the_driver_allocates_by_itself(
    sanitizer: str, container: LimitedContainer, tmp_path: Path
) -> None:
    gpus.write(tmp_path / "node.gpus", gpus.preset("h200-141gb", "n1"))
    assert run(container(), sanitizer, "growth_race", "4", "500", "70") == "0 refused, 0 failures\n"


def test_processes_that_are_killed(sanitizer: str, container: LimitedContainer, node: gpus.GpuNode) -> None:
    real = fakegpu.BUILT / "libnvidia-ml.so.1"
    arguments = (real, node.gpus[0].uuid, "2154", "3", "200", "6")
    assert "at most" in run(container(), sanitizer, "allocations_race", *arguments)


def test_accounts(sanitizer: str, container: LimitedContainer) -> None:
    here = container()
    assert run(here, sanitizer, "accounts_race", here.usage, "3", "20").startswith("0 left")


def test_limits_files_with_random_changes(sanitizer: str, container: LimitedContainer) -> None:
    here = container(more=" core_percent=30 core_policy=idle")
    assert "of 40000 taken" in run(here, sanitizer, "limits_mutations", here.limits, "40000", "7")


def test_a_usage_file_full_of_noise(sanitizer: str, container: LimitedContainer) -> None:
    here = container()
    assert "of 20000 taken" in run(here, sanitizer, "region_noise", here.usage, "20000", "3")
