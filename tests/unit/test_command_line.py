"""``gpushare`` itself: roles, misspelt names, and readers of its output that leave."""

import os
import subprocess
import sys

import pytest

from gpushare.__main__ import ROLES, main


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("doctr", "no role 'doctr' (did you mean doctor?); there are scheduler, "),
        ("nodeagent", "no role 'nodeagent' (did you mean node-agent?); there are scheduler, "),
        ("completion", "no role 'completion'; there are scheduler, "),
    ],
)
def test_a_misspelt_role_is_reported_with_the_nearest_one(
    role: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([role]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert all(name in error for name in ROLES)


def test_a_reader_that_leaves_is_no_error() -> None:
    """As ``gpushare config show scheduler | head -1``: with a pipe whose reader is gone."""
    # It is gone before the command starts: a pipe takes all of its output.
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gpushare", "config", "schema"]
    with os.fdopen(writer, "w") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (ended.stderr, ended.returncode) == (b"", 141)


def test_a_tool_ends_with_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema", "scheduler"]) == 0
    assert capsys.readouterr().out.startswith("{")
    assert main(["config", "check", "/nowhere.yaml"]) == 2
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("gpushare ")
