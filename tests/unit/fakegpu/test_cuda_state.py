"""The count of a GPU's memory that processes share, by itself."""

import subprocess
from pathlib import Path

import pytest

from tests.building import SANITIZERS
from tests.unit.fakegpu.building import build

#: Processes, and no threads: nothing for ThreadSanitizer.
BUILDS = ["", *SANITIZERS[:1]]


@pytest.mark.parametrize("sanitizer", BUILDS)
def test_racing_and_killed_processes_never_hold_more_than_the_limit_and_leave_exactly_it(
    sanitizer: str, tmp_path: Path
) -> None:
    program = build("sanitize" if sanitizer else "programs") / sanitizer / "state_race"
    ended = subprocess.run(
        [program, tmp_path / "state", "16", "20000", "200"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout.removesuffix(" granted\n")) >= 20000


@pytest.mark.parametrize("sanitizer", BUILDS)
def test_who_begins_in_the_place_of_a_dead_process_is_not_seen_with_what_that_one_held(
    sanitizer: str, tmp_path: Path
) -> None:
    program = build("sanitize" if sanitizer else "programs") / sanitizer / "state_slots"
    ended = subprocess.run(
        [program, tmp_path / "state"], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("sanitizer", BUILDS)
def test_a_cgroups_limit_holds_for_all_its_processes_whichever_is_killed_meanwhile(
    sanitizer: str, tmp_path: Path
) -> None:
    program = build("sanitize" if sanitizer else "programs") / sanitizer / "cgroup_limits"
    ended = subprocess.run(
        [program, tmp_path, "200"], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
