"""Third-party programs: what they see in a container, and that they get no more."""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

from gpushare_playground import gpus
from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant, running_tenant
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import MIB, Container, lay_out


def printed(here: Container, *program: str | Path) -> str:
    result = subprocess.run(
        program, env=here.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_cuda_bindings_which_finds_functions_by_cu_get_proc_address(
    container: LimitedContainer,
) -> None:
    script = """
from cuda.bindings import driver
def must(result):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result
    return result[1] if len(result) == 2 else result[1:]
must(driver.cuInit(0))
device = must(driver.cuDeviceGet(0))
assert must(driver.cuDeviceTotalMem(device)) == 2154 << 20
must(driver.cuCtxCreate(None, 0, device))
free, total = must(driver.cuMemGetInfo())
assert total == 2154 << 20
address = must(driver.cuMemAlloc(1 << 30))
assert must(driver.cuMemGetInfo())[0] == free - (1 << 30)
assert driver.cuMemAlloc(1 << 30)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
assert driver.cuMemAllocManaged(1 << 30, 1)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
stream = must(driver.cuStreamCreate(0))
assert driver.cuMemAllocAsync(1 << 30, stream)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
must(driver.cuMemFree(address))
assert must(driver.cuMemGetInfo())[0] == free
print("held")
"""
    assert printed(container(), sys.executable, "-c", script) == "held\n"


def test_nvitop_shows_the_slice(container: LimitedContainer) -> None:
    assert "2154MiB" in printed(container(), Path(sys.executable).with_name("nvitop"), "-1")


def test_nvtop_draws_the_slice(container: LimitedContainer) -> None:
    ours_end, its_end = pty.openpty()
    program = subprocess.Popen(
        [fakegpu.system_program("nvtop")],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        env=container().environment(),
        start_new_session=True,
    )
    os.close(its_end)
    try:
        drawn = b""
        while b"/2.104Gi" not in drawn:
            ready, _, _ = select.select([ours_end], [], [], 30)
            assert ready, drawn[-500:]
            drawn += os.read(ours_end, 1 << 16)
    finally:
        program.kill()
        program.wait(timeout=10)
        os.close(ours_end)


def test_each_gpu_has_its_own_limit(tmp_path: Path) -> None:
    node = gpus.preset("core-mem-4", "n1")
    gpus.write(tmp_path / "node.gpus", node)
    here = lay_out(tmp_path / "c", tmp_path / "node.gpus")
    # In a different order: they are identified by UUID, not by position.
    here.limit(
        f"{node.gpus[2].uuid} memory_bytes={1024 * MIB}", f"{node.gpus[0].uuid} memory_bytes={2048 * MIB}"
    )
    lines = """
def total(device):
    bytes = c_size_t()
    must("cuDeviceTotalMem_v2", byref(bytes), device)
    return bytes.value // MIB
first = context(0)
assert (total(0), total(2)) == (2048, 1024), (total(0), total(2))
assert take("plain", 1500 * MIB)[0] == 0
assert take("plain", 500 * MIB)[0] == OUT_OF_MEMORY
assert call("cuCtxCreate_v2", byref(c_void_p()), 0, 1) == OUT_OF_MEMORY
assert call("cuCtxCreate_v2", byref(c_void_p()), 0, 3) == OUT_OF_MEMORY
second = context(2)
assert info()[1] == 1024
assert take("plain", 900 * MIB)[0] == OUT_OF_MEMORY
assert take("plain", 700 * MIB)[0] == 0
properties = AllocationProperties(type=1, location=Location(1, 0))
handle = c_uint64()
assert call("cuMemCreate", byref(handle), c_size_t(500 * MIB), byref(properties), c_uint64(0)) == OUT_OF_MEMORY
stream = c_void_p()
must("cuCtxSetCurrent", first)
must("cuStreamCreate", byref(stream), 0)
must("cuCtxSetCurrent", second)
address = c_uint64()
before = info()[0]
assert call("cuMemAllocAsync", byref(address), c_size_t(200 * MIB), stream) == 0
assert info()[0] == before
must("cuCtxSetCurrent", first)
assert info()[0] < 2048 - 256 - 1500 - 199
"""
    run_tenant(here, lines)


def test_a_process_is_listed_with_its_memory(container: LimitedContainer) -> None:
    here = container()
    with running_tenant(here, "context()\nprint(os.getpid(), used(), flush=True)\nsys.stdin.read()") as line:
        pid, used_mib = line().split()
        shown = printed(here, Path(sys.executable).with_name("gpustat"), "--no-color", "--show-pid")
        assert f"/{pid}({used_mib}M)" in shown
