"""Memory that the driver takes on its own, on a GPU whose description has it.

Each figure was measured on NVIDIA H200s with driver 580 (docs/measurements/2026-11-h200.md), by NVML's count for the process.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.building import build
from tests.unit.fakegpu.cuda_process import MIB, OUT, CudaProcess, Processes

PAGE = 2 * MIB
KERNEL = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"
VARIABLES = KERNEL.replace(b".visible", b".visible .global .align 4 .b8 table[%d];\n.visible" % (64 * MIB))
STACK_SIZE, PRINTF_FIFO_SIZE, MALLOC_HEAP_SIZE = 0, 1, 2


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    build("programs")
    node = tmp_path / "node.gpus"
    gpus.write(node, gpus.preset("h200-141gb", "n1"))
    with Processes(node).closing() as started:
        yield started


@pytest.fixture
def cuda(processes: Processes) -> CudaProcess:
    return processes.opened()


class Growth:
    """Increase of the GPU's used memory since the beginning, in bytes."""

    def __init__(self, cuda: CudaProcess) -> None:
        self._cuda = cuda
        self._before = cuda.free_bytes()

    @property
    def now(self) -> int:
        return self._before - self._cuda.free_bytes()


def launch(cuda: CudaProcess, image: bytes = KERNEL) -> str:
    kernel = cuda.good("cuModuleGetFunction", OUT, cuda.good("cuModuleLoadData", OUT, image), b"nothing\0")
    return str(cuda.cu("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None))


def test_code_comes_with_the_first_kernel_and_a_page_with_each_further_module(cuda: CudaProcess) -> None:
    # PyTorch's first kernel: 92 MiB; cuBLAS, cuDNN, cuFFT and cuSOLVER raised this to 102.
    growth = Growth(cuda)
    cuda.good("cuModuleLoadData", OUT, KERNEL)
    assert growth.now == 0
    assert launch(cuda) == "SUCCESS"
    assert growth.now == 92 * MIB
    for _ in range(5):
        assert launch(cuda) == "SUCCESS"
    assert growth.now == 102 * MIB


def test_a_modules_variables_are_allocated_and_freed_with_it(cuda: CudaProcess) -> None:
    # A module with 64 MiB of them: 64 MiB more, although no address is queried.
    growth = Growth(cuda)
    module = cuda.good("cuModuleLoadData", OUT, VARIABLES)
    assert growth.now == 64 * MIB
    cuda.good("cuModuleGetGlobal_v2", OUT, OUT, module, b"table\0")
    assert growth.now == 64 * MIB
    cuda.good("cuModuleUnload", module)
    assert growth.now == 0
    cuda.good("cuMemAlloc_v2", OUT, cuda.free_bytes() - 62 * MIB)
    assert cuda.cu("cuModuleLoadData", OUT, VARIABLES)[0] == "OUT_OF_MEMORY"


def test_streams_take_memory_that_is_not_returned_with_their_end(cuda: CudaProcess) -> None:
    # 32 streams: 16 MiB, never returned.
    growth = Growth(cuda)
    streams = [cuda.good("cuStreamCreate", OUT, 0) for _ in range(32)]
    assert growth.now == 16 * MIB
    for stream in streams:
        cuda.good("cuStreamDestroy_v2", stream)
    assert growth.now == 16 * MIB
    for _ in range(32):
        cuda.good("cuStreamCreate", OUT, 0)
    assert growth.now == 16 * MIB


def test_managed_memory_written_by_the_gpu_counts_twice_and_the_second_part_stays(cuda: CudaProcess) -> None:
    # 64 MiB of it, written on the GPU: 128 MiB, 64 of them permanently.
    growth = Growth(cuda)
    address = cuda.good("cuMemAllocManaged", OUT, 64 * MIB, 1)
    assert growth.now == 64 * MIB
    for _ in range(2):
        cuda.good("cuMemsetD8_v2", address, 1, 1000)
        assert growth.now == 128 * MIB
    cuda.good("cuMemFree_v2", address)
    assert growth.now == 64 * MIB


def test_stacks_are_allocated_with_the_next_launch_and_heap_and_printf_are_not(cuda: CudaProcess) -> None:
    # 16 KiB a thread: 3,960 MiB; 8 KiB: 1,848. Heap and printf cost nothing until they are used.
    assert launch(cuda) == "SUCCESS"
    growth = Growth(cuda)
    cuda.good("cuCtxSetLimit", MALLOC_HEAP_SIZE, 1 << 30)
    cuda.good("cuCtxSetLimit", PRINTF_FIFO_SIZE, 16 * MIB)
    cuda.good("cuCtxSetLimit", STACK_SIZE, 8 << 10)
    assert growth.now == 0
    assert launch(cuda) == "SUCCESS"
    assert growth.now == 1848 * MIB + PAGE
    cuda.good("cuCtxSetLimit", STACK_SIZE, 16 << 10)
    assert launch(cuda) == "SUCCESS"
    assert growth.now == 3960 * MIB + 2 * PAGE


def test_a_processs_second_context_costs_more_than_its_first(processes: Processes) -> None:
    # 518 MiB the first, 523.6 the second.
    onlooker = processes.opened()
    growth = Growth(onlooker)
    cuda = processes.opened()
    assert growth.now == 518 * MIB
    second = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    assert growth.now == (518 + 523) * MIB + 614 * 1024
    cuda.good("cuCtxDestroy_v2", second)
    assert growth.now == 518 * MIB


def test_all_of_it_is_freed_with_its_context(cuda: CudaProcess) -> None:
    growth = Growth(cuda)
    context = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    assert launch(cuda, VARIABLES) == "SUCCESS"
    cuda.good("cuStreamCreate", OUT, 0)
    cuda.good("cuMemsetD8_v2", cuda.good("cuMemAllocManaged", OUT, 64 * MIB, 1), 1, 1000)
    assert growth.now > (518 + 92 + 64 + 2 + 128) * MIB
    cuda.good("cuCtxDestroy_v2", context)
    assert growth.now == 0
