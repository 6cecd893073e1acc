"""Programs in containers that execute a test's lines one by one, and pass file descriptors to each other."""

import ast
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.integration.isolation.containers import TENANT
from tests.unit.isolation.building import Container

SERVE = f"""
import os, socket, sys
sys.path.insert(0, {str(TENANT.parent)!r})
from tenant import *
mail = socket.socket(fileno=int(sys.argv[1]))
EXPORTED = AllocationProperties(type=1, handles=1, location=Location(1, 0))

def lend(file): socket.send_fds(mail, [b"."], [file])
def borrow(): return socket.recv_fds(mail, 1, 1)[1][0]

def make(mib):
    made = c_uint64()
    return call("cuMemCreate", byref(made), c_size_t(mib * MIB), byref(EXPORTED), c_uint64(0)), made.value

def export(handle):
    file = c_int()
    must("cuMemExportToShareableHandle", byref(file), c_uint64(handle), 1, c_uint64(0))
    return file.value

def take_in(file):
    handle = c_uint64()
    return call("cuMemImportFromShareableHandle", byref(handle), c_void_p(file), 1), handle.value

def let_go(handle): must("cuMemRelease", c_uint64(handle))

def put_at(handle, mib):
    address = c_uint64()
    must("cuMemAddressReserve", byref(address), c_size_t(mib * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
    return call("cuMemMap", address, c_size_t(mib * MIB), c_size_t(0), c_uint64(handle), c_uint64(0)), address.value

class Ipc(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]

def ipc_handle(address):
    handle = Ipc()
    must("cuIpcGetMemHandle", byref(handle), c_uint64(address))
    return bytes(handle)

def ipc_open(handle):
    address = c_uint64()
    return call("cuIpcOpenMemHandle_v2", byref(address), Ipc.from_buffer_copy(handle), 1), address.value

def ipc_close(address): must("cuIpcCloseMemHandle", c_uint64(address))

for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except SyntaxError:
        exec(line)
        print(None, flush=True)
"""


class Talker:
    """A program with a context; if `bare`, on the driver itself, without the libraries."""

    def __init__(self, container: Container, bare: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self._mail = ours
        environment = container.environment()
        if bare:
            environment["TENANT_CUDA"] = "libgpushare-driver-cuda.so"
        self._program = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(theirs.fileno())],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            text=True,
        )
        theirs.close()
        self("context()")

    def __call__(self, line: str) -> Any:
        """The value of an expression, or None for a statement."""
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.write(line + "\n")
        self._program.stdin.flush()
        answer = self._program.stdout.readline()
        assert answer, f"it ended at: {line}"
        return None if answer.startswith("c_") else ast.literal_eval(answer)

    def good(self, line: str) -> Any:
        """The results of an expression after its status, which must be 0."""
        result, value = self(line)
        assert result == 0, f"{line}: {result}"
        return value

    def used(self) -> int:
        """MiB of the container."""
        return int(self("used()"))

    def lend(self, file: int, to: "Talker") -> int:
        """Pass one of its descriptors to another program; returns the number that it has there."""
        self(f"lend({file})")
        (passed,) = socket.recv_fds(self._mail, 1, 1)[1]
        socket.send_fds(to._mail, [b"."], [passed])
        os.close(passed)
        return int(to("borrow()"))

    def end(self, kill: bool = False) -> None:
        if kill:
            self._program.send_signal(signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._program.communicate(timeout=30)
        self._mail.close()


@contextlib.contextmanager
def talkers(*containers: Container) -> Iterator[list[Talker]]:
    with contextlib.ExitStack() as ending:

        def started(container: Container) -> Talker:
            talker = Talker(container)
            ending.callback(talker.end, kill=True)
            return talker

        yield [started(container) for container in containers]
