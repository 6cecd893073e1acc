"""Stands between the kubelet and one container, so that the container outlives the kubelet and its end is recorded.

A separate program that needs only a little of the standard library, because each container has one: ``SHIM`` of
``containers.py`` with ``FOLDER``. It reads
``FOLDER/spec.json`` (``argv``, ``env``, ``cwd``, ``log``, ``lifeline``), starts the program in a session
of its own, writes ``state.json`` once it runs, copies its output line by line to the log in the format
of container runtimes (``TIME stdout F line``), and at the end kills whatever the program left behind and
writes ``exit.json``. Its own standard output reports the start to the kubelet in one line of JSON.

The program dies with its shim (parent death signal), and the shim with the process named as ``lifeline``:
so nothing of a playground remains when its supervisor is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import termios
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import typing takes a seventh of the time that a start takes
    from typing import Any, BinaryIO, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Longest piece of a line that is written at once; longer ones are written in parts, marked ``P``.
LONGEST_PIECE = 16 * 1024
#: The log is renamed to ``….1`` when it grows above this, in bytes; one older part is kept.
LARGEST_LOG = 10 * 1024 * 1024
_STOP_S = 2.0
_REAP_MS = 30_000
_PIECES_AT_ONCE = 16


class Log:
    """The log file of one container's start."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stream: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - held for life

    def write(self, stream: bytes, mark: bytes, text: bytes) -> None:
        """One line or part of a line."""
        if self._stream.tell() > LARGEST_LOG:
            self._stream.close()
            os.replace(self._path, self._path + ".1")
            self._stream = open(self._path, "ab", buffering=0)  # noqa: SIM115
        now = time.time_ns()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000_000))
        head = f"{moment}.{now % 1_000_000_000:09d}Z ".encode()
        with suppress(OSError):  # a full disk stops the log, not the container
            self._stream.write(head + stream + b" " + mark + b" " + text + b"\n")


class Lines:
    """Cuts one stream into lines."""

    def __init__(self, name: bytes, log: Log) -> None:
        self._name = name
        self._log = log
        self._unfinished = b""

    def feed(self, piece: bytes) -> None:
        """Process what was read."""
        *whole, self._unfinished = (self._unfinished + piece).split(b"\n")
        for line in whole:
            self._put(line, b"F")
        while len(self._unfinished) > LONGEST_PIECE:
            self._put(self._unfinished[:LONGEST_PIECE], b"P")
            self._unfinished = self._unfinished[LONGEST_PIECE:]

    def end(self) -> None:
        """Write an unfinished line."""
        if self._unfinished:
            self._put(self._unfinished, b"F")
            self._unfinished = b""

    def _put(self, line: bytes, mark: bytes) -> None:
        while len(line) > LONGEST_PIECE:
            self._log.write(self._name, b"P", line[:LONGEST_PIECE])
            line = line[LONGEST_PIECE:]
        self._log.write(self._name, mark, line)


def prctl(option: int, value: int) -> None:
    """``prctl(2)``; failures do not matter here."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; distinguishes it from a later one of the same number.

    0 if no such process exists, or only its remains.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b") ")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a file atomically."""
    with open(path + ".new", "w") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + ".new", path)


def become(argv: list[str], env: dict[str, str], cwd: str) -> NoReturn:
    """Become the program; raises ``OSError`` if that fails."""
    os.chdir(cwd)
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)  # noqa: S606 - to become a program is what this is for
    failure: OSError = FileNotFoundError(2, "executable file not found in $PATH")
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, argv[0])
        try:
            if os.access(path, os.X_OK) and not os.path.isdir(path):
                os.execve(path, argv, env)  # noqa: S606
        except OSError as error:
            failure = error
    raise failure


def launch(spec: dict[str, Any], out: int, err: int, report: int) -> NoReturn:
    """In the child: the last steps before the program; reports a failure through ``report``."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, source in enumerate((nothing, out, err)):
            os.dup2(source, number)
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(one, signal.SIG_DFL)
        become(spec["argv"], spec["env"], spec["cwd"])
    except OSError as error:
        os.write(report, f"{error.strerror or error}".encode())
    except BaseException as error:
        os.write(report, f"{type(error).__name__}: {error}".encode())
    os._exit(128)


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:
                    if int(stream.read().rpartition(b") ")[2].split()[1]) == pid:
                        pids.append(int(name))
            except OSError:
                continue
    return pids


def sweep() -> None:
    """Kill everything that the program left behind; as its reaper we inherit all of it."""
    deadline = time.monotonic() + _STOP_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in children(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], 0.005)


def report_start(report: dict[str, Any]) -> None:
    """Report the start to the kubelet, and disconnect; the kubelet may have ended already."""
    with suppress(OSError):
        os.write(1, json.dumps(report).encode() + b"\n")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def pump(pid: int, streams: dict[int, Lines], lifeline: int) -> int:
    """Copy output until the program ends; returns its wait status."""
    poll = select.poll()
    ended = os.pidfd_open(pid)
    poll.register(ended, select.POLLIN)
    for fd in streams:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    if lifeline >= 0:
        poll.register(lifeline, select.POLLIN)
    status: int | None = None
    while status is None:
        reap_orphans(pid)
        for fd, _ in poll.poll(_REAP_MS):
            if fd in streams and not drain(fd, streams[fd]):
                poll.unregister(fd)
            elif fd == lifeline:
                os.kill(pid, signal.SIGKILL)
                poll.unregister(lifeline)
            elif fd == ended:
                status = os.waitpid(pid, 0)[1]
    return status


def reap_orphans(main: int) -> None:
    """Collect ended processes that the program left to us, but not the program itself."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == main:
                return
            os.waitpid(ended.si_pid, 0)


def drain(fd: int, lines: Lines) -> bool:
    """Read what is available, within limits; ``False`` at the end."""
    for _ in range(_PIECES_AT_ONCE):
        try:
            piece = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not piece:
            return False
        lines.feed(piece)
    return True


def drain_all(fd: int, lines: Lines) -> None:
    """Read to the end."""
    while drain(fd, lines):
        pass
    lines.end()


def open_lifeline(lifeline: dict[str, int] | None) -> int:
    """A descriptor that becomes readable when the process ends with which we end, or -1 without one."""
    if lifeline is None:
        return -1
    try:
        fd = os.pidfd_open(lifeline["pid"])
    except OSError:
        fd = -1
    if fd < 0 or start_ticks(lifeline["pid"]) != lifeline["start_ticks"]:
        raise ProcessLookupError(3, "the playground that this container belongs to has ended")
    return fd


def run(folder: str) -> int:
    """Start, watch and clean up one container."""
    # The lock on the specification shows a restarted kubelet that this shim is alive.
    held = open(os.path.join(folder, "spec.json"))  # noqa: SIM115
    fcntl.flock(held, fcntl.LOCK_EX)
    spec = json.load(held)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        lifeline = open_lifeline(spec.get("lifeline"))
        log = Log(spec["log"])
    except OSError as error:
        report_start({"error": str(error.strerror)})
        return 1
    (out, out_end), (err, err_end), (reported, report) = os.pipe(), os.pipe(), os.pipe()
    started_ns = time.time_ns()
    pid = os.fork()
    if pid == 0:
        launch(spec, out_end, err_end, report)
    for fd in (out_end, err_end, report):
        os.close(fd)
    failure = os.read(reported, 4096).decode(errors="replace")
    if failure:
        os.waitpid(pid, 0)
        report_start({"error": failure})
        return 1
    state = {
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "shim": os.getpid(),
        "shim_ticks": start_ticks(os.getpid()),
        "started_ns": started_ns,
    }
    write_json(os.path.join(folder, "state.json"), state)
    report_start(state)
    streams = {out: Lines(b"stdout", log), err: Lines(b"stderr", log)}
    status = pump(pid, streams, lifeline)
    sweep()
    for fd, lines in streams.items():
        os.set_blocking(fd, True)  # there are no writers left, so this ends
        drain_all(fd, lines)
    code = os.waitstatus_to_exitcode(status)
    record = {
        "code": 128 - code if code < 0 else code,
        "signal": max(0, -code),
        "finished_ns": time.time_ns(),
    }
    write_json(os.path.join(folder, "exit.json"), record)
    return 0


def run_exec(text: str) -> NoReturn:
    """Become a further command in a container (``kubectl exec``); ends with the kubelet.

    ``text`` is JSON with ``argv``, ``env``, ``cwd`` and ``tty``. A command that cannot be started is reported
    on standard error, exit code 126 or 127 as by a shell.
    """
    spec = json.loads(text)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if spec["tty"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    try:
        become(spec["argv"], spec["env"], spec["cwd"])
    except OSError as error:
        os.write(2, f'exec: "{spec["argv"][0]}": {error.strerror}\n'.encode())
        os._exit(127 if error.errno == 2 else 126)


def main() -> NoReturn:
    """The program."""
    if sys.argv[1] == "--beside":
        run_exec(sys.argv[2])
    os._exit(run(sys.argv[1]))  # nothing is left to be tidied up
