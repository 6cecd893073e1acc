"""``gpushare`` itself: roles, misspelt names, and a closed output pipe."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gpushare.__main__ import ROLES, main
from gpushare.inspect.__main__ import main as inspect_main


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("doctr", "unknown role 'doctr' (did you mean doctor?); use one of scheduler, "),
        ("nodeagent", "unknown role 'nodeagent' (did you mean node-agent?); use one of scheduler, "),
        ("completion", "unknown role 'completion'; use one of scheduler, "),
    ],
)
def test_a_misspelt_role_is_reported_with_the_nearest_one(
    role: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([role]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert all(name in error for name in ROLES)


def test_a_closed_output_pipe_is_not_an_error() -> None:
    """As in ``gpushare config show scheduler | head -1``."""
    # Closed before the command starts: otherwise the pipe's buffer holds all of its output.
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gpushare", "config", "schema"]
    with os.fdopen(writer, "w") as output:
        completed = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (completed.stderr, completed.returncode) == (b"", 141)


@pytest.mark.parametrize(
    ("run", "arguments"), [(main, ["config", "schema", "scheduler"]), (inspect_main, ["--nothing"])]
)
def test_every_process_decodes_objects_as_deep_as_api_servers_store_them(
    run: Callable[[list[str]], int], arguments: list[str]
) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        run(arguments)
        assert sys.getrecursionlimit() > 10_000
    finally:
        sys.setrecursionlimit(before)


def test_the_exit_code_of_a_tool_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema", "scheduler"]) == 0
    assert capsys.readouterr().out.startswith("{")
    assert main(["config", "check", "/nowhere.yaml"]) == 2
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("gpushare ")
