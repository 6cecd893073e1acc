"""Programs that outlive the node agent and are found again by the next one.

All pods of a GPU work through NVIDIA's MPS daemon: as a part of the agent's container it would end with every upgrade of the agent.
So it runs in its own cgroup and session and in the host's mount namespace, and a note on the node identifies its process. Only an
agent in the host's PID namespace can leave processes behind: if it is process 1 of its container the kernel kills the rest.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import Clock
from gpushare.nodeagent.isolation.backends.subprocesses import END_S, STEADY_S, cannot_start

logger = logging.getLogger(__name__)

NOTE: Final = "daemon.json"
STDERR: Final = "daemon.err"
#: The cgroup of these programs, in every hierarchy, and the directory of their parts of shared memory.
NAME: Final = "gpushare-mps"
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the node's, not a file of ours
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_START_S: Final = 30.0
_MOST_STDERR: Final = 4096

# The process itself writes the note before it becomes the program: no daemon is ever without. What it cannot leave (cgroups,
# mounts, shared memory) is reported, and it stays there. A separate program, see subprocesses.py.
_START: Final = """
import ctypes, errno, json, os, stat, sys
note, said, cgroups, root, ours, boot, shared, argv = *sys.argv[1:8], sys.argv[8:]
os.setsid()
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def join(kind):
    with open(f"/proc/1/ns/{kind}") as file:
        must(libc.setns(file.fileno(), 0))
def part_of(folder, place, mode):
    # Everybody may write in the node's: what somebody else has made there is not taken.
    path = f"{folder}/{place}"
    try:
        os.mkdir(path)
    except FileExistsError:
        there = os.lstat(path)
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
            raise OSError(errno.EEXIST, f"{path} is somebody else's") from None
    os.chmod(path, mode)
    return path
if os.fork():
    os._exit(0)
err = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
null = os.open(os.devnull, os.O_RDWR)
for number, file in ((0, null), (1, null), (2, err)):
    os.dup2(file, number)
unable = []
try:
    if root != "/":
        join("cgroup")
    above = [cgroups] if os.path.exists(f"{cgroups}/cgroup.procs") else [one.path for one in os.scandir(cgroups) if one.is_dir()]
    for place in above:
        if os.path.exists(f"{place}/cgroup.procs"):
            own = f"{place}/{ours}"
            os.makedirs(own, exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if place != cgroups and os.path.exists(f"{place}/{name}"):
                    with open(f"{place}/{name}") as from_, open(f"{own}/{name}", "w") as to:
                        to.write(from_.read())
            with open(f"{own}/cgroup.procs", "w") as procs:
                procs.write("0")
except OSError as error:
    unable.append(f"it ends with the node agent, as its cgroup cannot be left: {error}")
with open("/proc/self/stat") as file:
    started = int(file.read().rpartition(")")[2].split()[19])
folder = os.open(os.path.dirname(note), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
if root != "/":
    try:
        join("mnt")
    except OSError:
        os.chroot(root)
    os.chdir("/")
apart = ""
try:
    apart = part_of(part_of(shared, ours, 0o711), os.path.basename(os.path.dirname(note)), 0o1777)
    must(libc.unshare(0x20000))  # CLONE_NEWNS
    must(libc.mount(None, b"/", None, 0x84000, None))  # MS_REC | MS_SLAVE: what the node mounts later is seen, ours is not
    must(libc.mount(apart.encode(), shared.encode(), None, 0x1000, None))  # MS_BIND
except OSError as error:
    apart = ""
    unable.append(f"it has the node's {shared}, as it can have no part of its own: {error}")
with open("new", "w", opener=lambda path, flags: os.open(path, flags, 0o600, dir_fd=folder)) as file:
    json.dump({"pid": os.getpid(), "started": started, "boot": boot, "shared": apart}, file)
    file.flush()
    os.fsync(file.fileno())
os.rename("new", os.path.basename(note), src_dir_fd=folder, dst_dir_fd=folder)
# Not before: whoever waits for the note takes words for the end.
for one in unable:
    print(one, file=sys.stderr, flush=True)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    sys.exit(f"{argv[0]}: {error.strerror}")
"""


class _Noted(NamedTuple):
    pid: int
    handle: int
    """A pidfd."""


class Daemon:
    """Restarts a program while ``run`` does, and leaves it running; ``fault`` says why it does not run.

    ``folder`` has its note and its stderr; ``cgroups`` is the host's hierarchy as seen here, ``shared`` the directory of the host's
    shared memory, of which the program gets its own part if possible.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        clock: Clock,
        on_change: Callable[[], None],
        root: Path = Path("/"),
        cgroups: Path | None = None,
        shared: Path = SHARED_MEMORY,
        backoff: Backoff | None = None,
        steady_s: float = STEADY_S,
    ) -> None:
        self._argv = tuple(argv)
        self._env = dict(env)
        self._folder = folder
        self._root = root
        self._cgroups = root / "sys/fs/cgroup" if cgroups is None else cgroups
        self._shared = shared
        self._clock = clock
        self._on_change = on_change
        self._backoff = backoff or Backoff(1.0, 60.0)
        self._steady_s = steady_s
        self.fault = f"{argv[0]} has not been started yet"
        self.starts = 0
        self.ran = False
        """Whether it ever ran for ``steady_s`` seconds."""

    def shared_memory(self) -> str:
        """The host's directory that the program has as shared memory: its own part, or all."""
        try:
            note = json.loads((self._folder / NOTE).read_bytes())
            return str(note["shared"]) or str(self._shared)
        except (OSError, ValueError, KeyError, TypeError):
            return str(self._shared)  # started by an agent of an earlier version

    async def run(self) -> None:
        """Keep it running until cancelled."""
        while True:
            noted, why = _noted(self._folder), ""
            if noted is not None:
                logger.info("%s continues: process %d of a previous agent", self._argv[0], noted.pid)
                self._well()
            else:
                why = await self._begun()
                noted = _noted(self._folder)
            if noted is not None:
                try:
                    await self._until_ended(noted)
                finally:
                    os.close(noted.handle)
            why = why or f"ended{self._last_line()}"
            self._say(f"{self._argv[0]} {why}; it is started again")
            wait_s = self._backoff.next_s()
            logger.warning("%s %s; again in %.1f s", self._argv[0], why, wait_s)
            await self._clock.sleep(wait_s)

    async def _begun(self) -> str:
        """Start it; returns why it could not be started, empty on success."""
        beginning = asyncio.create_task(self._begin())
        try:
            await asyncio.shield(beginning)
        except (OSError, RuntimeError) as error:
            return cannot_start(error)
        finally:
            # A half-started one would be lost.
            await asyncio.wait([beginning])
        return ""

    async def _begin(self) -> None:
        for left in (NOTE, STDERR):
            (self._folder / left).unlink(missing_ok=True)
        places = (self._folder / NOTE, self._folder / STDERR, self._cgroups, self._root)
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-ISc",
                _START,
                *map(str, places),
                NAME,
                _boot(),
                str(self._shared),
                *self._argv,
            ),
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.starts += 1
        begun = self._clock.monotonic()
        await process.wait()
        # The daemon writes the note a moment later.
        while (
            not (self._folder / NOTE).exists()
            and not self._last_line()
            and self._clock.monotonic() - begun < _START_S
        ):
            await self._clock.sleep(0.02)

    async def _until_ended(self, noted: _Noted) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(noted.handle, over.set)
        try:
            if self.fault:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._steady_s):
                        await over.wait()
                        return
                self._well()
            await over.wait()
        finally:
            loop.remove_reader(noted.handle)
            if over.is_set():
                with suppress(OSError):
                    (self._folder / NOTE).unlink()

    def _well(self) -> None:
        self.ran = True
        self._say("")
        self._backoff.reset()

    def _last_line(self) -> str:
        """Its last line of stderr in parentheses; empty if there is none."""
        try:
            lines = (
                (self._folder / STDERR)
                .read_bytes()[-_MOST_STDERR:]
                .decode(errors="replace")
                .strip()
                .splitlines()
            )
        except OSError:
            return ""
        return f" ({lines[-1].strip()})" if lines else ""

    def _say(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            self._on_change()


def outlives_us() -> bool:
    """Whether a program that this process starts can outlive it."""
    return os.getpid() != 1


def is_running(folder: Path) -> bool:
    """Whether the daemon in the note in ``folder`` runs."""
    noted = _noted(folder)
    if noted is not None:
        os.close(noted.handle)
    return noted is not None


async def end(folder: Path) -> None:
    """Stop the daemon in the note in ``folder``, if it runs; no ``Daemon`` may be running it."""
    noted = _noted(folder)
    if noted is None:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(noted.handle, over.set)
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(noted.handle, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await over.wait()
                    break
        (folder / NOTE).unlink(missing_ok=True)
    finally:
        loop.remove_reader(noted.handle)
        os.close(noted.handle)


def _boot() -> str:
    return _BOOT.read_text().strip()


def _noted(folder: Path) -> _Noted | None:
    """The process in the note, if it still runs."""
    try:
        note = json.loads((folder / NOTE).read_bytes())
        pid, started, boot = int(note["pid"]), int(note["started"]), str(note["boot"])
        if boot != _boot():
            return None
        handle = os.pidfd_open(pid)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with suppress(OSError, ValueError, IndexError):
        # PIDs are reused: checked after the handle was opened.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if int(fields[19]) == started and fields[0] != "Z":
            return _Noted(pid, handle)
    os.close(handle)
    return None
