"""Counting across processes: no limit is exceeded and nothing is lost, whenever a process dies."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.randomized import rounds
from tests.unit.isolation.building import build


def usage_file(path: Path) -> Path:
    size = subprocess.run(
        [build("libraries") / "region-size"], capture_output=True, text=True, timeout=10, check=True
    )
    path.touch()
    os.truncate(path, int(size.stdout))
    return path


@pytest.mark.randomized
@pytest.mark.parametrize(("processes", "kills"), [(3, rounds(80, soak=250)), (24, rounds(25, soak=60))])
def test_racing_and_killed_processes_neither_exceed_the_limit_nor_leave_memory_charged(
    tmp_path: Path, processes: int, kills: int
) -> None:
    completed = subprocess.run(
        [build("linked") / "accounts_race", usage_file(tmp_path / "usage"), str(processes), str(kills)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout == "0 left, the whole limit can be taken\n"


def test_an_unused_usage_file_takes_no_disk_space(tmp_path: Path) -> None:
    status = usage_file(tmp_path / "usage").stat()
    assert status.st_size % 4096 < 4096
    assert status.st_blocks == 0
