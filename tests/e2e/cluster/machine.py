"""A machine made of namespaces: mounts, network, processes, host name, cgroups. It ends with its process 1."""

import os
import select
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.cluster import cgroups
from tests.e2e.cluster.binaries import INIT
from tests.e2e.cluster.waiting import wait_for
from tests.patience import SLOWNESS

_SCRIPT: Final = Path(__file__).parent / "machine.sh"
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine; its start time (clock ticks) distinguishes it from a later one with the same ID."""

    pid: int
    began: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has the id now. Raises ``ProcessLookupError``."""
        began = _began(pid)
        if began is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, began)

    def alive(self) -> bool:
        """Whether it runs still."""
        return _began(self.pid) == self.began

    def send(self, number: int) -> None:
        """Send the signal; nothing if it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def end(self, number: int = signal.SIGTERM, *, timeout: float = 30.0) -> bool:
        """Send the signal and wait for the end; false when it has not come in ``timeout`` seconds, more on
        a slow machine.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if _began(self.pid, of_dead=True) != self.began:
                return True
            self.send(number)
            # A process whose first thread is dead may have others that still hold its sockets: only the handle shows that.
            return bool(select.select([handle], [], [], timeout * SLOWNESS)[0])
        finally:
            os.close(handle)


def _began(pid: int, *, of_dead: bool = False) -> int | None:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in "ZX" and not of_dead else int(after_name[19])


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is up: ``init`` is its process 1, ``group`` its cgroup below :data:`cgroups.ROOT`."""

    name: str
    folder: Path
    group: str
    binaries: Path
    init: Process

    @classmethod
    def start(cls, name: str, folder: Path, *, group: str, shared: Path, binaries: Path) -> "Machine":
        """Make the machine; returns when it is ready. Raises ``RuntimeError`` with the script's output."""
        folder.mkdir(parents=True)
        groups = cgroups.make(group)
        lines = [f"{h.name or '-'} {h.kind} {h.options or '-'}" for h in cgroups.hierarchies()]
        environment = {
            "PATH": SYSTEM_PATH,
            "NAME": name,
            "FOLDER": str(folder),
            "SHARED": str(shared),
            "BINARIES": str(binaries),
            "INIT": str(binaries / INIT),
            "CGROUPS": "\n".join(lines),
        }
        spaces = "unshare --mount --net --uts --ipc --pid --cgroup --fork"
        with (folder / "machine.log").open("wb") as log:
            parent = subprocess.Popen(
                ["sh", "-c", f"{_join(groups)} exec {spaces} sh {shlex.quote(str(_SCRIPT))}"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert parent.stdout
        with parent.stdout as stdout:
            if stdout.readline() != b"ready\n":
                parent.wait(10)
                problem = (folder / "machine.log").read_text().strip()
                raise RuntimeError(f"machine {name} could not be made (root is needed): {problem}")
        init = wait_for(f"process 1 of {name}", lambda: _child(parent.pid), timeout=10)
        machine = cls(name, folder, group, binaries, Process.of(init))
        # It only waits for process 1, in a cgroup that hands no controllers down while anybody is in it.
        parent.kill()
        parent.wait(10)
        return machine

    def alive(self) -> bool:
        """Whether it is up."""
        return self.init.alive()

    def entering(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs ``argv`` in the machine, in its cgroups, with a login's environment."""
        values = {"PATH": f"{self.binaries}:{SYSTEM_PATH}", "HOME": "/root", **(environment or {})}
        inner = shlex.join(["env", "-i", *(f"{k}={v}" for k, v in values.items()), *argv])
        enter = f"nsenter -t {self.init.pid} -m -n -p -u -i -C -r -w --"
        return ["sh", "-c", f"{_join(self._groups())} exec {enter} {inner}"]

    def run(
        self,
        *argv: str,
        input: bytes | None = None,  # noqa: A002
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine. Raises ``RuntimeError`` with its stderr when ``check`` and it fails."""
        done = subprocess.run(
            self.entering(argv, environment),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            check=False,
            timeout=timeout * SLOWNESS,
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode:
            raise RuntimeError(
                f"{self.name}: {shlex.join(argv)}: exit status {done.returncode}: {err.strip()}"
            )
        return subprocess.CompletedProcess(list(argv), done.returncode, out, err)

    def spawn(self, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Process:
        """Start ``argv`` as a child of process 1, with its output appended to ``log``; ``log`` is seen by both sides.

        Raises ``RuntimeError`` when it has ended at once.
        """
        command = f"setsid {shlex.join(argv)} >>{shlex.quote(str(log))} 2>&1 </dev/null & echo $!"
        inner = int(self.run("sh", "-c", command, environment=environment).stdout)
        try:
            return Process.of(self._outside(inner))
        except ProcessLookupError:
            raise RuntimeError(f"{self.name}: {argv[0]} has ended at once; {log} says why") from None

    def end(self, *, timeout: float = 20.0) -> None:
        """Kill process 1, and so everything in the machine, and remove its cgroups."""
        self.init.end(signal.SIGKILL, timeout=timeout)
        cgroups.remove(self.group, timeout=timeout)

    def _outside(self, inner: int) -> int:
        """The id here of the process with the id ``inner`` in the machine. Raises ``ProcessLookupError``."""
        space = os.readlink(f"/proc/{self.init.pid}/ns/pid")
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if os.readlink(entry / "ns/pid") != space:
                    continue
                status = (entry / "status").read_text()
            except OSError:
                continue
            ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
            if int(ids[-1]) == inner:
                return int(entry.name)
        raise ProcessLookupError(f"{self.name}: no process {inner}")

    def _groups(self) -> list[Path]:
        below = "system" if cgroups.unified() else ""
        return [h.path / cgroups.ROOT / self.group / below for h in cgroups.hierarchies()]


def _join(groups: Sequence[Path]) -> str:
    return " ".join(f"echo $$ >{shlex.quote(str(group / 'cgroup.procs'))} &&" for group in groups)


def _child(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None
