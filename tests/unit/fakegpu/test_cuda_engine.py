"""Time on the fake GPU, by its own clock, so that nothing here depends on how busy the machine is."""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.building import ROOT, SANITIZERS
from tests.unit.fakegpu.building import BUILT, build
from tests.unit.fakegpu.cuda_process import OUT, Processes

SPIN = ROOT / "fakegpu" / "examples" / "spin.ptx"
MS = 1_000_000
US = 1000


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    build("programs")
    node = tmp_path / "node.gpus"
    described = gpus.preset("v100-16160", "n1")
    # 64 processes have room.
    gpus.write(node, replace(described, gpus=(replace(described.gpus[0], context_mib=64),)))
    with Processes(node).closing() as started:
        yield started


def load(node: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    program = [str(BUILT / "engine_load"), str(SPIN), *arguments]
    return subprocess.Popen(program, env={**os.environ, "FAKEGPU_NODE": str(node)}, stdout=subprocess.DEVNULL)


def busy_ns(node: Path) -> tuple[int, dict[int, int]]:
    """Busy time of the GPU since its state was created, and of each living process."""
    uuid = gpus.preset("v100-16160", "n1").gpus[0].uuid
    ran = subprocess.run(
        [BUILT / "engine_state", f"{node}.state", uuid],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    whole, *each = [line.split() for line in ran.stdout.splitlines()]
    return int(whole[1]), {int(pid): int(time) for _, pid, time in each}


class Gpu:
    """A process with a context and the spinning kernel."""

    def __init__(self, processes: Processes) -> None:
        self._node = processes.node
        self.process = process = processes.opened()
        module = process.good("cuModuleLoad", OUT, str(SPIN).encode() + b"\0")
        self.spin = process.good("cuModuleGetFunction", OUT, module, b"spin\0")
        self.stream = process.good("cuStreamCreate", OUT, 1)
        # The value of the kernel's parameter, and the list with its address.
        self._parameter = process.good("cuMemAllocHost_v2", OUT, 16)

    def launch(self, nanoseconds: int, stream: int | None = None) -> None:
        self.process.ask("write", self._parameter, struct.pack("QQ", self._parameter + 8, nanoseconds))
        self.process.good(
            "cuLaunchKernel", self.spin, 1, 1, 1, 1, 1, 1, 0, stream or self.stream, self._parameter, None
        )

    def event(self) -> int:
        event = int(self.process.good("cuEventCreate", OUT, 0))
        self.process.good("cuEventRecord", event, self.stream)
        return event

    def elapsed_ns(self, start: int, end: int) -> float:
        self.process.good("cuEventSynchronize", end)
        written = self.process.good("cuEventElapsedTime", OUT, start, end)
        return ctypes.c_float.from_buffer_copy(written.to_bytes(8, "little")[:4]).value * MS

    def timed(self, nanoseconds: int, count: int = 1) -> float:
        """Time on the GPU's own clock of kernels of that length, launched together."""
        cuda = self.process
        start, end = self.event(), self.event()
        cuda.good("cuStreamBeginCapture_v2", self.stream, 0)
        cuda.good("cuEventRecordWithFlags", start, self.stream, 1)
        for _ in range(count):
            self.launch(nanoseconds)
        cuda.good("cuEventRecordWithFlags", end, self.stream, 1)
        graph = cuda.good("cuStreamEndCapture", self.stream, OUT)
        cuda.good("cuGraphLaunch", cuda.good("cuGraphInstantiateWithFlags", OUT, graph, 0), self.stream)
        return self.elapsed_ns(start, end)

    def begin_work(self) -> None:
        """Returns once a very long kernel of this process has begun."""
        self.launch(3600 * 1000 * MS)
        while not self.busy_ns():
            pass

    def busy_ns(self) -> int:
        return busy_ns(self._node)[1][self.process.pid]


def test_busy_time_is_exact_to_the_nanosecond(processes: Processes) -> None:
    for arguments in (["count:50000:400", "1"], ["count:1500000:7", "1", "3"]):
        assert load(processes.node, *arguments).wait(60) == 0
    assert busy_ns(processes.node)[0] == 400 * 50 * US + 7 * 1500 * US


def test_kernels_of_one_graph_take_as_long_as_their_sum(processes: Processes) -> None:
    gpu = Gpu(processes)
    assert gpu.timed(50 * US, 100) == pytest.approx(100 * 50 * US, rel=1e-5)


def test_two_busy_processes_share_the_gpu_in_slices(processes: Processes) -> None:
    one, other = Gpu(processes), Gpu(processes)
    one.begin_work()
    # A busy machine wakes either process too late for some of its slices, which the other then gets: the best try counts.
    tries_ns = (other.timed(100 * MS) for _ in range(30))
    best_ns = next((took_ns for took_ns in tries_ns if took_ns == pytest.approx(200 * MS, rel=0.1)), None)
    assert one.process.cu("cuStreamQuery", one.stream) == "NOT_READY"
    assert best_ns is not None


def test_a_short_kernel_does_not_wait_for_a_long_one_of_another_process(processes: Processes) -> None:
    one, other = Gpu(processes), Gpu(processes)
    one.begin_work()
    assert min(other.timed(100 * US) for _ in range(30)) < 20 * MS


def test_a_killed_process_does_not_block_others(processes: Processes) -> None:
    one, other = Gpu(processes), Gpu(processes)
    one.begin_work()
    one.process.kill()
    assert min(other.timed(50 * MS) for _ in range(10)) == pytest.approx(50 * MS, rel=1e-5)


def test_a_stopped_process_is_skipped(processes: Processes) -> None:
    one, other = Gpu(processes), Gpu(processes)
    one.begin_work()
    os.kill(one.process.pid, signal.SIGSTOP)
    took_ns = [other.timed(50 * MS) for _ in range(10)]
    os.kill(one.process.pid, signal.SIGCONT)
    assert min(took_ns) == pytest.approx(50 * MS, rel=1e-5)
    before = one.busy_ns()
    while one.busy_ns() == before:
        pass


def test_a_process_without_work_is_never_woken(processes: Processes) -> None:
    idle, busy = Gpu(processes), Gpu(processes)
    idle.timed(100 * US)

    def switches() -> list[int]:
        tasks = Path(f"/proc/{idle.process.pid}/task")
        texts = [
            (task / "status").read_text() for task in tasks.iterdir() if int(task.name) != idle.process.pid
        ]
        return sorted(int(line.split()[1]) for text in texts for line in text.splitlines() if "ctxt" in line)

    busy.timed(50 * MS)
    before = switches()
    busy.timed(100 * MS)
    assert switches() == before


def test_sixty_four_simultaneous_processes_complete_their_work(processes: Processes) -> None:
    started = [load(processes.node, "count:50000:20", "1") for _ in range(64)]
    assert [process.wait(120) for process in started] == [0] * 64
    assert busy_ns(processes.node)[0] == 64 * 20 * 50 * US


@pytest.mark.timeout(600)  # it may have to build everything first
@pytest.mark.parametrize("sanitizer", ["", *SANITIZERS])
def test_every_call_about_work(sanitizer: str, processes: Processes) -> None:
    folder = build("sanitize" if sanitizer else "programs") / sanitizer
    program = [str(folder / "engine_calls"), str(SPIN), "2", "4"]
    if sanitizer and shutil.which("setarch"):
        program = ["setarch", "--addr-no-randomize", *program]
    completed = subprocess.run(
        program,
        env={**os.environ, "FAKEGPU_NODE": str(processes.node)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (completed.returncode, completed.stdout) == (0, "ok\n"), completed.stderr
