"""Child processes of the node agent, which are restarted when they end."""

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import Clock

logger = logging.getLogger(__name__)

#: In seconds: how long a program must run to count as started, how long it may take to stop, and how long its last output may take.
STEADY_S: Final = 2.0
END_S: Final = 3.0
_OUTPUT_S: Final = 1.0

# The new process is killed by the kernel when the agent ends in any way, and has the host's root. It is a separate program because
# nothing may be done between fork and exec of a process with threads.
_START: Final = """
import ctypes, os, sys
parent, root, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
if root != "/":
    os.chroot(root)
    os.chdir("/")
try:
    os.execvp(argv[0], argv)
except OSError as error:
    sys.exit(f"{argv[0]}: {error.strerror}")
"""


class Child:
    """Restarts a program while ``run`` does; ``fault`` says why it does not run, empty while it does."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        clock: Clock,
        on_change: Callable[[], None],
        root: Path = Path("/"),
        backoff: Backoff | None = None,
        steady_s: float = STEADY_S,
    ) -> None:
        self._argv = tuple(argv)
        self._env = dict(env)
        self._root = root
        self._clock = clock
        self._on_change = on_change
        self._backoff = backoff or Backoff(1.0, 60.0)
        self._steady_s = steady_s
        self.fault = f"{argv[0]} has not been started yet"
        self.starts = 0
        self.ran = False
        """Whether it ever ran for ``steady_s`` seconds."""
        self._listening: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run the program until cancelled."""
        try:
            while True:
                try:
                    why = await self._once()
                except (OSError, RuntimeError) as error:
                    # No process, thread or memory left: as if it had ended.
                    why = cannot_start(error)
                wait_s = self._backoff.next_s()
                self._say(f"{self._argv[0]} {why}; it is started again")
                logger.warning("%s %s; again in %.1f s", self._argv[0], why, wait_s)
                await self._clock.sleep(wait_s)
        finally:
            for one in self._listening:
                one.cancel()
            await asyncio.gather(*self._listening, return_exceptions=True)

    async def _once(self) -> str:
        """Run it once; returns how it ended."""
        # Our own pipe: asyncio's would be waited for until its descendants have ended, too.
        reading, writing = os.pipe()
        last: deque[str] = deque(maxlen=1)
        listening = self._listen(reading, last)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-ISc", _START, str(os.getpid()), str(self._root), *self._argv),
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=writing,
            )
        finally:
            os.close(writing)
        self.starts += 1
        try:
            try:
                async with asyncio.timeout(self._steady_s):
                    code = await process.wait()
            except TimeoutError:
                self.ran = True
                self._say("")
                self._backoff.reset()
                code = await process.wait()
            await asyncio.wait([listening], timeout=_OUTPUT_S)
            return _ending(code, last[-1] if last else "")
        finally:
            await _ended(process)

    def _listen(self, reading: int, last: deque[str]) -> asyncio.Task[None]:
        """Read it to its end: descendants that write to an unread pipe would be killed."""
        task = asyncio.create_task(_log_lines(reading, last))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)
        return task

    def _say(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            self._on_change()


async def _log_lines(reading: int, last: deque[str]) -> None:
    """Log each line of a pipe; the last one is left in ``last``."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
    )
    try:
        while line := await stream.readline():
            if said := line.decode(errors="replace").strip():
                last.append(said)
            logger.info("%s", said)
    finally:
        transport.close()


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def cannot_start(error: OSError | RuntimeError) -> str:
    """Why a program could not be started; ``RuntimeError``: asyncio found no thread to wait for it."""
    return f"cannot be started ({getattr(error, 'strerror', None) or error})"


def _ending(code: int, said: str) -> str:
    if code < 0:
        # Its last output was not about this.
        return f"was ended by signal {-code}"
    return f"ended with exit code {code}" + (f" ({said})" if said else "")
