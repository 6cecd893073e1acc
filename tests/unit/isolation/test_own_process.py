"""A forked child is not mistaken for its parent, whose memory it copied."""

import subprocess

from tests.unit.isolation.building import build


def test_children_of_any_fork_are_distinguished_from_their_parents() -> None:
    completed = subprocess.run([build("linked") / "own_process_check"], timeout=60, check=False)
    assert completed.returncode == 0
