"""Processes of one container race to allocate, and some are killed: by the driver's own accounting
the limit is never passed.

The short form of ``make race-isolation``.
"""

from pathlib import Path

import pytest

from tests.integration.isolation.racing import LIMIT_MIB, race


@pytest.mark.parametrize(("processes", "rounds", "kills"), [(5, 1500, 150), (24, 200, 40)])
def test_the_limit_is_never_passed_and_afterwards_all_of_it_is_available(
    processes: int, rounds: int, kills: int, tmp_path: Path
) -> None:
    raced = race(tmp_path, str(rounds), processes, kills, timeout_s=110)
    assert raced.problem == ""
    assert (raced.killed, raced.most_mib) == (kills, LIMIT_MIB)
