"""Containers (as folders) on the driver under test, and programs in them and outside.

Every program here has a deadline, within the time limit of the whole run.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.building import HERE, ROOT
from benchmarks.gpu_check.driver import Driver
from benchmarks.gpu_check.running import Clock, Conversation, Ended, Outcome, conversation, run
from benchmarks.isolation.peer import Peer

ISOLATION = ROOT / "build" / "isolation"
#: Runs lines of Python with short names for functions of CUDA's driver; the tests use it too.
TENANT = ROOT / "tests" / "integration" / "isolation" / "tenant.py"
SPIN = HERE / "own_time.ptx"
MIB = 1 << 20
#: Ends with its stdin, so that it does not outlive its parent.
ARBITER = 'exec 2>&1; "$0" --containers "$1" & cat >/dev/null; kill $!'
AWAKE = """
import ctypes, sys
management = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()
if management.nvmlInit_v2() == 0:
    for index in range(64):
        if management.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
            break
print("awake", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of the GPU; no percentage: unlimited compute."""

    memory_mib: int
    percent: int | None = None
    policy: str = "hard"


class Unanswered(Exception):
    """A program did not print its result; the text says how it ended."""


class Lab:
    """The machine, its driver, and the containers of one run."""

    def __init__(
        self, driver: Driver, folder: Path, clock: Clock, libraries: Path, peer: Peer | None = None
    ) -> None:
        self.driver = driver
        self.folder = folder
        self.clock = clock
        #: Our libraries, as containers get them.
        self.libraries = libraries
        #: Another isolation library, measured for comparison.
        self.peer = peer
        self.programs = folder / "programs"
        self.containers = folder / "containers"
        self._links = folder / "driver"
        for made in (self.programs, self.containers, self._links, folder / "cache"):
            made.mkdir()
        (self._links / "libgpushare-driver-cuda.so").symlink_to(driver.cuda)
        (self._links / "libgpushare-driver-nvml.so").symlink_to(driver.management)
        self._made = 0
        #: Of CUDA's first device; set by the machine's section.
        self.uuid = ""
        self.total_mib = 0
        self._context_mib = 0

    # --- containers -----------------------------------------------------------------------------------------------

    def container(self, share: Share) -> Path:
        """The folder of a new container with its limits and its usage file, as the node agent makes it."""
        self._made += 1
        folder = self.containers / f"c{self._made}"
        new = self.folder / f"new{self._made}"
        new.mkdir()
        size = int(subprocess.check_output([ISOLATION / "region-size"], text=True))
        with (new / "usage").open("wb") as usage:
            usage.truncate(size)
        core = f" core_percent={share.percent} core_policy={share.policy}" if share.percent else ""
        (new / "limits").write_text(
            f"gpushare-limits 1.1\ncontainer gpu-check/c{self._made}/main 00000000\n"
            f"gpu {self.uuid} memory_bytes={share.memory_mib * MIB}{core}\n"
        )
        new.rename(folder)
        return folder

    def environment(self, container: Path | None) -> dict[str, str]:
        """The environment of a program in a container; None: without a limit."""
        environment = dict(self.driver.environment) | {
            "CUDA_CACHE_PATH": str(self.folder / "cache"),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        if container is None:
            return environment
        known = environment.get("LD_LIBRARY_PATH", "")
        path = [str(self.libraries), str(self._links), *filter(None, known.split(":"))]
        return environment | {"LD_LIBRARY_PATH": ":".join(path), "GPUSHARE_RUN": str(container)}

    def under_peer(self, share: Share) -> dict[str, str]:
        """The environment to run a program under the other library, with that share."""
        assert self.peer is not None
        self._made += 1
        folder = self.folder / f"peer{self._made}"
        folder.mkdir()
        return self.peer.environment(folder, memory_mib=share.memory_mib, percent=share.percent)

    @contextmanager
    def arbiter(self) -> Iterator[None]:
        """The node's arbiter runs, as started by the node agent."""
        with conversation(
            ["sh", "-c", ARBITER, ISOLATION / "arbiter", self.containers],
            environment=self.environment(None),
            timeout_s=30,
            complaints=self.folder / "arbiter.log",
        ) as arbiter:
            message = arbiter.answer()
            if "at work" not in message:
                raise Unanswered(f"the arbiter: {message}")
            yield

    # --- programs -------------------------------------------------------------------------------------------------

    def run(
        self, container: Path | None, *program: str | Path, timeout_s: float, stdin: str = "", **more: str
    ) -> Outcome:
        """Runs a program to its end."""
        return run(
            program,
            environment=self.environment(container) | more,
            timeout_s=self.clock.at_most_s(timeout_s),
            stdin=stdin,
        )

    def tenant(self, container: Path | None, lines: str, *, timeout_s: float = 60) -> Outcome:
        """Lines of Python with the names of ``tenant.py``."""
        return self.run(container, sys.executable, TENANT, timeout_s=timeout_s, stdin="import json\n" + lines)

    def result(self, container: Path | None, lines: str, *, timeout_s: float = 60) -> Any:
        """The JSON in the last line of the lines' output."""
        outcome = self.tenant(container, lines, timeout_s=timeout_s)
        if not outcome.good or not outcome.out.strip():
            raise Unanswered(outcome.trouble())
        return json.loads(outcome.out.splitlines()[-1])

    @contextmanager
    def program(
        self, container: Path | None, *program: str | Path, timeout_s: float = 60, **more: str
    ) -> Iterator[Conversation]:
        """A program that runs during the block."""
        self._made += 1
        with conversation(
            program,
            environment=self.environment(container) | more,
            timeout_s=self.clock.at_most_s(timeout_s),
            complaints=self.folder / f"complaints{self._made}",
        ) as started:
            yield started

    @contextmanager
    def staying(self, container: Path | None, lines: str, *, timeout_s: float = 60) -> Iterator[Conversation]:
        """As ``tenant``, with stdin available to the lines."""
        whole = f"import json, sys\nsys.path.insert(0, {str(TENANT.parent)!r})\nfrom tenant import *\n{lines}"
        with self.program(container, sys.executable, "-c", whole, timeout_s=timeout_s) as started:
            yield started

    def answers(self, container: Path | None) -> dict[str, Any]:
        """NVML's answers about the GPU, in a container or outside."""
        outcome = self.run(
            container, sys.executable, HERE / "questions.py", *filter(None, [self.uuid]), timeout_s=60
        )
        if not outcome.good:
            raise Unanswered(f"NVML: {outcome.trouble()}")
        answers: dict[str, Any] = json.loads(outcome.out)
        return answers

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The driver keeps its GPUs ready while a process has them open: otherwise each program waits for them."""
        with self.program(None, sys.executable, "-c", AWAKE, timeout_s=120) as started:
            started.answer()
            yield

    # --- sizes ----------------------------------------------------------------------------------------------------

    def context_mib(self) -> int:
        """The charge of one context in a container; measured once."""
        if not self._context_mib:
            room = self.container(Share(max(1024, self.total_mib * 3 // 4)))
            self._context_mib = int(self.result(room, "context()\nprint(used())"))
        return self._context_mib

    def with_a_context(self) -> tuple[int | None, int]:
        """For a program with a context and no limit: NVML's count for its process, if it lists it, and the growth of the
        GPU's used memory. In bytes."""
        before = self.answers(None).get("memory", {}).get("used", 0)
        with self.staying(None, "context()\nprint(os.getpid(), flush=True)\nsys.stdin.read()\n") as program:
            pid = program.answer()
            answers = self.answers(None)
        return (answers.get("processes") or {}).get(pid), answers.get("memory", {}).get("used", 0) - before

    def room_mib(self, beside_context_mib: int, contexts: int = 1) -> int:
        """A limit that leaves that much in addition to the contexts: even, as pages are two MiB."""
        wanted = contexts * self.context_mib() + beside_context_mib
        return wanted + wanted % 2


#: Errors of a program started by a section that are not errors of the section.
TROUBLES = (Ended, Unanswered, json.JSONDecodeError)
