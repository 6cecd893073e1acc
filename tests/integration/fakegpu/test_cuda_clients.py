"""Third-party programs use the fake CUDA, and others see through the fake NVML what they hold and do."""

import csv
import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.building import ROOT
from tests.unit.fakegpu.building import build, environment, system_program

NODE = gpus.preset("core-mem-4", "n1")
SPIN = ROOT / "fakegpu" / "examples" / "spin.ptx"

#: Everything by cuda-bindings, which looks functions up with cuGetProcAddress and its own choice of versions.
PREAMBLE = f"""
import ctypes, sys
from cuda.bindings import driver

def good(answer):
    error, *values = answer
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else tuple(values)

good(driver.cuInit(0))
device = good(driver.cuDeviceGet(0))
context = good(driver.cuCtxCreate(None, 0, device))
MIB = 1 << 20

def used_mib():
    free, total = good(driver.cuMemGetInfo())
    return (total - free) // MIB

with open({str(SPIN)!r}, "rb") as file:
    module = good(driver.cuModuleLoadData(file.read() + b"\\0"))
spin = good(driver.cuModuleGetFunction(module, b"spin"))

def launch(stream, nanoseconds):
    parameters = ((nanoseconds,), (ctypes.c_uint64,))
    good(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0))
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    build("programs")
    path = tmp_path / "node.gpus"
    gpus.write(path, NODE)
    return path


def script(code: str, node: Path, **variables: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        env=environment(node, **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout.splitlines()


def test_cuda_bindings_sees_the_described_gpus(node: Path) -> None:
    output = script(
        """
Attribute = driver.CUdevice_attribute
print(good(driver.cuDriverGetVersion()), good(driver.cuDeviceGetCount()))
print(good(driver.cuDeviceGetName(64, device)).partition(b"\\0")[0].decode())
print(good(driver.cuDeviceGetUuid(device)).bytes.hex())
print(good(driver.cuDeviceTotalMem(device)) // MIB)
print([good(driver.cuDeviceGetAttribute(each, device)) for each in (
    Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    Attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
)])
print(good(driver.cuDeviceGetPCIBusId(32, device)).partition(b"\\0")[0].decode())
print(good(driver.cuGetErrorName(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)).decode())
""",
        node,
        FAKEGPU_VISIBLE_DEVICES="2",
    )
    gpu = NODE.gpus[2]
    assert output == [
        "13000 1",
        gpu.model,
        gpu.uuid.removeprefix("GPU-").replace("-", ""),
        "16160",
        "[7, 0, 80]",
        gpu.pci.lower().removeprefix("0000"),
        "CUDA_ERROR_OUT_OF_MEMORY",
    ]


def test_cuda_bindings_allocates_and_frees_every_kind_of_memory(node: Path) -> None:
    output = script(
        """
location = driver.CUmemLocation()
location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
created = driver.CUmemAllocationProp()
created.type, created.location = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED, location
access = driver.CUmemAccessDesc()
access.location, access.flags = location, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
shape.Width, shape.Height, shape.Depth, shape.NumChannels = 256, 256, 16, 4
shape.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT

print(used_mib())
plain = good(driver.cuMemAlloc(100 * MIB))
pitched, pitch = good(driver.cuMemAllocPitch(1000, 10240, 4))
managed = good(driver.cuMemAllocManaged(10 * MIB, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
array = good(driver.cuArray3DCreate(shape))
handle = good(driver.cuMemCreate(20 * MIB, created, 0))
address = good(driver.cuMemAddressReserve(64 * MIB, 0, driver.CUdeviceptr(0), 0))
good(driver.cuMemMap(address, 20 * MIB, 0, handle, 0))
good(driver.cuMemSetAccess(address, 20 * MIB, [access], 1))
ordered = good(driver.cuMemAllocAsync(30 * MIB, driver.CUstream(0)))
print(used_mib())
print(driver.cuMemAlloc(16000 * MIB)[0].name)

content = b"content of a GPU" * 1000
good(driver.cuMemcpyHtoD(plain, content, len(content)))
good(driver.cuMemcpyDtoD(address, plain, len(content)))
good(driver.cuMemcpyDtoDAsync(ordered, address, len(content), driver.CUstream(0)))
back = bytearray(len(content))
good(driver.cuMemcpyDtoH(back, ordered, len(back)))
print(bytes(back) == content)

good(driver.cuMemFreeAsync(ordered, driver.CUstream(0)))
good(driver.cuMemFree(plain))
good(driver.cuMemFree(pitched))
good(driver.cuMemFree(managed))
good(driver.cuArrayDestroy(array))
good(driver.cuMemUnmap(address, 20 * MIB))
good(driver.cuMemRelease(handle))
good(driver.cuMemAddressFree(address, 64 * MIB))
good(driver.cuCtxSynchronize())
print(used_mib())
good(driver.cuCtxDestroy(context))
""",
        node,
    )
    # The pool takes 32 MiB at a time.
    assert output == [
        "256",
        str(256 + 100 + 10 + 10 + 16 + 20 + 32),
        "CUDA_ERROR_OUT_OF_MEMORY",
        "True",
        "256",
    ]


def test_cuda_bindings_launches_kernels_that_take_time(node: Path) -> None:
    output = script(
        """
stream = good(driver.cuStreamCreate(0))
begin, end = good(driver.cuEventCreate(0)), good(driver.cuEventCreate(0))
good(driver.cuEventRecord(begin, stream))
for _ in range(5):
    launch(stream, 200_000_000)
good(driver.cuEventRecord(end, stream))
print(driver.cuEventQuery(end)[0].name)
good(driver.cuEventSynchronize(end))
print(good(driver.cuEventElapsedTime(begin, end)) >= 1000)
""",
        node,
    )
    assert output == ["CUDA_ERROR_NOT_READY", "True"]


@contextmanager
def holder(node: Path) -> Iterator[int]:
    """The pid of a process that holds 1000 MiB in addition to its context, and keeps its GPU busy."""
    code = """
kept = good(driver.cuMemAlloc(1000 * MIB))
print("ready", flush=True)
while True:
    launch(driver.CUstream(0), 50_000_000)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + code], env=environment(node), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate(timeout=30)


def ask(program: str, question: str, node: Path) -> list[list[str]]:
    """The rows that nvidia-smi prints."""
    result = subprocess.run(
        [program, question, "--format=csv,noheader,nounits"],
        env=environment(node),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(result.stdout))]


def test_nvidia_smi_shows_what_a_cuda_process_holds_and_that_the_gpu_is_busy(node: Path) -> None:
    program = system_program("nvidia-smi")
    with holder(node) as pid:
        apps = ask(program, "--query-compute-apps=pid,used_memory,gpu_uuid", node)
        assert apps == [[str(pid), "1256", NODE.gpus[0].uuid]]
        memory = ask(program, "--query-gpu=memory.used,memory.total", node)
        assert memory == [["1256", "16160"], ["0", "16160"], ["0", "16160"], ["0", "16160"]]
        while int((busy := ask(program, "--query-gpu=utilization.gpu", node))[0][0]) < 50:
            assert Path(f"/proc/{pid}").exists()
        assert busy[1:] == [["0"]] * 3
    assert ask(program, "--query-compute-apps=pid", node) == []
    assert ask(program, "--query-gpu=memory.used", node) == [["0"]] * 4
