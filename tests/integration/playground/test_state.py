"""The folders of playgrounds: those without a supervisor are removed, running ones are reported."""

import os
from pathlib import Path

import pytest

from gpushare_playground.cluster.state import make_state, tidy


def test_leftovers_of_a_dead_supervisor_are_removed_and_a_running_playground_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare_playground.cluster.state._parent", lambda: tmp_path)
    here = make_state()
    left = tmp_path / "gpushare-left"
    left.mkdir()
    (left / "supervisor.pid").write_text(f"{os.getpid()} 1\n")
    assert tidy() == ([left], [here])
    assert (left.exists(), here.exists()) == (False, True)
