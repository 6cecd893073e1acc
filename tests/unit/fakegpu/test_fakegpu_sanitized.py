"""The library under many threads and a constantly changing file, with sanitizers."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.building import SANITIZERS
from tests.unit.fakegpu.building import build

ROUNDS = "60"


@pytest.mark.timeout(600)  # it may have to build everything first
@pytest.mark.parametrize("sanitizer", ["", *SANITIZERS])
def test_calls_stay_correct_while_the_file_is_replaced_under_several_threads(
    sanitizer: str, tmp_path: Path
) -> None:
    node = gpus.preset("core-mem-4", "n1")
    lost = replace(node, gpus=(replace(node.gpus[0], fault="lost", xids={79: 1}), *node.gpus[1:]))
    good = gpus.render(node)
    for name, text in (
        ("good", good),
        ("lost", gpus.render(lost)),
        ("broken", good.replace("\ngpu 1", "\ngpuu 1")),
    ):
        (tmp_path / name).write_text(text)
    folder = build("sanitize" if sanitizer else "programs") / sanitizer
    program = [str(folder / "hammer"), "good", "lost", "broken", ROUNDS]
    # ThreadSanitizer wants memory where newer kernels' randomisation may not leave it.
    if sanitizer and shutil.which("setarch"):
        program = ["setarch", "--addr-no-randomize", *program]
    completed = subprocess.run(
        program,
        cwd=tmp_path,
        env={**os.environ, "FAKEGPU_NODE": str(tmp_path / "live")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.endswith(" calls\n")
    assert {line.partition("gpuu: ")[2] for line in completed.stderr.splitlines()} == {
        "unknown key; did you mean 'gpu'? (the description before it stays in force)"
    }
