"""A separate process with the fake ``libcuda.so.1``, driven by a test call by call.

The driver's state is per process and cannot be reset, and the tests are about what processes see of each other; so every
use of the library is in a child, which the test may end at any moment.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import struct
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from tests.unit.fakegpu.building import BUILT

MIB = 1 << 20
#: An answer may take this long, even on a busy machine.
PATIENCE_S = 60.0
NAMES = {
    0: "SUCCESS",
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    201: "INVALID_CONTEXT",
    400: "INVALID_HANDLE",
    600: "NOT_READY",
    709: "CONTEXT_IS_DESTROYED",
    712: "HOST_MEMORY_ALREADY_REGISTERED",
    713: "HOST_MEMORY_NOT_REGISTERED",
    801: "NOT_SUPPORTED",
    803: "SYSTEM_DRIVER_MISMATCH",
}


@dataclass(frozen=True)
class Out:
    """An argument that the function writes to."""

    size: int = 8


@dataclass(frozen=True)
class Whole:
    """A struct that is passed by value."""

    content: bytes


OUT = Out()


def _argument(value: Any) -> tuple[Any, Any]:
    """What ctypes passes for a value, and the buffer behind it."""
    match value:
        case Out(size):
            buffer = ctypes.create_string_buffer(size)
            return ctypes.byref(buffer), buffer
        case Whole(content):
            kind = type("Whole", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_char * len(content))]})
            return kind.from_buffer_copy(content), None
        case bytes():
            buffer = ctypes.create_string_buffer(value, len(value))
            return ctypes.byref(buffer), buffer
        case None:
            return ctypes.c_void_p(None), None
        case _:
            return ctypes.c_ulonglong(value & (1 << 64) - 1), None


def _call(library: ctypes.CDLL, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    passed = [_argument(value) for value in arguments]
    code = getattr(library, name)(*(argument for argument, _ in passed))
    written = []
    for value, (_, buffer) in zip(arguments, passed, strict=True):
        if isinstance(value, Out):
            written.append(int.from_bytes(buffer.raw, "little") if value.size == 8 else buffer.raw)
    return NAMES.get(code, code), *written


def _serve(connection: Any, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    library = ctypes.CDLL(str(BUILT / "libcuda.so.1"))
    while True:
        what, *arguments = connection.recv()
        try:
            match what:
                case "end":
                    os._exit(0)
                case "read":
                    connection.send(ctypes.string_at(*arguments))
                case "write":
                    ctypes.memmove(arguments[0], arguments[1], len(arguments[1]))
                    connection.send(None)
                case "close":
                    os.close(*arguments)
                    connection.send(None)
                case "lend":
                    reduction.send_handle(connection, arguments[0], os.getppid())
                case "receive":
                    connection.send(reduction.recv_handle(connection))
                case "become":
                    os.setuid(*arguments)
                    connection.send(None)
                case "fork":
                    connection.send(_in_child(library, *arguments))
                case _:
                    connection.send(_call(library, what, tuple(arguments)))
        except Exception:
            connection.send(RuntimeError(traceback.format_exc()))


def _in_child(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """The result of a function in a fork of the process."""
    child = os.fork()
    if not child:
        code = getattr(library, name)(*(_argument(value)[0] for value in arguments))
        os._exit(code if code < 128 else 127)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return NAMES.get(code, code)


class CudaProcess:
    """The child. `cu` calls any function of the interface; its outputs are returned after its result."""

    def __init__(self, node: Path, **environment: str) -> None:
        fork = multiprocessing.get_context("fork")
        self._connection, theirs = fork.Pipe()
        self._process = fork.Process(
            target=_serve, args=(theirs, {"FAKEGPU_NODE": str(node), **environment}), daemon=True
        )
        self._process.start()
        theirs.close()
        assert self._process.pid
        self.pid = self._process.pid

    def ask(self, what: str, *arguments: Any) -> Any:
        self.send(what, *arguments)
        return self.answer()

    def send(self, what: str, *arguments: Any) -> None:
        self._connection.send((what, *arguments))

    def answer(self) -> Any:
        assert self._connection.poll(PATIENCE_S), "no answer"
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cu(self, name: str, *arguments: Any) -> Any:
        """The result's name, alone or with the outputs."""
        result = self.ask(name, *arguments)
        return result if len(result) > 1 else result[0]

    def good(self, name: str, *arguments: Any) -> Any:
        """The outputs of a call that must succeed."""
        code, *written = self.ask(name, *arguments)
        assert code == "SUCCESS", f"{name}: {code}"
        return written[0] if len(written) == 1 else tuple(written)

    def lend(self, file: int) -> int:
        """Duplicate a descriptor of the process into this one."""
        self.send("lend", file)
        return int(reduction.recv_handle(self._connection))

    def receive(self, file: int) -> int:
        """Move a descriptor from this process to the child; its number there."""
        self.send("receive")
        reduction.send_handle(self._connection, file, self.pid)
        os.close(file)
        return int(self.answer())

    def open(self, device: int = 0) -> int:
        """cuInit and a context, current from now on."""
        self.good("cuInit", 0)
        return int(self.good("cuCtxCreate_v2", OUT, 0, device))

    def free_bytes(self) -> int:
        return int(self.good("cuMemGetInfo_v2", OUT, OUT)[0])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._process.join(PATIENCE_S)
        assert self._process.exitcode is not None

    def close(self) -> None:
        if self._connection.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(("end",))
        self._process.join(PATIENCE_S)
        if self._process.exitcode is None:
            self.kill()
        self._connection.close()


class Processes:
    """Children on one node, all closed with the test."""

    def __init__(self, node: Path) -> None:
        self.node = node
        self._all: list[CudaProcess] = []

    def start(self, **environment: str) -> CudaProcess:
        process = CudaProcess(self.node, **environment)
        self._all.append(process)
        return process

    def opened(self) -> CudaProcess:
        process = self.start()
        process.open()
        return process

    @contextlib.contextmanager
    def closing(self) -> Iterator["Processes"]:
        try:
            yield self
        finally:
            for process in self._all:
                process.close()


def pack(form: str, *values: int) -> bytes:
    """A struct's bytes in the machine's own layout."""
    return struct.pack(form, *values)
