"""What processes see of each other on one GPU: memory held, processes listed, and no remains of dead ones."""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpushare_playground import gpus
from tests.building import ROOT
from tests.unit.fakegpu.building import LIBRARY, build
from tests.unit.fakegpu.cuda_process import MIB, OUT, CudaProcess, Out, Processes, Whole

SPIN = ROOT / "fakegpu" / "examples" / "spin.ptx"
TOTAL = 16160 * MIB
CONTEXT = 64 * MIB
LIMITED = replace(
    gpus.preset("v100-16160", "n1"), gpus=(replace(gpus.preset("v100-16160", "n1").gpus[0], context_mib=64),)
)


@pytest.fixture
def node(described: Callable[..., None], tmp_path: Path) -> Path:
    described(LIMITED)
    return tmp_path / "node.gpus"


@pytest.fixture
def processes(node: Path) -> Iterator[Processes]:
    with Processes(node).closing() as started:
        yield started


def used() -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def listed() -> dict[int, int]:
    """Bytes by pid, as reported by NVML."""
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    return {process.pid: process.usedGpuMemory for process in found}


def test_every_process_sees_all_held_memory_and_nvml_lists_the_holders(processes: Processes) -> None:
    assert (used(), listed()) == (0, {})
    first, second = processes.opened(), processes.opened()
    assert listed() == {first.pid: CONTEXT, second.pid: CONTEXT}
    first.good("cuMemAlloc_v2", OUT, 1000 * MIB)
    second.good("cuMemCreate", OUT, 500 * MIB, b"\1\0\0\0\0\0\0\0\1" + bytes(23), 0)
    assert first.free_bytes() == second.free_bytes() == TOTAL - 1500 * MIB - 2 * CONTEXT
    assert listed() == {first.pid: 1000 * MIB + CONTEXT, second.pid: 500 * MIB + CONTEXT}
    assert used() == 1500 * MIB + 2 * CONTEXT
    assert second.cu("cuMemAlloc_v2", OUT, 15000 * MIB)[0] == "OUT_OF_MEMORY"
    first.close()
    assert listed() == {second.pid: 500 * MIB + CONTEXT}
    second.good("cuMemAlloc_v2", OUT, 15000 * MIB)


def test_memory_of_described_processes_is_not_available(
    processes: Processes, described: Callable[..., None]
) -> None:
    described(replace(LIMITED, gpus=(replace(LIMITED.gpus[0], processes=(gpus.Process(7, 10000),)),)))
    cuda = processes.opened()
    assert cuda.free_bytes() == TOTAL - 10000 * MIB - CONTEXT
    assert listed() == {7: 10000 * MIB, cuda.pid: CONTEXT}
    assert used() == 10000 * MIB + CONTEXT
    assert cuda.cu("cuMemAlloc_v2", OUT, 6100 * MIB)[0] == "OUT_OF_MEMORY"


def test_a_killed_process_holds_no_memory(processes: Processes) -> None:
    survivor, victim = processes.opened(), processes.opened()
    address = victim.good("cuMemAlloc_v2", OUT, 15000 * MIB)
    victim.good("cuIpcGetMemHandle", Out(64), victim.good("cuMemAlloc_v2", OUT, 100))
    assert address
    victim.kill()
    assert listed() == {survivor.pid: CONTEXT}
    assert used() == CONTEXT
    survivor.good("cuMemAlloc_v2", OUT, 15000 * MIB)
    left = [path.name for path in processes.node.with_name("node.gpus.state").iterdir()]
    assert not [name for name in left if ".ipc-" in name]


def test_a_shared_event_completes_for_other_processes_once_it_is_recorded(
    processes: Processes,
) -> None:
    owner, other = processes.opened(), processes.opened()
    event = owner.good("cuEventCreate", OUT, 6)
    shared = other.good("cuIpcOpenEventHandle", OUT, Whole(owner.good("cuIpcGetEventHandle", Out(64), event)))
    memory = owner.good("cuMemAlloc_v2", OUT, 1000 * MIB)
    owner.good("cuMemsetD8Async", memory, 1, 1000 * MIB, None)
    owner.good("cuEventRecord", event, None)
    assert owner.cu("cuStreamQuery", None) == "SUCCESS"
    assert other.cu("cuEventQuery", shared) == "SUCCESS"
    other.good("cuStreamWaitEvent", None, shared, 0)
    other.good("cuCtxSynchronize")


def test_a_stopped_process_keeps_its_memory_and_does_not_block_others(processes: Processes) -> None:
    stopped, other = processes.opened(), processes.opened()
    stopped.good("cuMemAlloc_v2", OUT, 1000 * MIB)
    os.kill(stopped.pid, 19)
    try:
        room = other.free_bytes()
        assert room == TOTAL - 1000 * MIB - 2 * CONTEXT
        assert other.cu("cuMemAlloc_v2", OUT, room + 1)[0] == "OUT_OF_MEMORY"
        other.good("cuMemAlloc_v2", OUT, room)
    finally:
        os.kill(stopped.pid, 18)


def test_processes_that_race_for_memory_never_exceed_the_limit(
    processes: Processes,
) -> None:
    """Fifteen pieces fit, sixteen are requested in each round."""
    racers = [processes.opened() for _ in range(8)]
    held: dict[CudaProcess, list[int]] = {racer: [] for racer in racers}
    for _ in range(40):
        for racer in racers * 2:
            racer.send("cuMemAlloc_v2", OUT, 1000 * MIB)
        for racer in racers * 2:
            code, address = racer.answer()
            assert code in ("SUCCESS", "OUT_OF_MEMORY")
            if code == "SUCCESS":
                held[racer].append(address)
        # Nothing was freed meanwhile: all that was left is taken.
        assert sum(map(len, held.values())) == 15
        assert used() == 15000 * MIB + 8 * CONTEXT
        for racer in random.Random(1).sample(racers, 4):
            while held[racer]:
                racer.good("cuMemFree_v2", held[racer].pop())


CHURN = """
import ctypes, random, sys
cuda = ctypes.CDLL(sys.argv[1])
dice = random.Random(int(sys.argv[2]))
size, zero, out = ctypes.c_size_t, ctypes.c_ulonglong(0), ctypes.c_ulonglong()
context, ipc = ctypes.c_void_p(), ctypes.create_string_buffer(64)
on_gpu_0 = (ctypes.c_int * 8)(1, 0, 1, 0)
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) in (0, 2)
kinds = [
    (lambda count: cuda.cuMemAlloc_v2(ctypes.byref(out), size(count)), cuda.cuMemFree_v2),
    (lambda count: cuda.cuMemAllocAsync(ctypes.byref(out), size(count), None), lambda it: cuda.cuMemFreeAsync(it, None)),
    (lambda count: cuda.cuMemCreate(ctypes.byref(out), size(-(-count // 2097152) * 2097152), on_gpu_0, zero),
     cuda.cuMemRelease),
]
print("ready", flush=True)
held = []
while True:
    take, give_back = dice.choice(kinds)
    if len(held) < 8 and take(dice.choice([100, 1 << 20, 50 << 20, 3000 << 20])) == 0:
        held.append((give_back, out.value))
        if give_back is cuda.cuMemFree_v2 and not dice.randrange(4):
            cuda.cuIpcGetMemHandle(ipc, out)
    elif held:
        give_back, it = held.pop(dice.randrange(len(held)))
        assert give_back(ctypes.c_ulonglong(it)) == 0
"""


def test_no_memory_is_held_after_processes_were_killed_at_random_moments(
    node: Path, processes: Processes
) -> None:
    dice = random.Random(7)
    environment = {**os.environ, "FAKEGPU_NODE": str(node)}

    def churn(seed: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", CHURN, str(LIBRARY.with_name("libcuda.so.1")), str(seed)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)

    running = [churn(seed) for seed in range(6)]
    try:
        for seed in range(6, 22):
            victim = dice.choice(running)
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"ready\n"
            for _ in range(dice.randrange(2000)):
                used()  # how long that takes is the random moment
            assert used() <= TOTAL
            assert victim.poll() is None
            victim.kill()
            victim.communicate(timeout=30)
            running.remove(victim)
            running.append(churn(seed))
    finally:
        for process in running:
            process.kill()
            process.communicate(timeout=30)
    assert (used(), listed()) == (0, {})
    cuda = processes.opened()
    assert cuda.free_bytes() == TOTAL - CONTEXT
    cuda.good("cuMemAlloc_v2", OUT, TOTAL - CONTEXT)
    left = processes.node.with_name("node.gpus.state").iterdir()
    assert sorted(path.suffix for path in left) == ["", ".lock"]


def test_both_libraries_in_one_process_report_the_same_memory(node: Path) -> None:
    """The process queries NVML about itself, opens and closes it, and reads a state with dead slots."""
    build("programs")
    code = f"""
import ctypes, os
cuda, nvml = ctypes.CDLL({str(LIBRARY.with_name("libcuda.so.1"))!r}), ctypes.CDLL({str(LIBRARY)!r})
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and nvml.nvmlInit_v2() == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
memory, device = (ctypes.c_ulonglong * 3)(), ctypes.c_void_p()
for _ in range(3):
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    print(memory[2] >> 20)
    nvml.nvmlShutdown()
    nvml.nvmlInit_v2()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(total.value - free.value >> 20)
"""
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FAKEGPU_NODE": str(node)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert completed.stdout.split() == ["64"] * 6


def test_a_forked_child_has_no_driver_and_takes_nothing_from_its_parent(processes: Processes) -> None:
    cuda = processes.opened()
    address = cuda.good("cuMemAlloc_v2", OUT, 100 * MIB)
    assert cuda.ask("fork", "cuInit", 0) == "NOT_INITIALIZED"
    assert cuda.ask("fork", "cuMemFree_v2", address) == "NOT_INITIALIZED"
    assert cuda.ask("fork", "cuCtxSynchronize") == "NOT_INITIALIZED"
    assert listed() == {cuda.pid: 100 * MIB + CONTEXT}
    cuda.good("cuMemFree_v2", address)


def test_a_process_forked_before_the_driver_was_opened_opens_it(processes: Processes) -> None:
    cuda = processes.start()
    assert cuda.ask("fork", "cuInit", 0) == "SUCCESS"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
def test_users_of_the_machine_share_gpus_in_any_order() -> None:
    build("programs")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node, state = Path(folder, "node.gpus"), Path(folder, "state")
        gpus.write(node, gpus.preset("core-mem-4", "n1"))
        node.chmod(0o644)
        state.mkdir(mode=0o1777)
        state.chmod(0o1777)
        with Processes(node).closing() as processes:
            users = {user: processes.start(FAKEGPU_STATE=str(state)) for user in (1001, 1002, 1003)}
            for user, process in users.items():
                process.ask("become", user)
                process.good("cuInit", 0)
            for device, order in ((0, (1001, 1002, 1003)), (1, (1002, 1003, 1001))):
                for user in order:
                    users[user].good("cuCtxCreate_v2", OUT, 0, device)
                assert users[1001].free_bytes() == TOTAL - 3 * 256 * MIB


def fill_and_watch(processes: Processes) -> Iterator[tuple[CudaProcess, list[tuple[int, int]]]]:
    """Keeps a GPU busy and repeatedly yields its processes as reported by NVML: pid and percent."""
    cuda = processes.opened()
    module = cuda.good("cuModuleLoad", OUT, str(SPIN).encode() + b"\0")
    spin = cuda.good("cuModuleGetFunction", OUT, module, b"spin\0")
    length = cuda.good("cuMemAllocHost_v2", OUT, 16)
    cuda.ask("write", length, (50_000_000).to_bytes(8, "little") + length.to_bytes(8, "little"))
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    while True:
        cuda.good("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, 0, length + 8, 0)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)
        except pynvml.NVMLError_NotFound:
            samples = []
        yield cuda, [(sample.pid, sample.smUtil) for sample in samples]


def test_nvml_reports_whose_work_keeps_the_gpu_busy(processes: Processes) -> None:
    idle = processes.opened()
    assert idle.pid
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0
    for cuda, samples in fill_and_watch(processes):
        assert [pid for pid, _ in samples] in ([], [cuda.pid])
        if samples and samples[0][1] > 50 and pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu > 50:
            break


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for another pid namespace")
def test_processes_of_a_pid_namespace_appear_by_host_pid_and_not_the_other_way_round(
    node: Path, processes: Processes
) -> None:
    outside = processes.opened()
    code = f"""
import ctypes, os, sys
cuda, nvml = ctypes.CDLL({str(LIBRARY.with_name("libcuda.so.1"))!r}), ctypes.CDLL({str(LIBRARY)!r})
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
count, device, infos = ctypes.c_uint(10), ctypes.c_void_p(), (ctypes.c_ulonglong * 30)()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), infos) == 0
print([infos[3 * i] & 0xffffffff for i in range(count.value)] == [os.getpid()], flush=True)
sys.stdin.read()
"""
    inside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code],
        env={**os.environ, "FAKEGPU_NODE": str(node)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert inside.stdout is not None
    line = inside.stdout.readline()
    if not line:
        inside.communicate(timeout=30)
        pytest.skip("no other pid namespace can be made here")
    assert line == "True\n"
    others = listed().keys() - {outside.pid}
    assert len(others) == 1
    host_pid = others.pop()
    assert Path(f"/proc/{host_pid}/cmdline").read_bytes().startswith(sys.executable.encode())
    assert host_pid != inside.pid
    inside.communicate("", timeout=30)


def test_a_state_of_another_version_is_refused_with_advice(
    node: Path, processes: Processes, capfd: pytest.CaptureFixture[str]
) -> None:
    cuda = processes.opened()
    assert cuda.free_bytes()
    cuda.close()
    state = next(path for path in node.with_name("node.gpus.state").iterdir() if path.suffix != ".lock")
    content = bytearray(state.read_bytes())
    content[4:8] = (99).to_bytes(4, "little")
    state.write_bytes(content)
    late = processes.start()
    late.good("cuInit", 0)
    assert late.cu("cuCtxCreate_v2", OUT, 0, 0)[0] == 304
    assert f"{state}: is of version 99, not 3; end its users and remove it" in capfd.readouterr().err


def test_an_unwritable_state_is_refused_with_advice(
    node: Path, processes: Processes, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = node.parent / "missing" / "state"
    late = processes.start(FAKEGPU_STATE=str(missing))
    late.good("cuInit", 0)
    assert late.cu("cuCtxCreate_v2", OUT, 0, 0)[0] == 304
    error = capfd.readouterr().err
    assert str(missing) in error
    assert "let every user write there, or set FAKEGPU_STATE to another directory" in error


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_is_reported_without_a_crash(
    node: Path, processes: Processes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", full], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        late = processes.start(FAKEGPU_STATE=str(full))
        late.good("cuInit", 0)
        assert late.cu("cuCtxCreate_v2", OUT, 0, 0)[0] == 304
        late.close()
        assert "No space left on device; make room" in capfd.readouterr().err
    finally:
        subprocess.run(["umount", full], check=True)
