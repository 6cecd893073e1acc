"""Memory: every way to allocate it ends at the container's limit, and freed memory is available again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import driver_used_mib, run_tenant, running_tenant
from tests.unit.fakegpu import building as fakegpu

KINDS = ["plain", "pitch", "managed", "async", "async_ptsz", "from_pool", "physical", "array", "mipmap"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_allocation_above_the_limit_is_refused_and_freed_memory_can_be_allocated_again(
    kind: str, container: LimitedContainer
) -> None:
    run_tenant(
        container(),
        f"""
context()
base = used()
result, held = take({kind!r}, 1024 * MIB)
assert result == 0, result
assert base + 1024 <= used() <= base + 1024 + 32, used()
result, none = take({kind!r}, 1024 * MIB)
assert result == OUT_OF_MEMORY, result
assert base + 1024 <= used() <= base + 1024 + 32, used()
give({kind!r}, held)
assert used() == base, (used(), base)
result, held = take({kind!r}, 1600 * MIB)
assert result == 0, result
""",
    )


def test_the_last_mebibyte_can_be_taken_and_not_one_more(container: LimitedContainer) -> None:
    run_tenant(
        container(512),
        """
context()
while info()[0]:
    result, _ = take("plain", 2 * MIB)
    assert result == 0, result
result, _ = take("plain", 1 * MIB)
assert result == OUT_OF_MEMORY
""",
    )


def test_small_allocations_share_pages_and_are_charged_what_the_driver_takes(
    container: LimitedContainer,
) -> None:
    here = container(1024)
    lines = """
context()
base = used()
pieces = [take("plain", 300_000)[1] for _ in range(40)]
print(used() - base, flush=True)
for piece in pieces[:-1]:
    give("plain", piece)
assert used() == base + 2
give("plain", pieces[-1])
assert used() == base
pieces = [take("plain", 700_000)[1] for _ in range(10)]
print(used(), flush=True)
sys.stdin.read()
"""
    with running_tenant(here, lines) as line:
        assert int(line()) >= 40 * 300_000 >> 20
        assert int(line()) == driver_used_mib(here.node)


@pytest.mark.parametrize(
    ("format_", "width", "height", "channels"),
    [
        (0xC0, 1 << 14, 1 << 12, 1),  # UNORM_INT8X1
        (0xC8, 1 << 12, 1 << 12, 4),  # SNORM_INT8X4
        (0xC4, 1 << 12, 1 << 12, 2),  # UNORM_INT16X2
        (0xCB, 1 << 12, 1 << 11, 4),  # SNORM_INT16X4
        (0x91, 1 << 14, 1 << 13, 4),  # BC1_UNORM
        (0x98, 1 << 14, 1 << 13, 1),  # BC4_SNORM
        (0x9E, 1 << 13, 1 << 13, 4),  # BC7_UNORM_SRGB
    ],
)
def test_an_array_is_charged_what_it_takes_in_every_format(
    format_: int, width: int, height: int, channels: int, container: LimitedContainer
) -> None:
    """Each of 64 MiB."""
    here = container()
    lines = f"""
context()
base, handle = used(), c_void_p()
shape = Array3D({width}, {height}, 0, {format_}, {channels}, 0)
must("cuArray3DCreate_v2", byref(handle), byref(shape))
assert used() == base + 64, used() - base
must("cuMipmappedArrayCreate", byref(handle), byref(shape), 1)
print(base, used(), flush=True)
sys.stdin.read()
"""
    with running_tenant(here, lines) as line:
        base, charged = map(int, line().split())
        assert charged == base + 128
        assert driver_used_mib(here.node) == charged


def test_a_context_is_charged_the_drivers_figure_until_it_is_destroyed(
    container: LimitedContainer,
) -> None:
    here = container(1500)
    lines = """
first = context()
cost = used()
print(cost, flush=True)
sys.stdin.readline()
second = context()
assert used() == 2 * cost
for kind in ("plain", "managed", "pitch", "array"):
    assert take(kind, 64 * MIB)[0] == 0
for _ in range(9):
    assert take("plain", 1000)[0] == 0
must("cuCtxDestroy_v2", second)
must("cuCtxSetCurrent", first)
assert used() == cost, used()
made = c_void_p()
contexts = 0
while call("cuCtxCreate_v2", byref(made), 0, 0) == 0:
    contexts += 1
assert contexts == 1500 // cost - 1, contexts
"""
    with running_tenant(here, lines.partition("sys.stdin.readline()")[0] + "sys.stdin.read()") as line:
        assert int(line()) == driver_used_mib(here.node)
    run_tenant(here, lines.replace("sys.stdin.readline()", ""))


def test_the_primary_context_is_charged_once_and_ends_with_its_last_user(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        """
must("cuInit", 0)
primary = c_void_p()
must("cuDevicePrimaryCtxRetain", byref(primary), 0)
must("cuCtxSetCurrent", primary)
cost = used()
assert cost > 0
must("cuDevicePrimaryCtxRetain", byref(primary), 0)
assert used() == cost
assert take("plain", 100 * MIB)[0] == 0
must("cuDevicePrimaryCtxRelease_v2", 0)
assert used() == cost + 100
must("cuDevicePrimaryCtxRelease_v2", 0)
other = context()
assert used() == cost, used()
""",
    )


def test_physical_memory_is_charged_until_handles_and_mappings_are_gone(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        """
context()
base = used()
result, handle = take("physical", 64 * MIB)
address = c_uint64()
must("cuMemAddressReserve", byref(address), c_size_t(64 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
must("cuMemMap", address, c_size_t(64 * MIB), c_size_t(0), handle, c_uint64(0))
give("physical", handle)
assert used() == base + 64
again = c_uint64()
must("cuMemRetainAllocationHandle", byref(again), c_void_p(address.value))
must("cuMemUnmap", address, c_size_t(64 * MIB))
assert used() == base + 64
give("physical", again)
assert used() == base
""",
    )


def test_host_memory_is_not_gpu_memory(container: LimitedContainer) -> None:
    run_tenant(
        container(512),
        """
context()
base = used()
host = c_void_p()
must("cuMemHostAlloc", byref(host), c_size_t(700 * MIB), 0)
assert used() == base
""",
    )


def test_all_queries_agree(container: LimitedContainer) -> None:
    here = container()
    lines = """
context()
assert take("plain", 300 * MIB)[0] == 0
total = c_size_t()
must("cuDeviceTotalMem_v2", byref(total), 0)
free, whole = info()
assert total.value == whole * MIB == 2154 * MIB
alone = c_size_t()
if call("cuMemGetInfo_v2", None, byref(alone)) == 0:
    assert alone.value == total.value
if call("cuMemGetInfo_v2", byref(alone), None) == 0:
    assert alone.value == free * MIB
print(whole - free, flush=True)
sys.stdin.read()
"""
    with running_tenant(here, lines) as line:
        used_mib = int(line())
        smi = subprocess.run(
            [fakegpu.system_program("nvidia-smi")],
            env=here.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert f"{used_mib}MiB /  2154MiB" in smi.stdout
        assert used_mib == driver_used_mib(here.node)


def test_neighbours_do_not_see_each_other(container: LimitedContainer) -> None:
    one, other = container(4096), container(2154)
    lines = "context()\nassert take('plain', 1024 * MIB)[0] == 0\nprint(used(), flush=True)\nsys.stdin.read()"
    listing = """
import pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
memory = pynvml.nvmlDeviceGetMemoryInfo(device)
print([process.usedGpuMemory // MIB for process in processes], memory.used // MIB)
"""
    with running_tenant(one, lines) as line:
        used_mib = int(line())
        assert used_mib > 1024
        assert run_tenant(one, listing).stdout == f"[{used_mib}] {used_mib}\n"
        assert run_tenant(other, listing).stdout == "[] 0\n"
        assert int(run_tenant(other, "context()\nprint(used())").stdout) == used_mib - 1024


def test_gpustat_shows_the_slice(container: LimitedContainer) -> None:
    shown = subprocess.run(
        [Path(sys.executable).with_name("gpustat"), "--no-color"],
        env=container().environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "/  2154 MB" in shown.stdout


def test_mipmap_levels_that_outlive_their_page_neighbours_are_charged(
    container: LimitedContainer,
) -> None:
    here = container()
    lines = """
context()
shared, mipmap = [take("plain", kib << 10)[1] for kib in (1000, 200)], c_void_p()
shape = Array3D(4096, 48, 0, 0x20, 1, 0)
must("cuMipmappedArrayCreate", byref(mipmap), byref(shape), 2)
for piece in shared:
    give("plain", piece)
print(used(), flush=True)
sys.stdin.read()
"""
    with running_tenant(here, lines) as line:
        assert int(line()) >= driver_used_mib(here.node)


def test_near_the_limit_a_pool_keeps_only_what_the_program_uses(container: LimitedContainer) -> None:
    """1 MiB from a pool with GiBs free; an allocation that the pool cannot hold takes no more than it needs."""
    run_tenant(
        container(4040),
        """
context()
pool, threshold = c_void_p(), c_uint64(2**63)
must("cuDeviceGetDefaultMemPool", byref(pool), 0)
must("cuMemPoolSetAttribute", pool, 4, byref(threshold))
def reserved():
    found = c_uint64()
    must("cuMemPoolGetAttribute", pool, 5, byref(found))
    return found.value // MIB
held = [take("async", 64 * MIB) for _ in range(55)]
assert all(result == 0 for result, _ in held)
for _, address in held[20:]:
    must("cuMemFreeAsync", address, None)
must("cuCtxSynchronize")
before = reserved()
for _ in range(3):
    result, address = take("async", MIB)
    assert result == 0
    must("cuMemFreeAsync", address, None)
    must("cuCtxSynchronize")
    assert reserved() == before, (reserved(), before)
assert take("plain", 4 * MIB)[0] == 0
# Larger than any gap that is known for sure: some chunks go, not all.
result, address = take("async", 512 * MIB)
assert result == 0
assert reserved() > before - 600, (reserved(), before)
assert take("async", 4096 * MIB)[0] == OUT_OF_MEMORY
""",
    )


STACKS = """
made = context()
module, kernel = c_void_p(), c_void_p()
must("cuModuleLoadData", byref(module), b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry k()\\n{\\nret;\\n}\\n\\0")
must("cuModuleGetFunction", byref(kernel), module, b"k")
def launch():
    must("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    must("cuCtxSynchronize")
def attribute(number):
    found = c_int()
    must("cuDeviceGetAttribute", byref(found), number, 0)
    return found.value
# One for every thread that the GPU can run at once; the usual one is part of the context's cost.
STACKS_OF_8_KIB = 7 * attribute(16) * attribute(39) // 1024
launch()
before = used()
must("cuCtxSetLimit", 0, c_size_t(8 << 10))
assert STACKS_OF_8_KIB <= used() - before <= STACKS_OF_8_KIB + 2, (used(), before)
launch()
charged = used()
"""


def test_stacks_are_charged_when_the_driver_allocates_them_with_the_next_launch(
    container: LimitedContainer,
) -> None:
    here = container(4096)
    with running_tenant(here, STACKS + "print(charged, flush=True)\nsys.stdin.read()") as read_line:
        charged_mib = int(read_line())
        assert charged_mib - 2 <= driver_used_mib(here.node) <= charged_mib


def test_stacks_and_heaps_that_do_not_fit_are_refused_and_stacks_are_freed_with_their_context(
    container: LimitedContainer,
) -> None:
    run_tenant(
        container(4096),
        STACKS
        + """
# Smaller ones give nothing back, the same again costs nothing.
for kib in (2, 8):
    must("cuCtxSetLimit", 0, c_size_t(kib << 10))
    assert used() == charged
assert call("cuCtxSetLimit", 0, c_size_t(256 << 10)) == OUT_OF_MEMORY
assert used() == charged
found = c_size_t()
must("cuCtxGetLimit", byref(found), 0)
assert found.value == 8 << 10
# Heaps cost nothing before they are used, but one that cannot fit is refused.
must("cuCtxSetLimit", 2, c_size_t(64 << 20))
assert call("cuCtxSetLimit", 2, c_size_t(4 << 30)) == OUT_OF_MEMORY
assert call("cuCtxSetLimit", 2, c_size_t(2**64 - 1)) == OUT_OF_MEMORY
assert used() == charged
must("cuCtxGetLimit", byref(found), 2)
assert found.value == 64 << 20
must("cuCtxDestroy_v2", made)
context()
assert used() <= before
""",
    )
