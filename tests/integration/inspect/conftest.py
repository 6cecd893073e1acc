"""A scripted kubectl, and the command as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
PLUGIN = str(BIN / "kubectl-inspect-cgpu")
DEADLINE_S = 60.0
_PROXY = Path(__file__).with_name("scripted_proxy.py")

#: Appends its arguments to calls.log, then answers as configured for the path.
_SCRIPT = """\
#!/bin/sh
printf '%s\\n' "$*" >> '{folder}/calls.log'
case "$3" in
{cases}
esac
[ "$1" = proxy ] && exec '{python}' '{proxy}' "$0" "$2"
echo "Error from server (NotFound): the server could not find the requested resource" >&2
exit 1
"""


def ended(pid: int) -> bool:
    """Whether the process is gone, or a zombie (its parent may be gone, too)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class ScriptedKubectl:
    """A program in the place of kubectl. Answers are tried in the order in which they were added."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases: list[str] = []
        self.path = folder / "kubectl"
        self._write()

    def answer(self, pattern: str, body: bytes | str) -> None:
        """Print ``body`` for a path that matches ``pattern`` (a shell's)."""
        file = self._folder / f"answer-{len(self._cases)}"
        file.write_bytes(body.encode() if isinstance(body, str) else body)
        self.act(pattern, f"exec cat '{file}'")

    def fail(self, pattern: str, complaint: str, status: int = 1) -> None:
        """Write ``complaint`` to stderr and exit with ``status``."""
        file = self._folder / f"complaint-{len(self._cases)}"
        file.write_text(complaint)
        self.act(pattern, f"cat '{file}' >&2; exit {status}")

    def act(self, pattern: str, script: str) -> None:
        """Run a piece of shell."""
        self._cases.append(f"{pattern}) {script} ;;")
        self._write()

    def calls(self) -> list[str]:
        """The command lines so far, in any order where several ran concurrently."""
        log = self._folder / "calls.log"
        return log.read_text().splitlines() if log.exists() else []

    def _write(self) -> None:
        script = _SCRIPT.format(
            folder=self._folder, cases="\n".join(self._cases), python=sys.executable, proxy=_PROXY
        )
        self.path.write_text(script)
        self.path.chmod(0o755)


@pytest.fixture
def kubectl(tmp_path: Path) -> ScriptedKubectl:
    return ScriptedKubectl(tmp_path)


Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def inspect_cgpu(kubectl: ScriptedKubectl) -> Run:
    """Run the command with the scripted kubectl until it exits."""

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "KUBECTL": str(kubectl.path), **(env or {})}
        return subprocess.run(
            [PLUGIN, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    return run


@pytest.fixture
def start_inspect_cgpu(kubectl: ScriptedKubectl) -> Iterator[Start]:
    """Start the command as the leader of its own process group, as a shell would."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            # A shell that started the tests in the background may ignore interrupts, and that is inherited.
            ["env", "--default-signal=INT", PLUGIN, *arguments],
            env={**os.environ, "KUBECTL": str(kubectl.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
