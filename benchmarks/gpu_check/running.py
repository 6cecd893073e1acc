"""Starting, watching and ending programs: a failure is a row of the report and does not end the report."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: The length of a failed program's output in a row.
SHOWN = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended, and its output."""

    #: Exit status, or minus the signal; None: it was killed after its time limit.
    status: int | None
    out: str
    err: str
    seconds: float

    @property
    def good(self) -> bool:
        """It exited by itself with status 0."""
        return self.status == 0

    def words(self) -> str:
        """How it ended, for a row."""
        if self.status is None:
            return f"did not end within {self.seconds:.0f} s"
        if self.status < 0:
            try:
                return f"ended by {signal.Signals(-self.status).name}"
            except ValueError:
                return f"ended by signal {-self.status}"
        return f"ended with {self.status}"

    def trouble(self) -> str:
        """How it ended and its last error."""
        text = self.err.strip() or self.out.strip()
        if "Traceback (most recent call last)" in text:
            text = text.splitlines()[-1]  # the last line of Python's output is the error
        line = " ".join(text.split())
        return self.words() + (f": …{line[-SHOWN:]}" if len(line) > SHOWN else f": {line}" if line else "")


class Clock:
    """The time limit of the whole run, and the time left; a part of the run may have less."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._part_until = self._began + seconds

    def begin_part(self, seconds: float) -> None:
        """Limits the time of the current part."""
        self._part_until = time.monotonic() + seconds

    def gone_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def left_s(self) -> float:
        """Seconds left for the current part."""
        return min(self._began + self.seconds, self._part_until) - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleeps while there is time."""
        time.sleep(max(0.0, min(seconds, self.left_s())))

    def at_most_s(self, wanted_s: float) -> float:
        """The time limit of a program: as requested, or the time left; never zero."""
        return max(1.0, min(wanted_s, self.left_s()))


def end_group(process: "subprocess.Popen[str]") -> None:
    """Kills a program that leads its own session, with its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    program: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    stdin: str = "",
    folder: Path | None = None,
) -> Outcome:
    """Runs a program to its end, or kills it and its children after the time limit."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=folder,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    status: int | None
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
        status = process.returncode
    except subprocess.TimeoutExpired:
        end_group(process)
        out, err = process.communicate()
        status = None
    except BaseException:
        end_group(process)
        raise
    return Outcome(status, out, err, time.monotonic() - began)


class Ended(Exception):
    """A program ended instead of answering, or did not answer in time; the text says how."""


class Conversation:
    """A running program that answers requests; see ``conversation``."""

    def __init__(self, process: "subprocess.Popen[str]", complaints: IO[str], timeout_s: float) -> None:
        self.process = process
        self._complaints = complaints
        self._timeout_s = timeout_s

    def _trouble(self, late: bool) -> Ended:
        end_group(self.process)
        self._complaints.seek(0)
        stderr = self._complaints.read()
        status = None if late else self.process.returncode
        return Ended(Outcome(status, "", stderr, self._timeout_s).trouble())

    def answer(self) -> str:
        """The program's next line."""
        assert self.process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(self._timeout_s, end)
        timer.start()
        try:
            text = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not text:
            self.process.wait()
            raise self._trouble(late.is_set())
        return text.strip()

    def send(self, text: str) -> None:
        """Send a line to the program."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.wait()
            raise self._trouble(False) from None

    def ask(self, text: str) -> str:
        """The program's answer to a line."""
        self.send(text)
        return self.answer()


@contextmanager
def conversation(
    program: Sequence[str | Path], *, environment: Mapping[str, str], timeout_s: float, complaints: Path
) -> Iterator[Conversation]:
    """A program with a time limit for each answer; it ends with the block."""
    with complaints.open("w+", errors="replace") as err:
        process = subprocess.Popen(
            [str(word) for word in program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            env=dict(environment),
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            yield Conversation(process, err, timeout_s)
        finally:
            end_group(process)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()
