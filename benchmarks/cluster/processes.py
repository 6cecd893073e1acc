"""The measured programs: starting, waiting, watching, and their resource usage."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_STOP_S: Final = 10.0
READY_S: Final = 60.0
"""Time limit for a program to become ready."""
WORK_S: Final = 200.0
"""The time limit of the cluster's work: a multiple of the time for 5,000 nodes."""
_TAIL: Final = 3000


class Program:
    """One running process with a log file of its own."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raise with the end of its log if it has exited."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"{self.name} ended with {code}; {self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return f"the log of {self.name} ends with:\n{self._log.read_text(errors='replace')[-_TAIL:].rstrip()}"


async def until(
    met: Callable[[], Awaitable[bool]],
    what: str,
    programs: Sequence[Program],
    *,
    deadline_s: float,
    every_s: float = 0.05,
) -> None:
    """Poll every ``every_s`` seconds until it is ``met``.

    Raises ``RuntimeError`` as soon as one of ``programs`` has exited, and ``TimeoutError`` after ``deadline_s`` with
    ``what`` did not happen, the last error, and the ends of the logs of ``programs``.
    """
    end = time.monotonic() + deadline_s
    problem = ""
    while True:
        for one in programs:
            one.check()
        try:
            if await met():
                return
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = f" ({type(error).__name__}: {error})"
        if time.monotonic() > end:
            tails = "".join(f"\n{one.tail()}" for one in programs)
            raise TimeoutError(f"not within {deadline_s:.0f} s: {what}{problem}{tails}")
        await asyncio.sleep(every_s)


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

    async def written() -> bool:
        return bool(_text(path))

    await until(written, f"{of.name} writes {path.name}", [of], deadline_s=READY_S)
    return _text(path)


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def fresh_folder(parent: Path, name: str) -> Path:
    """An empty folder of that name."""
    made = parent / name.replace(" ", "-").replace(",", "")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


def cpu_s(pid: int) -> float:
    """The processor time of a process with all its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def cpu_of(pids: Mapping[str, int]) -> dict[str, float]:
    """Processor time of each, in seconds."""
    return {name: cpu_s(pid) for name, pid in pids.items()}


def busy_s() -> float:
    """Seconds of work of all processors, for any process."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) * _TICK_S


def free_port() -> int:
    """A free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
