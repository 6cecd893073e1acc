"""Unit tests of the count of a GPU's memory that processes share."""

import subprocess
from pathlib import Path

import pytest

from tests.building import SANITIZERS
from tests.unit.fakegpu.building import build

#: Without ThreadSanitizer: there are only processes, no threads.
BUILDS = ["", *SANITIZERS[:1]]


@pytest.mark.parametrize("sanitizer", BUILDS)
def test_racing_and_killed_processes_never_hold_more_than_the_limit_and_leave_all_of_it_free(
    sanitizer: str, tmp_path: Path
) -> None:
    program = build("sanitize" if sanitizer else "programs") / sanitizer / "state_race"
    completed = subprocess.run(
        [program, tmp_path / "state", "16", "20000", "200"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert int(completed.stdout.removesuffix(" granted\n")) >= 20000


@pytest.mark.parametrize("sanitizer", BUILDS)
def test_a_process_in_the_slot_of_a_dead_one_is_not_charged_for_its_memory(
    sanitizer: str, tmp_path: Path
) -> None:
    program = build("sanitize" if sanitizer else "programs") / sanitizer / "state_slots"
    completed = subprocess.run(
        [program, tmp_path / "state"], capture_output=True, text=True, timeout=100, check=False
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


@pytest.mark.parametrize("sanitizer", BUILDS)
def test_a_cgroups_limit_holds_for_all_its_processes_even_if_some_are_killed(
    sanitizer: str, tmp_path: Path
) -> None:
    program = build("sanitize" if sanitizer else "programs") / sanitizer / "cgroup_limits"
    completed = subprocess.run(
        [program, tmp_path, "200"], capture_output=True, text=True, timeout=100, check=False
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
