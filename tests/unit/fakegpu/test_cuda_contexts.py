"""Opening the driver, devices, contexts and which of them is current."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.building import BUILT, SYSTEM, build, environment
from tests.unit.fakegpu.cuda_process import MIB, OUT, CudaProcess, Out, Processes, pack

NODE = gpus.preset("core-mem-4", "n1")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    build("programs")
    node = tmp_path / "node.gpus"
    gpus.write(node, NODE)
    with Processes(node).closing() as started:
        yield started


@pytest.fixture
def cuda(processes: Processes) -> CudaProcess:
    process = processes.start()
    process.good("cuInit", 0)
    return process


def test_only_versions_and_errors_can_be_queried_before_the_driver_is_opened(processes: Processes) -> None:
    cuda = processes.start()
    assert cuda.cu("cuDeviceGetCount", OUT)[0] == "NOT_INITIALIZED"
    assert cuda.cu("cuMemAlloc_v2", OUT, 1)[0] == "NOT_INITIALIZED"
    assert cuda.cu("cuCtxGetCurrent", OUT)[0] == "NOT_INITIALIZED"
    assert cuda.good("cuDriverGetVersion", Out(4)) == pack("i", 13000)
    assert cuda.cu("cuInit", 1) == "INVALID_VALUE"
    assert cuda.cu("cuInit", 0) == "SUCCESS"
    assert cuda.cu("cuInit", 0) == "SUCCESS"
    assert cuda.cu("cuMemAlloc_v2", OUT, 1)[0] == "INVALID_CONTEXT"


def test_errors_have_names_and_texts(processes: Processes) -> None:
    cuda = processes.start()
    name = cuda.good("cuGetErrorName", 2, OUT)
    assert cuda.ask("read", name, 25) == b"CUDA_ERROR_OUT_OF_MEMORY\0"
    assert cuda.ask("read", cuda.good("cuGetErrorString", 2, OUT), 14) == b"out of memory\0"
    assert cuda.cu("cuGetErrorName", 12345, OUT) == ("INVALID_VALUE", 0)


@pytest.mark.parametrize(
    ("visible", "seen"), [("all", [0, 1, 2, 3]), ("2,0", [0, 2]), (NODE.gpus[3].uuid, [3])]
)
def test_visible_devices_appear_in_the_nodes_order(
    processes: Processes, visible: str, seen: list[int]
) -> None:
    cuda = processes.start(FAKEGPU_VISIBLE_DEVICES=visible)
    cuda.good("cuInit", 0)
    count = int.from_bytes(cuda.good("cuDeviceGetCount", Out(4)), "little")
    uuids = ["GPU-" + cuda.good("cuDeviceGetUuid_v2", Out(16), each).hex() for each in range(count)]
    assert uuids == [NODE.gpus[each].uuid.replace("-", "").replace("GPU", "GPU-") for each in seen]
    assert cuda.cu("cuDeviceGet", Out(4), count)[0] == "INVALID_DEVICE"
    assert cuda.cu("cuDeviceTotalMem_v2", OUT, count)[0] == "INVALID_DEVICE"


@pytest.mark.parametrize(
    ("node", "visible", "error"),
    [
        (replace(NODE, fault="driver-not-loaded"), "all", "NO_DEVICE"),
        (replace(NODE, fault="version-mismatch"), "all", "SYSTEM_DRIVER_MISMATCH"),
        (NODE, "none", "NO_DEVICE"),
        (replace(NODE, gpus=tuple(replace(gpu, fault="lost") for gpu in NODE.gpus)), "all", "NO_DEVICE"),
    ],
)
def test_a_node_without_a_driver_or_a_gpu_is_not_opened(
    processes: Processes, node: gpus.GpuNode, visible: str, error: str
) -> None:
    gpus.write(processes.node, node)
    cuda = processes.start(FAKEGPU_VISIBLE_DEVICES=visible)
    assert cuda.cu("cuInit", 0) == error
    gpus.write(processes.node, NODE)
    assert processes.start().cu("cuInit", 0) == "SUCCESS"


def test_contexts_are_a_stack(cuda: CudaProcess) -> None:
    first = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    second = cuda.good("cuCtxCreate_v4", OUT, None, 4, 1)
    assert cuda.good("cuCtxGetCurrent", OUT) == second
    assert cuda.good("cuCtxGetDevice", Out(4)) == pack("i", 1)
    assert cuda.good("cuCtxGetFlags", Out(4)) == pack("I", 4)
    assert cuda.good("cuCtxPopCurrent_v2", OUT) == second
    assert cuda.good("cuCtxGetCurrent", OUT) == first
    cuda.good("cuCtxPushCurrent_v2", second)
    cuda.good("cuCtxSetCurrent", 0)
    assert cuda.good("cuCtxGetCurrent", OUT) == first
    cuda.good("cuCtxPopCurrent_v2", OUT)
    assert cuda.cu("cuCtxPopCurrent_v2", OUT)[0] == "INVALID_CONTEXT"
    assert cuda.good("cuCtxGetCurrent", OUT) == 0
    cuda.good("cuCtxSetCurrent", second)
    assert cuda.good("cuCtxGetDevice", Out(4)) == pack("i", 1)
    assert cuda.good("cuCtxGetApiVersion", first, Out(4)) == pack("I", 3020)
    assert cuda.good("cuCtxGetId", first, OUT) != cuda.good("cuCtxGetId", second, OUT)


def test_a_context_that_was_attached_to_ends_with_its_last_user(cuda: CudaProcess) -> None:
    context = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    assert cuda.good("cuCtxAttach", OUT, 0) == context
    cuda.good("cuCtxDetach", context)
    cuda.good("cuCtxGetApiVersion", context, Out(4))
    cuda.good("cuCtxDetach", context)
    assert cuda.cu("cuCtxDetach", context) == "INVALID_CONTEXT"
    primary = cuda.good("cuDevicePrimaryCtxRetain", OUT, 0)
    assert cuda.cu("cuCtxDetach", primary) == "INVALID_CONTEXT"


def test_events_end_with_their_context(cuda: CudaProcess) -> None:
    other = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    kept = cuda.good("cuEventCreate", OUT, 0)
    context = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    events = [cuda.good("cuEventCreate", OUT, 0) for _ in range(3)]
    cuda.good("cuEventDestroy_v2", events[1])
    cuda.good("cuCtxDestroy_v2", context)
    cuda.good("cuCtxSetCurrent", other)
    assert {cuda.cu("cuEventQuery", event) for event in events} == {"INVALID_HANDLE"}
    cuda.good("cuEventQuery", kept)


def test_a_destroyed_context_is_an_error_for_every_thread_that_still_has_it(cuda: CudaProcess) -> None:
    below = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    cuda.good("cuCtxCreate_v2", OUT, 0, 1)
    cuda.good("cuCtxDestroy_v2", below)
    assert cuda.cu("cuCtxDestroy_v2", below) == "INVALID_CONTEXT"
    assert cuda.cu("cuCtxPushCurrent_v2", below) == "INVALID_CONTEXT"
    cuda.good("cuCtxPopCurrent_v2", OUT)
    assert cuda.cu("cuMemAlloc_v2", OUT, 1)[0] == "CONTEXT_IS_DESTROYED"
    assert cuda.cu("cuCtxSynchronize") == "CONTEXT_IS_DESTROYED"


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("cuCtxCreate_v2", (0x1000, 0), "INVALID_VALUE"),
        ("cuCtxCreate_v2", (7, 0), "INVALID_VALUE"),
        ("cuCtxCreate_v2", (0, 4), "INVALID_DEVICE"),
        ("cuCtxCreate_v3", (pack("iI", 0, 10), 1, 0, 0), 224),
    ],
)
def test_contexts_that_cannot_be_created_are_refused(
    cuda: CudaProcess, name: str, arguments: tuple[int, ...], error: str
) -> None:
    assert cuda.cu(name, OUT, *arguments)[0] == error
    assert cuda.good("cuCtxGetCurrent", OUT) == 0


def test_the_primary_context_lives_while_it_has_users_or_until_it_is_reset(cuda: CudaProcess) -> None:
    def state() -> tuple[int, int]:
        flags, active = cuda.good("cuDevicePrimaryCtxGetState", 1, Out(4), Out(4))
        return int.from_bytes(flags, "little"), int.from_bytes(active, "little")

    assert state() == (0, 0)
    cuda.good("cuDevicePrimaryCtxSetFlags_v2", 1, 1)
    first = cuda.good("cuDevicePrimaryCtxRetain", OUT, 1)
    assert cuda.good("cuDevicePrimaryCtxRetain", OUT, 1) == first
    assert state() == (1, 1)
    assert cuda.good("cuCtxGetCurrent", OUT) == 0
    assert cuda.cu("cuCtxDestroy_v2", first) == "INVALID_CONTEXT"
    cuda.good("cuDevicePrimaryCtxRelease_v2", 1)
    assert state() == (1, 1)
    cuda.good("cuDevicePrimaryCtxRelease_v2", 1)
    assert state() == (1, 0)
    assert cuda.cu("cuDevicePrimaryCtxRelease_v2", 1) == "INVALID_CONTEXT"
    again = cuda.good("cuDevicePrimaryCtxRetain", OUT, 1)
    cuda.good("cuDevicePrimaryCtxRetain", OUT, 1)
    cuda.good("cuCtxSetCurrent", again)
    cuda.good("cuDevicePrimaryCtxReset_v2", 1)
    assert state() == (1, 0)
    assert cuda.cu("cuMemGetInfo_v2", OUT, OUT)[0] == "CONTEXT_IS_DESTROYED"


def test_limits_can_be_set_and_read(cuda: CudaProcess) -> None:
    cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    assert cuda.good("cuCtxGetLimit", OUT, 2) == 8 * MIB
    cuda.good("cuCtxSetLimit", 2, 32 * MIB)
    assert cuda.good("cuCtxGetLimit", OUT, 2) == 32 * MIB
    assert cuda.cu("cuCtxGetLimit", OUT, 99)[0] == 215


def test_a_context_takes_the_described_memory(processes: Processes) -> None:
    gpus.write(processes.node, replace(NODE, gpus=tuple(replace(gpu, context_mib=100) for gpu in NODE.gpus)))
    cuda = processes.opened()
    total = cuda.good("cuDeviceTotalMem_v2", OUT, 0)
    assert total - cuda.free_bytes() == 100 * MIB


def test_total_memory_excludes_what_the_driver_reserves(processes: Processes) -> None:
    gpus.write(processes.node, gpus.preset("v100-16384", "n1"))
    cuda = processes.opened()
    assert cuda.good("cuDeviceTotalMem_v2", OUT, 0) == 16160 * MIB
    assert cuda.good("cuMemGetInfo_v2", OUT, OUT) == ((16160 - 256) * MIB, 16160 * MIB)


def test_a_device_is_found_by_its_place_on_the_bus(cuda: CudaProcess) -> None:
    assert cuda.good("cuDeviceGetPCIBusId", Out(13), 13, 2) == b"0000:3d:00.0\0"
    for name in (b"0000:3d:00.0\0", b"3D:00.0\0", b"0000:3d:00\0"):
        assert cuda.good("cuDeviceGetByPCIBusId", Out(4), name) == pack("i", 2)
    assert cuda.cu("cuDeviceGetByPCIBusId", Out(4), b"0000:ff:00.0\0")[0] == "INVALID_DEVICE"
    assert cuda.cu("cuDeviceGetPCIBusId", Out(13), 12, 2)[0] == "INVALID_VALUE"


def test_peers_are_opened_once(cuda: CudaProcess) -> None:
    here = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    there = cuda.good("cuCtxCreate_v2", OUT, 0, 1)
    assert cuda.good("cuDeviceCanAccessPeer", Out(4), 0, 1) == pack("i", 1)
    assert cuda.good("cuDeviceCanAccessPeer", Out(4), 0, 0) == pack("i", 0)
    assert cuda.cu("cuCtxDisablePeerAccess", here) == 705
    cuda.good("cuCtxEnablePeerAccess", here, 0)
    assert cuda.cu("cuCtxEnablePeerAccess", here, 0) == 704
    cuda.good("cuCtxDisablePeerAccess", here)
    assert cuda.cu("cuCtxEnablePeerAccess", there, 0) == "INVALID_CONTEXT"


def test_the_state_is_writable_for_every_user_of_the_machine(processes: Processes) -> None:
    before = os.umask(0o077)
    try:
        cuda = processes.opened()
    finally:
        os.umask(before)
    assert cuda.free_bytes()
    folder = processes.node.with_name("node.gpus.state")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}


def test_a_green_context_retains_the_primary_one_and_shares_its_memory(cuda: CudaProcess) -> None:
    """As documented in NVIDIA's cuda.h for cuGreenCtxCreate, cuGreenCtxDestroy and cuCtxFromGreenCtx."""
    resource = cuda.good("cuDeviceGetDevResource", 0, Out(144), 1)
    assert int.from_bytes(resource[96:100], "little") == 80
    assert cuda.cu("cuDeviceGetDevResource", 0, Out(144), 1000)[0] == 914
    description = cuda.good("cuDevResourceGenerateDesc", OUT, resource, 1)
    assert cuda.cu("cuGreenCtxCreate", OUT, description, 1, 1)[0] == "INVALID_VALUE"
    green = cuda.good("cuGreenCtxCreate", OUT, description, 0, 1)
    assert cuda.good("cuDevicePrimaryCtxGetState", 0, Out(4), Out(4))[1] == pack("i", 1)
    context = cuda.good("cuCtxFromGreenCtx", OUT, green)
    assert cuda.good("cuCtxFromGreenCtx", OUT, green) == context
    primary = cuda.good("cuDevicePrimaryCtxRetain", OUT, 0)
    assert context != primary
    assert cuda.cu("cuDevicePrimaryCtxRelease_v2", 0) == "SUCCESS"
    cuda.good("cuCtxSetCurrent", context)
    assert cuda.good("cuCtxGetCurrent", OUT) == context
    address = cuda.good("cuMemAlloc_v2", OUT, MIB)
    assert cuda.good("cuPointerGetAttribute", OUT, 1, address) == primary
    streams = cuda.good("cuStreamCreate", OUT, 1), cuda.good("cuGreenCtxStreamCreate", OUT, green, 1, 0)
    for stream in streams:
        assert cuda.good("cuStreamGetCtx", stream, OUT) == context
        cuda.good("cuStreamSynchronize", stream)
    assert cuda.cu("cuGreenCtxStreamCreate", OUT, green, 0, 0)[0] == "INVALID_VALUE"
    assert cuda.cu("cuCtxDestroy_v2", context) == "INVALID_CONTEXT"
    assert cuda.good("cuDevicePrimaryCtxRetain", OUT, 0) == primary
    cuda.good("cuGreenCtxDestroy", green)
    assert cuda.cu("cuGreenCtxDestroy", green) == "INVALID_CONTEXT"
    assert cuda.cu("cuMemGetInfo_v2", OUT, OUT)[0] == "CONTEXT_IS_DESTROYED"
    cuda.good("cuCtxSetCurrent", primary)
    cuda.ask("write", address, b"still there")
    for stream in streams:
        assert cuda.cu("cuStreamSynchronize", stream) == 917
        cuda.good("cuStreamDestroy_v2", stream)
    cuda.good("cuDevicePrimaryCtxRelease_v2", 0)
    assert cuda.good("cuDevicePrimaryCtxGetState", 0, Out(4), Out(4))[1] == pack("i", 0)


def test_a_green_context_is_destroyed_by_a_reset_of_its_device(cuda: CudaProcess) -> None:
    description = cuda.good(
        "cuDevResourceGenerateDesc", OUT, cuda.good("cuDeviceGetDevResource", 0, Out(144), 1), 1
    )
    green = cuda.good("cuGreenCtxCreate", OUT, description, 0, 1)
    context = cuda.good("cuCtxFromGreenCtx", OUT, green)
    cuda.good("cuDevicePrimaryCtxReset_v2", 0)
    assert cuda.cu("cuCtxSetCurrent", context) == "INVALID_CONTEXT"
    cuda.good("cuGreenCtxDestroy", green)
    last = cuda.good("cuGreenCtxCreate", OUT, description, 0, 1)
    cuda.good("cuGreenCtxDestroy", last)
    assert cuda.good("cuDevicePrimaryCtxGetState", 0, Out(4), Out(4))[1] == pack("i", 0)


#: Results of calls in an exit handler that was registered before the driver's own, which run first.
AFTER_EXIT = """
import ctypes, sys
libc, number = ctypes.CDLL(None), ctypes.c_int()
def late(_):
    calls = (cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(number)), cuda.cuDriverGetVersion(ctypes.byref(number)),
             cuda.cuCtxSynchronize(), cuda.cuEventQuery(None))
    print(*calls, flush=True)
handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(late)
libc.__cxa_atexit(handler, None, None)
cuda = ctypes.CDLL(sys.argv[1])
cuda.cuInit(0)
libc.exit(0)
"""


def test_calls_of_an_exiting_program_fail_as_with_nvidias_driver(tmp_path: Path) -> None:
    """Compared with NVIDIA's 535, without a GPU."""
    build("library")
    gpus.write(tmp_path / "node.gpus", NODE)
    nvidias = next(iter(SYSTEM.glob("usr/lib/*/nvidia/current/libcuda.so.535.*")), None)
    for library in (BUILT / "libcuda.so.1", *filter(None, [nvidias])):
        completed = subprocess.run(
            [sys.executable, "-c", AFTER_EXIT, library],
            env=environment(tmp_path / "node.gpus"),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert completed.stdout == "4 4 4 4 4\n", library
