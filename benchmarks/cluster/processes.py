"""The programs under measurement: started, watched, and asked what they have used."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_STOP_S: Final = 10.0
READY_S: Final = 120.0


class Program:
    """One running process with a log file of its own."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raise with the end of its log when it has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"{self.name} ended with {code}:\n{self._log.read_text()[-3000:]}")


@contextmanager
def program(name: str, command: Sequence[str], log: Path) -> Iterator[Program]:
    """Run ``command`` until the block ends."""
    with log.open("ab") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL)
    try:
        yield Program(name, process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def file_text(path: Path, of: Program) -> str:
    """The text of a file that ``of`` writes once it is ready."""
    until = time.monotonic() + READY_S
    while not (text := _text(path)):
        of.check()
        if time.monotonic() > until:
            raise TimeoutError(f"{of.name} wrote no {path.name} in {READY_S:.0f} s")
        await asyncio.sleep(0.02)
    return text


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def fresh_folder(parent: Path, name: str) -> Path:
    """An empty folder of that name."""
    made = parent / name.replace(" ", "-").replace(",", "")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def cpu_of(pids: Mapping[str, int]) -> dict[str, float]:
    """Processor time of each, in seconds."""
    return {name: cpu_s(pid) for name, pid in pids.items()}


def busy_s() -> float:
    """Seconds that all processors together have worked, for whomever."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) * _TICK_S


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
