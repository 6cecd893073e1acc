"""Memory of every kind under several threads, with sanitizers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.building import SANITIZERS
from tests.unit.fakegpu.building import build


@pytest.mark.parametrize(
    ("sanitizer", "rounds"),
    [("", "200"), *(pytest.param(*one.values, "20", marks=one.marks) for one in SANITIZERS)],
)
def test_threads_that_allocate_and_free_memory_leave_the_gpu_as_it_was(
    sanitizer: str, rounds: str, tmp_path: Path
) -> None:
    node = tmp_path / "node.gpus"
    gpus.write(node, gpus.preset("v100-16160", "n1"))
    program = [str(build("sanitize" if sanitizer else "programs") / sanitizer / "memory_hammer"), rounds]
    # ThreadSanitizer wants memory where newer kernels' randomisation may not leave it.
    if sanitizer and shutil.which("setarch"):
        program = ["setarch", "--addr-no-randomize", *program]
    completed = subprocess.run(
        program,
        env={**os.environ, "FAKEGPU_NODE": str(node)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.endswith(" calls\n")
