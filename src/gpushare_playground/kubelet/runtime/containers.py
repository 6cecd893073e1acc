"""Containers as processes: started through a shim, identified by their files, adopted after a restart.

A start of a container is an ``Attempt``: a folder with ``spec.json`` (what was started), ``state.json``
(process numbers and their start times) and, in the end, ``exit.json``. A restarted kubelet reads them
and continues; a process counts as the recorded one only if its start time is the same.
"""

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare_playground.kubelet.paths import read_json, write_whole
from gpushare_playground.kubelet.runtime import shim
from gpushare_playground.kubelet.runtime.cgroups import Cgroups

START_TIMEOUT_S: Final = 30.0
_ADOPT_TIMEOUT_S: Final = 3.0
_START: Final = """
import sys
sys.path.append(sys.argv.pop(1))
import shim
shim.main()
"""
"""As a module, whose bytecode is cached; a script is compiled each time."""
SHIM: Final = (sys.executable, "-I", "-S", "-c", _START, str(Path(shim.__file__).parent))
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: program with arguments, the complete environment, and the working directory."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended. ``reason`` is the API's: Completed, Error, StartError …"""

    code: int
    signal: int
    finished_ns: int
    reason: str
    message: str = ""


@dataclass(slots=True)
class Attempt:
    """One start of one container; ``number`` counts from 0. ``ended`` is ``None`` while it runs."""

    folder: Path
    number: int
    pid: int = 0
    start_ticks: int = 0
    shim: int = 0
    shim_ticks: int = 0
    started_ns: int = 0
    ended: Ended | None = None

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.folder / "log"

    @property
    def container_id(self) -> str:
        """A unique name for this start, in the format of container runtimes."""
        identity = f"{self.pod_uid}/{self.folder.parent.name}/{self.number}"
        return hashlib.sha256(identity.encode()).hexdigest()

    @property
    def pod_uid(self) -> str:
        """The UID of its pod."""
        return self.folder.parent.parent.name

    def launch(self) -> Launch | None:
        """What was started, for further commands in the container."""
        spec = read_json(self.folder / "spec.json")
        return None if spec is None else Launch(spec["argv"], spec["env"], Path(spec["cwd"]))


class Containers:
    """Starts, stops and watches the containers of one node.

    ``lifeline`` is the process (or 0) with which every container ends.
    """

    def __init__(self, pods: Path, lifeline: int = 0, cgroups: Cgroups | None = None) -> None:
        self._pods = pods
        self._cgroups = cgroups or Cgroups(pods.parent / "cgroup")
        self._watched: dict[int, int] = {}
        self._lifeline = {"pid": lifeline, "start_ticks": shim.start_ticks(lifeline)} if lifeline else None

    def folder(self, pod_uid: str, container: str) -> Path:
        """The folder of one container."""
        return self._pods / pod_uid / container

    async def start(
        self, pod_uid: str, container: str, number: int, launch: Launch, ended: Callable[[Attempt], None]
    ) -> Attempt:
        """Start a container; ``ended`` is called in the event loop when it has ended.

        If its program cannot be started the attempt is returned as ended, with reason StartError and code 128.
        """
        folder = self.folder(pod_uid, container) / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        attempt = Attempt(folder, number)
        spec = {
            "argv": list(launch.argv),
            "env": {**launch.env, **self._cgroups.enter(attempt)},
            "cwd": str(launch.cwd),
            "log": str(attempt.log),
            "lifeline": self._lifeline,
        }
        write_whole(folder / "spec.json", json.dumps(spec))
        report = await self._run_shim(folder)
        if "error" in report:
            self._cgroups.leave(attempt)
            _note_failure(
                attempt,
                f"failed to create containerd task: failed to create shim task: unable to start container process: "
                f'exec: "{launch.argv[0]}": {report["error"]}',
            )
        else:
            _note(attempt, report)
            self._watch(attempt, ended)
        self._forget_older(attempt)
        return attempt

    async def _run_shim(self, folder: Path) -> dict[str, Any]:
        """Start the shim and read its report on the start."""
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns at once, and the shim must outlive us
                [*SHIM, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            return {"error": f"the container's shim cannot be started: {error.strerror}"}
        process.returncode = 0  # the watch collects it
        assert process.stdout is not None
        with process.stdout as stream:
            received = await read_to_end(stream.fileno(), START_TIMEOUT_S)
        try:
            report = json.loads(received)
        except ValueError:
            report = {"error": "the container's shim ended before its program was started"}
        if "error" in report:
            # One that is only slow would start the container after all, and be waited for to its end.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                await asyncio.to_thread(os.waitpid, process.pid, 0)
        return dict(report)

    async def adopt(self, pod_uid: str, ended: Callable[[Attempt], None]) -> dict[str, list[Attempt]]:
        """The last two starts of each container of a pod, from their files, newest last.

        Those that still run are watched from now on.
        """
        last_starts: dict[str, list[Attempt]] = {}
        for folder in _folders(self._pods / pod_uid):
            attempts = []
            for number in sorted(int(one.name) for one in _folders(folder) if one.name.isdigit())[-2:]:
                attempt = await self._read(Attempt(folder / str(number), number))
                if attempt is not None:
                    attempts.append(attempt)
                    if attempt.ended is None:
                        self._watch(attempt, ended)
            if attempts:
                last_starts[folder.name] = attempts
        return last_starts

    async def _read(self, attempt: Attempt) -> Attempt | None:
        """The recorded attempt; ``None`` for a start that never happened."""
        state = read_json(attempt.folder / "state.json")
        if state is None and await _shim_holds(attempt.folder / "spec.json"):
            state = read_json(attempt.folder / "state.json")
        if state is None:
            shutil.rmtree(attempt.folder, ignore_errors=True)
            return None
        _note(attempt, state)
        if (attempt.folder / "exit.json").exists() or not _alive(attempt.shim, attempt.shim_ticks):
            attempt.ended = _how_it_ended(attempt)
            self._cgroups.leave(attempt)
        return attempt

    def signal(self, attempt: Attempt, number: signal.Signals) -> None:
        """Send a signal to a container's first process, if it is still the one that was started."""
        if attempt.ended is None and _alive(attempt.pid, attempt.start_ticks):
            with suppress(ProcessLookupError):
                os.kill(attempt.pid, number)

    def close(self) -> None:
        """Stop watching; the containers continue."""
        loop = asyncio.get_running_loop()
        for fd in self._watched:
            loop.remove_reader(fd)
            os.close(fd)
        self._watched.clear()

    def _watch(self, attempt: Attempt, ended: Callable[[Attempt], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            fd = os.pidfd_open(attempt.shim)
        except OSError:
            loop.call_soon(self._record_end, -1, attempt, ended)
            return
        self._watched[fd] = attempt.shim
        loop.add_reader(fd, self._record_end, fd, attempt, ended)

    def _record_end(self, fd: int, attempt: Attempt, ended: Callable[[Attempt], None]) -> None:
        if fd >= 0:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
            del self._watched[fd]
        with suppress(ChildProcessError):
            os.waitpid(attempt.shim, os.WNOHANG)
        attempt.ended = _how_it_ended(attempt)
        self._cgroups.leave(attempt)
        ended(attempt)

    def _forget_older(self, attempt: Attempt) -> None:
        for folder in _folders(attempt.folder.parent):
            if folder.name.isdigit() and int(folder.name) < attempt.number - 1:
                shutil.rmtree(folder, ignore_errors=True)


async def read_to_end(fd: int, timeout_s: float) -> bytes:
    """What is read from a pipe until it is closed, or until ``timeout_s`` seconds have passed."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    received = bytearray()
    done = loop.create_future()

    def read() -> None:
        try:
            piece = os.read(fd, 65536)
        except BlockingIOError:
            return
        received.extend(piece)
        if not piece and not done.done():
            done.set_result(None)

    loop.add_reader(fd, read)
    try:
        async with asyncio.timeout(timeout_s):
            await done
    except TimeoutError:
        _log.error("a container's shim does not answer")
    finally:
        loop.remove_reader(fd)
    return bytes(received)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir())
    except OSError:
        return []


def _note(attempt: Attempt, state: Mapping[str, Any]) -> None:
    attempt.pid, attempt.start_ticks = state["pid"], state["start_ticks"]
    attempt.shim, attempt.shim_ticks = state["shim"], state["shim_ticks"]
    attempt.started_ns = state["started_ns"]


def _note_failure(attempt: Attempt, message: str) -> None:
    """Record a failed start like one that ran and ended, so that it is also counted after a restart."""
    now = time.time_ns()
    attempt.started_ns = now
    attempt.ended = Ended(128, 0, now, "StartError", message)
    state = {"pid": 0, "start_ticks": 0, "shim": 0, "shim_ticks": 0, "started_ns": now}
    write_whole(attempt.folder / "state.json", json.dumps(state))
    record = {"code": 128, "signal": 0, "finished_ns": now, "reason": "StartError", "message": message}
    write_whole(attempt.folder / "exit.json", json.dumps(record))


def _alive(pid: int, ticks: int) -> bool:
    return ticks > 0 and shim.start_ticks(pid) == ticks


def _how_it_ended(attempt: Attempt) -> Ended:
    record = read_json(attempt.folder / "exit.json")
    if record is None:
        # The shim was killed, and the program with it: its exit code is unknown.
        return Ended(
            137,
            9,
            max(attempt.started_ns, _modified_ns(attempt.folder)),
            "ContainerStatusUnknown",
            "The container could not be located when the pod was terminated",
        )
    reason = record.get("reason") or ("Completed" if record["code"] == 0 else "Error")
    return Ended(record["code"], record["signal"], record["finished_ns"], reason, record.get("message", ""))


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


async def _shim_holds(spec: Path) -> bool:
    """Wait until the shim that locks this specification has started its program; ``False``: no shim locks it."""
    deadline = asyncio.get_running_loop().time() + _ADOPT_TIMEOUT_S
    while asyncio.get_running_loop().time() < deadline:
        try:
            with spec.open() as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
        except BlockingIOError:
            if (spec.parent / "state.json").exists():
                return True
            await asyncio.sleep(0.02)
        except OSError:
            return False
    return True
