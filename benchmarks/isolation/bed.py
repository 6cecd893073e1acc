"""A machine with one fake GPU, an arbiter, and containers (as folders) for measurements."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.isolation.peer import Peer
from benchmarks.isolation.running import alive, line, send
from gpushare.nodeagent.isolation.storage.files import DELIVERED, LIBRARIES
from gpushare_playground import gpus

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILT = ROOT / "build" / "isolation"
FAKEGPU = ROOT / "build" / "fakegpu"
OWN = ROOT / "build" / "bench-isolation"
TESTS = ROOT / "tests" / "integration" / "isolation"
MIB = 1 << 20


def build() -> None:
    """The fake driver, the libraries and the arbiter, and this folder's programs."""
    for folder, targets in {"fakegpu": (), "isolation": ("all", "linked")}.items():
        lock = ROOT / "build" / folder / "lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            subprocess.run(
                ["make", "--no-print-directory", "--silent", "-C", str(ROOT / folder), *targets], check=True
            )
    OWN.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CC", "gcc"), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
    compiler += ["-Wno-unused-function"]  # client.h has more than each program needs
    for source in sorted(HERE.glob("*.c")):
        program = OWN / source.stem
        subprocess.run(
            [*compiler, f"-I{ROOT / 'fakegpu'}", f"-I{TESTS}", "-o", str(program), str(source), "-ldl"],
            check=True,
        )


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share; no percentage: unlimited compute."""

    percent: int | None = None
    policy: str = "hard"
    memory_mib: int = 2048


@dataclass(frozen=True, slots=True)
class Container:
    """A container's files and its share."""

    folder: Path
    share: Share


class Bed:
    """Use as a context; started programs end with it. Containers are limited by our libraries, or by a peer's."""

    def __init__(
        self, peer: Peer | None = None, *, arbiter: bool = True, context_mib: int | None = None
    ) -> None:
        self._stack = ExitStack()
        self._peer = peer
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-isolation-")))
        node = gpus.preset("v100-16160", "bench")
        if context_mib:
            node = replace(node, gpus=(replace(node.gpus[0], context_mib=context_mib),))
        self.uuid = node.gpus[0].uuid
        gpus.write(self.folder / "node.gpus", node)
        self.containers = self.folder / "containers"
        self.containers.mkdir()
        (self.folder / "state").mkdir()
        # The same number of folders to search as for the bare driver: one.
        self._libraries = self.folder / "libraries"
        self._libraries.mkdir()
        for name, library in {
            **{name: BUILT / "open" / name for name in DELIVERED},
            "libgpushare-driver-cuda.so": FAKEGPU / "libcuda.so.1",
            "libgpushare-driver-nvml.so": FAKEGPU / "libnvidia-ml.so.1",
        }.items():
            shutil.copy(library, self._libraries / name)
        self._region_bytes = int(subprocess.check_output([BUILT / "region-size"], text=True))
        self.arbiter: subprocess.Popen[str] | None = None
        self._meter: subprocess.Popen[str] | None = None
        self._with_arbiter = arbiter and not peer

    def __enter__(self) -> Self:
        if self._with_arbiter:
            self.start_arbiter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _closing(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        def end() -> None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

        self._stack.callback(end)
        return process

    def start_arbiter(self) -> None:
        """The node's arbiter, as the node agent starts it."""
        self.arbiter = self._closing(
            subprocess.Popen(
                [BUILT / "arbiter", "--containers", str(self.containers)],
                text=True,
                stderr=(self.folder / "arbiter.log").open("w"),
            )
        )

    def container(self, name: str, share: Share) -> Container:
        """A container with its limits and its usage file."""
        folder = self.containers / name
        folder.mkdir()
        with (folder / "usage").open("wb") as usage:
            usage.truncate(self._region_bytes)
        core = f" core_percent={share.percent} core_policy={share.policy}" if share.percent else ""
        text = (
            f"gpushare-limits 1.1\ncontainer bench/{name}/main 00000000\n"
            f"gpu {self.uuid} memory_bytes={share.memory_mib * MIB}{core}\n"
        )
        (folder / "limits.new").write_text(text)
        (folder / "limits.new").rename(folder / "limits")
        return Container(folder, share)

    def environment(self, container: Container | None) -> dict[str, str]:
        """The environment of a program in a container; without one: on the bare driver."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FAKEGPU_", "LD_", "GPUSHARE_"))
        }
        more: dict[str, str] = {}
        libraries = [str(FAKEGPU)]
        if container and self._peer:
            share = container.share
            more = self._peer.environment(
                container.folder, memory_mib=share.memory_mib, percent=share.percent
            )
            libraries = [*filter(None, [more.pop("LD_LIBRARY_PATH", "")]), *libraries]
        elif container:
            libraries = [str(self._libraries)]
            more = {"GPUSHARE_RUN": str(container.folder)}
        return inherited | {
            "LD_LIBRARY_PATH": ":".join(libraries),
            "FAKEGPU_NODE": str(self.folder / "node.gpus"),
            "FAKEGPU_STATE": str(self.folder / "state"),
            **more,
        }

    def preloaded(self, container: Container) -> dict[str, str]:
        """The environment of a program in a container whose loader preloads the libraries into every program, as in the node agent's list."""
        ours = " ".join(str(self._libraries / name) for name in LIBRARIES)
        return {"LD_PRELOAD": ours} | self.environment(container)

    def start(
        self,
        container: Container | None,
        command: Sequence[str | Path],
        more: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """A program that is controlled by lines; it may still be starting."""
        # Errors are shown only for our libraries.
        quiet = subprocess.DEVNULL if container and self._peer else None
        return self._closing(
            subprocess.Popen(
                command,
                env=self.environment(container) | dict(more or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=quiet,
                text=True,
            )
        )

    def load(self, container: Container | None, work: Sequence[str]) -> subprocess.Popen[str]:
        """A load that is ready and waits for ``send(it, "go")``."""
        process = self.start(container, [OWN / "gpu_load", *work])
        while line(process) != "ready":
            pass
        return process

    def wait(self, seconds: float) -> None:
        """Let the loads run."""
        time.sleep(seconds)

    def meter(self) -> tuple[int, dict[int, tuple[int, int]]]:
        """The time, and for every process by the driver's accounts: its GPU time so far (ns), and its memory (bytes)."""
        if self._meter is None:
            self._meter = self.start(None, [OWN / "gpu_meter", self.folder / "state" / self.uuid])
        send(self._meter, "")
        moment, *words = line(self._meter).split()
        of_each = {}
        for word in words:
            pid, busy_ns, held_bytes = map(int, word.split(":"))
            of_each[pid] = (busy_ns, held_bytes)
        return int(moment), of_each

    def shares(self, processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[float]:
        """Percent of the GPU's time of each process in the next ``seconds``."""
        nothing = (0, 0)
        begin_ns, before = self.meter()
        self.wait(seconds)
        alive(processes)
        end_ns, after = self.meter()
        return [
            100
            * (after.get(process.pid, nothing)[0] - before.get(process.pid, nothing)[0])
            / (end_ns - begin_ns)
            for process in processes
        ]
