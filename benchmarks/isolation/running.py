"""Communication with a measured program: by lines, with a deadline, and with its exit code if it ended."""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: A program without output for this time hangs.
ANSWER_SECONDS = 30.0


class Ended(Exception):
    """A program failed; the message says how it ended, for a row of the table."""


def manner(code: int) -> str:
    """How a process ended, by its return code."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def line(process: subprocess.Popen[str], seconds: float = ANSWER_SECONDS) -> str:
    """The program's next line, its only output until the next request."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], seconds)
    if not readable:
        raise Ended(f"no answer in {seconds:g} s")
    text = process.stdout.readline()
    if not text:
        try:
            raise Ended(manner(process.wait(10)))
        except subprocess.TimeoutExpired:
            raise Ended("closed its output") from None
    return text.strip()


def send(process: subprocess.Popen[str], text: str) -> None:
    """Send a line to the program."""
    assert process.stdin is not None
    try:
        process.stdin.write(text + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise Ended(manner(process.wait(10))) from None


def alive(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Raises if one of the programs has ended."""
    for process in processes:
        if (code := process.poll()) is not None:
            raise Ended(manner(code))


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    """Ends a load; returns its report."""
    assert process.stdin is not None
    process.stdin.close()
    words = line(process).split()
    process.wait(60)
    return {name: float(value) for name, value in (word.split("=") for word in words)}


def run(command: Sequence[str | Path], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Runs a program to its end: its exit code and output. Its process group is killed after the time limit."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Ended(f"did not end in {seconds:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, text
