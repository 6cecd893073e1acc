"""One part of the playground: a process that is restarted when it ends, until it is stopped."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.2
_MOST_BACKOFF_S: Final = 5.0
_STEADY_S: Final = 10.0
"""A part that ran this long restarts with the shortest back-off."""
_STOP_S: Final = 5.0
_TETHER: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the part, after asking the kernel to kill it when the supervisor is gone, however that went. Not a
``preexec_fn``: code that runs between fork and exec crashes now and then where the parent has threads."""


@dataclass
class Part:
    """A process by its argument list. ``restarts`` counts its restarts.

    ``most_backoff_s`` limits the wait before a restart, in seconds. With ``on_end`` it is not restarted: this is
    called instead.
    """

    name: str
    arguments: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    report: Callable[[str], None] = logger.info
    most_backoff_s: float = _MOST_BACKOFF_S
    on_end: Callable[[], None] | None = None
    restarts: int = 0
    pid: int = 0
    _stopping: bool = False
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it, and keep it running from now on."""
        self._stopping = False
        self._task = asyncio.create_task(self._keep_up(), name=self.name)

    async def stop(self) -> None:
        """SIGTERM, a few seconds, SIGKILL; returns when it has ended."""
        self._stopping = True
        task, self._task = self._task, None
        if task is None:
            return
        self.kill(signal.SIGTERM)
        _, late = await asyncio.wait([task], timeout=_STOP_S)
        if late:
            self.kill(signal.SIGKILL)
            _, late = await asyncio.wait([task], timeout=_STOP_S)
            if late:
                task.cancel()

    def is_stopping(self) -> bool:
        """Whether it was stopped."""
        return self._stopping

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def log_tail(self, lines: int = 12) -> str:
        """The end of its log, for a message."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    async def run_once(self, log: BinaryIO) -> int:
        """Start the process, and wait for its end; returns its exit code, below 0 for a signal."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid())),
            *self.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | self.environment,
            start_new_session=True,
        )
        self.is_running_as(process.pid)
        code = await process.wait()
        self.pid = 0
        return code

    def is_running_as(self, pid: int) -> None:
        """Called when its process was started; a part that was stopped meanwhile ends it."""
        self.pid = pid
        if self.is_stopping():
            self.kill(signal.SIGTERM)

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = _FIRST_BACKOFF_S
        while not self.is_stopping():
            started_s = loop.time()
            try:
                with self.log.open("ab") as log:
                    code = await self.run_once(log)
            except (OSError, RuntimeError) as error:  # no memory, process, thread or descriptor is left
                self.report(f"{self.name} cannot be started ({error}); trying again in {backoff_s:.1f} s")
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self.most_backoff_s)
                continue
            if self.is_stopping():
                return
            if self.on_end is not None:
                self.report(f"{self.name} ended ({_outcome(code)})")
                self.on_end()
                return
            if loop.time() - started_s > _STEADY_S:
                backoff_s = _FIRST_BACKOFF_S
            self.report(f"{self.name} ended ({_outcome(code)}); starting it again in {backoff_s:.1f} s")
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, self.most_backoff_s)
            self.restarts += 1


def _outcome(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
