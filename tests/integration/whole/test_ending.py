"""Ctrl-C stops the playground at any moment, without leftovers.

That nothing outlives a killed supervisor, and that the next one cleans up, is in
tests/integration/playground.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.integration.playground.running_playground import wait_until
from tests.integration.whole.world import CHECKOUT, environment

ENDS_WITHIN_S = 60.0
STARTS_WITHIN_S = 60.0


def of_playground(supervisor: int) -> dict[int, str]:
    """The processes that belong to this supervisor: descendants of its sessions, and those that name its
    state folder.
    """
    found = {}
    states = {str(owner.parent) for owner in _owners() if _owned(owner, supervisor)}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            text = command + (folder / "environ").read_bytes().decode(errors="replace")
            parent, alive = _parent_of(folder)
        except (OSError, IndexError):
            continue
        if alive and (parent == supervisor or any(state in text for state in states)):
            found[int(folder.name)] = command
    return found


def _owners() -> set[Path]:
    """The file in each playground's state folder that names its supervisor."""
    folders = {Path("/tmp"), Path(tempfile.gettempdir())}
    return {owner for folder in folders for owner in folder.glob("gpushare-*/supervisor.pid")}


def _owned(owner: Path, supervisor: int) -> bool:
    try:
        return owner.read_text().split()[0] == str(supervisor)
    except (OSError, IndexError):
        return False


def _parent_of(folder: Path) -> tuple[int, bool]:
    fields = (folder / "stat").read_text().rpartition(") ")[2].split()
    return int(fields[1]), fields[0] != "Z"


@pytest.mark.parametrize(
    ("options", "moment", "code", "times"),
    [
        (("--no-walk",), "API server: ready", 130, 1),
        ((), "tensorflow-mnist-share created", 130, 1),
        (("--no-walk",), "GPUs of every node", 0, 2),
    ],
    ids=["while it starts", "during the walk", "twice when it is up"],
)
def test_ctrl_c_stops_it_and_leaves_nothing(
    options: tuple[str, ...], moment: str, code: int, times: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpushare", "playground", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=CHECKOUT,
        env=environment({"PYTHONUNBUFFERED": "1"}),
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if re.search(moment, line):
                break
        else:
            raise AssertionError(f"it ended before it said {moment!r}:\n{''.join(lines)}")
        before = of_playground(process.pid)
        assert any("apiserver" in command for command in before.values())
        [state] = [owner.parent for owner in _owners() if _owned(owner, process.pid)]
        started_s = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the foreground group
        rest = ""
        while "Ending: every process" not in rest:
            read = process.stdout.readline()
            assert read, rest
            rest += read
        if times > 1:
            os.killpg(process.pid, signal.SIGINT)
        rest += process.communicate(timeout=ENDS_WITHIN_S)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    print(f"ended after {time.monotonic() - started_s:.1f} s")
    assert process.returncode == code, rest
    assert "Traceback" not in "".join(lines) + rest
    assert ("It is ending; Ctrl-C once more" in rest) == (times > 1)
    wait_until(
        lambda: not [pid for pid in before if Path(f"/proc/{pid}").exists()],
        within_s=ENDS_WITHIN_S,
        detail=str(before),
    )
    assert not state.exists()
    assert of_playground(process.pid) == {}
