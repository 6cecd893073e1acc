"""Runs the steps of a pipeline, in parallel as far as the machine has CPUs."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pipelines import logs
from pipelines.step import Result, State, Step, UnknownStep
from tests.patience import Deadline

_TICK_S: Final = 0.5
#: A pipeline started by make runs its own makes, which must not inherit flags, variables and job slots.
_OF_ANOTHER_MAKE: Final = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS")


@dataclass(slots=True)
class _Running:
    step: Step
    group: int
    pidfd: int
    started: float
    deadline: Deadline
    ended: float = 0.0
    status: int | None = None
    processor_s: float = 0.0
    reason: str = ""
    terminated: float | None = None

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            return

    def group_is_gone(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return True
        return False


@dataclass(slots=True)
class Runner:
    """Runs steps once. Each has its own process group, which ends with it."""

    steps: Sequence[Step]
    logs: Path
    say: Callable[[str], None]
    cores: float = field(default_factory=lambda: os.cpu_count() or 1)
    heartbeat_s: float = 60.0
    grace_s: float = 15.0
    """From SIGTERM to SIGKILL."""
    folder: Path = Path()
    _waiting: list[Step] = field(default_factory=list, init=False)
    _running: list[_Running] = field(default_factory=list, init=False)
    _results: dict[str, Result] = field(default_factory=dict, init=False)
    _began: float = field(default=0.0, init=False)
    _stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """End running steps and start no more; may be called by a signal handler."""
        self._stopped = True

    def run(self) -> list[Result]:
        """Run all steps; a failed one blocks only the steps that need it. Results are in the steps' order."""
        known: set[str] = set()
        for step in self.steps:
            if unknown := set(step.needs) - known:
                raise UnknownStep(f"{step.name} needs {', '.join(sorted(unknown))}, which is no earlier step")
            known.add(step.name)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._waiting = list(self.steps)
        self._began = last_line_s = time.monotonic()
        while self._waiting or self._running:
            self._start()
            if self._running:
                select.select(
                    [one.pidfd for one in self._running if one.status is None], [], [], self._tick()
                )
            for one in list(self._running):
                self._look_after(one)
            if time.monotonic() - last_line_s >= self.heartbeat_s:
                last_line_s = time.monotonic()
                self._heartbeat()
        return [self._results[step.name] for step in self.steps]

    def _tick(self) -> float:
        return min(_TICK_S, self.heartbeat_s, self.grace_s, *(one.step.timeout_s for one in self._running))

    def _start(self) -> None:
        for step in list(self._waiting):
            needed = [self._results.get(name) for name in step.needs]
            lacking = [one.step.name for one in needed if one and not one.good]
            if self._stopped or lacking:
                self._waiting.remove(step)
                reason = "interrupted" if self._stopped else f"needs {', '.join(lacking)}"
                self._results[step.name] = Result(step, State.NOT_RUN, reason=reason)
                self._say(f"not run  {step.name} ({reason})")
            elif all(needed) and self._fits(step):
                self._waiting.remove(step)
                self._running.append(self._started(step))

    def _fits(self, step: Step) -> bool:
        busy = sum(one.step.cores for one in self._running)
        return not self._running or busy + step.cores <= self.cores

    def _started(self, step: Step) -> _Running:
        environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_MAKE}
        with log_of(self.logs, step).open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", step.command],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.returncode = 0  # Waited for here to get its rusage.
        self._say(f"started  {step.name}")
        return _Running(
            step, process.pid, os.pidfd_open(process.pid), time.monotonic(), Deadline(step.timeout_s)
        )

    def _look_after(self, one: _Running) -> None:
        now = time.monotonic()
        if one.status is None:
            pid, status, usage = os.wait4(one.group, os.WNOHANG)
            if pid:
                one.status = os.waitstatus_to_exitcode(status)
                one.processor_s = usage.ru_utime + usage.ru_stime
                one.ended = now
        killed = one.terminated is not None and now - one.terminated >= self.grace_s
        if killed:
            one.signal(signal.SIGKILL)
        if one.status is not None and (killed or one.group_is_gone()):
            self._end(one, one.status)
            return
        if one.status is None and not one.reason:
            if self._stopped:
                one.reason = "interrupted"
            elif one.deadline.passed():
                one.reason = f"killed: it took longer than {one.step.timeout_s:.0f} s"
        # Leftover processes of a step end with it.
        if one.terminated is None and (one.reason or one.status is not None):
            one.terminated = now
            one.signal(signal.SIGTERM)

    def _end(self, one: _Running, status: int) -> None:
        os.close(one.pidfd)
        self._running.remove(one)
        lines = logs.lines_of(log_of(self.logs, one.step).read_text(errors="replace"))
        wall_s = one.ended - one.started
        if status == 0 and not one.reason:
            reason = logs.why_skipped(lines)
            state = State.SKIPPED if reason else State.PASSED
        else:
            reason, state = one.reason or _of_status(status), State.FAILED
        self._results[one.step.name] = Result(one.step, state, wall_s, one.processor_s, reason)
        because = f" ({reason})" if reason else ""
        self._say(f"{state:<8} {one.step.name} in {wall_s:.0f} s, {one.processor_s:.0f} CPU seconds{because}")
        # pytest's closing lines are printed unchanged: the CI host parses them.
        for line in logs.remarks(lines):
            self.say(line)

    def _heartbeat(self) -> None:
        now = time.monotonic()
        running = (f"{one.step.name} for {now - one.started:.0f} s" for one in self._running)
        self._say(f"running  {', '.join(running)}; {len(self._waiting)} steps wait")

    def _say(self, line: str) -> None:
        passed = int(time.monotonic() - self._began)
        self.say(f"[{passed // 60:3}:{passed % 60:02}] {line}")


def log_of(folder: Path, step: Step) -> Path:
    """The file that a step's output is in."""
    return folder / f"{step.name}.log"


def _of_status(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"
