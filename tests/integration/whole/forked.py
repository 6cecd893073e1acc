"""Parts of a playground as forks of one process that has imported their modules: starting Python is most of
a cluster's cost.

They do what they do as programs of their own (``tests/integration/playground`` and ``make run`` start them
as such), under another command line. ``python -m tests.integration.whole.forked FD`` is the process that
forks, for as long as its parent lives.
"""

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from gpushare_playground.cluster.parts import Part

_CHECKOUT: Final = Path(__file__).parents[3]
DRIVER: Final = _CHECKOUT / "build" / "fakegpu"
_DIES_WITH_PARENT: Final = 1
_MOST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 4096
_MODULES: Final = (
    "gpushare.nodeagent.main",
    "gpushare_playground.apiserver.server",
    "gpushare_playground.controllers.running",
    "gpushare_playground.kubelet.agent",
    "gpushare_playground.kubescheduler.running",
    "gpushare.scheduler.main",
)


class Forks:
    """Starts that process when it is first needed."""

    def __init__(self) -> None:
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, command: list[str], environment: dict[str, str], log: BinaryIO) -> socket.socket:
        """Start ``[python, -m, module, argument…]``; the socket gets its process ID and, when it has ended, its exit code, a line each."""
        if self._requests is None:
            self._requests = self._start()
        ours, its = socket.socketpair()
        with its:
            body = json.dumps({"command": command, "environment": environment}).encode()
            socket.send_fds(self._requests, [body], [its.fileno(), log.fileno()])
        return ours

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.whole.forked", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                cwd=_CHECKOUT,
                # A loader's search path is fixed when its program starts, and forks have none of their own.
                env=os.environ | {"LD_LIBRARY_PATH": str(DRIVER)},
            )
        return ours

    def close(self) -> None:
        """Stop it, with all that it has forked."""
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._process.wait()
            self._requests = self._process = None


FORKS: Final = Forks()


class Forked(Part):
    """A part that is a fork."""

    async def run_once(self, log: BinaryIO) -> int:
        """Run as its own program would."""
        reader, writer = await asyncio.open_connection(
            sock=FORKS.fork(self.arguments, os.environ | self.environment, log)
        )
        try:
            self.is_running_as(int(await reader.readline()))
            return int(await reader.readline())
        finally:
            self.pid = 0
            writer.close()


def _become(command: list[str], environment: dict[str, str], log: int, parent: int) -> NoReturn:
    """Run that module in this process, a fork of ``parent``."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    for stream in (1, 2):
        os.dup2(log, stream)
    os.closerange(3, _MOST_FILES)
    os.environ.clear()
    os.environ.update(environment)
    _, _, module, *arguments = command
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Fork on request until the requester is gone."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    for module in _MODULES:
        importlib.import_module(module)
    own = os.getpid()
    with socket.socket(fileno=int(sys.argv[1])) as requests, selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    pid, replies = key.data
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    _send(replies, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(replies)
                    continue
                body, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
                if not body:
                    return
                replies, log = files
                request = json.loads(body)
                if not (pid := os.fork()):
                    _become(request["command"], request["environment"], log, own)
                os.close(log)
                _send(replies, pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, replies))


def _send(replies: int, number: int) -> None:
    with contextlib.suppress(OSError):  # the requester has exited
        os.write(replies, f"{number}\n".encode())


if __name__ == "__main__":
    main()
