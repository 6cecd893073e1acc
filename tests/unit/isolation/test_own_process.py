"""A child of fork is not taken for the process whose memory it has a copy of."""

import subprocess

from tests.unit.isolation.building import build


def test_children_of_any_fork_are_distinguished_from_their_parents() -> None:
    ended = subprocess.run([build("linked") / "own_process_check"], timeout=60, check=False)
    assert ended.returncode == 0
