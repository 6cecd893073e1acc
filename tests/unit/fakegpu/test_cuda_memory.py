"""How much of a GPU each kind of memory takes and returns."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.building import build
from tests.unit.fakegpu.cuda_process import MIB, OUT, CudaProcess, Out, Processes, Whole, pack

GRANULE = 2 * MIB
TOTAL = 16160 * MIB
CONTEXT = 256 * MIB
LOCATION = pack("ii", 1, 0)
VMM = pack("iiiiQQ", 1, 0, 1, 0, 0, 0)
EXPORTED = pack("iiiiQQ", 1, 1, 1, 0, 0, 0)
ACCESS = pack("iii", 1, 0, 3)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    build("programs")
    node = tmp_path / "node.gpus"
    gpus.write(node, gpus.preset("v100-16160", "n1"))
    with Processes(node).closing() as started:
        yield started


@pytest.fixture
def cuda(processes: Processes) -> CudaProcess:
    return processes.opened()


def array(width: int, height: int, depth: int = 0) -> bytes:
    """A shape of four floats a texel."""
    return pack("QQQiII", width, height, depth, 0x20, 4, 0)


def plain(cuda: CudaProcess) -> Callable[[], object]:
    address = cuda.good("cuMemAlloc_v2", OUT, 10 * MIB)
    return lambda: cuda.good("cuMemFree_v2", address)


def pitched(cuda: CudaProcess) -> Callable[[], object]:
    address, pitch = cuda.good("cuMemAllocPitch_v2", OUT, OUT, 1000, 10240, 4)
    assert pitch == 1024
    return lambda: cuda.good("cuMemFree_v2", address)


def managed(cuda: CudaProcess) -> Callable[[], object]:
    address = cuda.good("cuMemAllocManaged", OUT, 10 * MIB, 1)
    return lambda: cuda.good("cuMemFree_v2", address)


def physical(cuda: CudaProcess) -> Callable[[], object]:
    handle = cuda.good("cuMemCreate", OUT, 10 * MIB, VMM, 0)
    return lambda: cuda.good("cuMemRelease", handle)


def mapped_after_release(cuda: CudaProcess) -> Callable[[], object]:
    handle = cuda.good("cuMemCreate", OUT, 10 * MIB, VMM, 0)
    address = cuda.good("cuMemAddressReserve", OUT, 64 * MIB, 0, 0, 0)
    cuda.good("cuMemMap", address + 2 * MIB, 10 * MIB, 0, handle, 0)
    cuda.good("cuMemRelease", handle)

    def end() -> None:
        cuda.good("cuMemUnmap", address + 2 * MIB, 10 * MIB)
        cuda.good("cuMemAddressFree", address, 64 * MIB)

    return end


def flat_array(cuda: CudaProcess) -> Callable[[], object]:
    handle = cuda.good("cuArrayCreate_v2", OUT, pack("QQiI", 1024, 640, 0x20, 4))
    return lambda: cuda.good("cuArrayDestroy", handle)


def deep_array(cuda: CudaProcess) -> Callable[[], object]:
    handle = cuda.good("cuArray3DCreate_v2", OUT, array(128, 64, 80))
    return lambda: cuda.good("cuArrayDestroy", handle)


def normalized_array(cuda: CudaProcess) -> Callable[[], object]:
    handle = cuda.good("cuArray3DCreate_v2", OUT, pack("QQQiII", 1024, 1280, 0, 0xC5, 4, 0))
    return lambda: cuda.good("cuArrayDestroy", handle)


def compressed_array(cuda: CudaProcess) -> Callable[[], object]:
    """Of BC1: eight bytes for each four by four texels; the last blocks are not full."""
    handle = cuda.good("cuArray3DCreate_v2", OUT, pack("QQQiII", 4093, 5117, 0, 0x91, 4, 0))
    return lambda: cuda.good("cuArrayDestroy", handle)


@pytest.mark.parametrize(
    "take",
    [
        *(plain, pitched, managed, physical, mapped_after_release),
        *(flat_array, deep_array, normalized_array, compressed_array),
    ],
)
def test_each_kind_of_memory_is_taken_from_the_gpu_and_freed(
    cuda: CudaProcess, take: Callable[[CudaProcess], Callable[[], object]]
) -> None:
    before = cuda.free_bytes()
    give_back = take(cuda)
    assert before - cuda.free_bytes() == 10 * MIB
    give_back()
    assert cuda.free_bytes() == before


def test_a_mipmap_takes_the_memory_of_its_levels(cuda: CudaProcess) -> None:
    before = cuda.free_bytes()
    mipmap = cuda.good("cuMipmappedArrayCreate", OUT, array(1024, 1024), 3)
    # 16, 4 and 1 MiB: each level is an array, and of arrays below a MiB the pages are shared.
    assert before - cuda.free_bytes() == (16 + 4 + 2) * MIB
    level = cuda.good("cuMipmappedArrayGetLevel", OUT, mipmap, 2)
    shape = cuda.good("cuArray3DGetDescriptor_v2", Out(40), level)
    assert shape[:36] == array(256, 256)
    assert cuda.cu("cuArrayDestroy", level) == "INVALID_HANDLE"
    assert cuda.cu("cuMipmappedArrayGetLevel", OUT, mipmap, 3)[0] == "INVALID_VALUE"
    cuda.good("cuMipmappedArrayDestroy", mipmap)
    assert cuda.free_bytes() == before


def test_small_pieces_share_pages_of_the_gpu(cuda: CudaProcess) -> None:
    before = cuda.free_bytes()
    pieces = [cuda.good("cuMemAlloc_v2", OUT, 1000) for _ in range(100)]
    assert before - cuda.free_bytes() == GRANULE
    assert len({piece // 512 for piece in pieces}) == 100
    for piece in pieces:
        cuda.good("cuMemFree_v2", piece)
    assert cuda.free_bytes() == before


def test_a_context_takes_memory_and_its_end_frees_all_of_its_allocations(cuda: CudaProcess) -> None:
    assert cuda.free_bytes() == TOTAL - CONTEXT
    second = cuda.good("cuCtxCreate_v2", OUT, 0, 0)
    assert cuda.free_bytes() == TOTAL - 2 * CONTEXT
    for take in (plain, pitched, managed, flat_array):
        take(cuda)
    cuda.good("cuMemAlloc_v2", OUT, 10)
    cuda.good("cuMemHostAlloc", OUT, 10, 0)
    assert cuda.free_bytes() == TOTAL - 2 * CONTEXT - 42 * MIB
    cuda.good("cuCtxDestroy_v2", second)
    assert cuda.free_bytes() == TOTAL - CONTEXT


def test_an_allocation_that_does_not_fit_is_refused_and_the_last_piece_is_not(cuda: CudaProcess) -> None:
    room = cuda.free_bytes()
    assert cuda.cu("cuMemAlloc_v2", OUT, room + 1)[0] == "OUT_OF_MEMORY"
    cuda.good("cuMemAlloc_v2", OUT, room - GRANULE)
    assert cuda.cu("cuMemCreate", OUT, 2 * GRANULE, VMM, 0)[0] == "OUT_OF_MEMORY"
    assert cuda.cu("cuMemAllocManaged", OUT, 2 * GRANULE, 1)[0] == "OUT_OF_MEMORY"
    assert cuda.cu("cuCtxCreate_v2", OUT, 0, 0)[0] == "OUT_OF_MEMORY"
    cuda.good("cuMemAlloc_v2", OUT, 1)
    assert cuda.free_bytes() == 0
    cuda.good("cuMemAlloc_v2", OUT, 1)
    assert cuda.cu("cuMemAlloc_v2", OUT, GRANULE)[0] == "OUT_OF_MEMORY"


def test_only_addresses_of_allocations_can_be_freed(cuda: CudaProcess) -> None:
    address = cuda.good("cuMemAlloc_v2", OUT, 100)
    host = cuda.good("cuMemHostAlloc", OUT, 100, 0)
    assert cuda.cu("cuMemFree_v2", address + 1) == "INVALID_VALUE"
    assert cuda.cu("cuMemFree_v2", host) == "INVALID_VALUE"
    assert cuda.cu("cuMemFreeHost", address) == "INVALID_VALUE"
    assert cuda.cu("cuMemFree_v2", 0) == "SUCCESS"
    cuda.good("cuMemFree_v2", address)
    assert cuda.cu("cuMemFree_v2", address) == "INVALID_VALUE"


@pytest.mark.parametrize(
    ("bits", "value", "shown"), [(8, 7, b"\7"), (16, 0x0102, b"\2\1"), (32, 1, b"\1\0\0\0")]
)
def test_memory_is_set_element_by_element_and_row_by_row(
    cuda: CudaProcess, bits: int, value: int, shown: bytes
) -> None:
    address = cuda.good("cuMemAlloc_v2", OUT, 4096)
    cuda.good("cuMemsetD8_v2", address, 0, 4096)
    cuda.good(f"cuMemsetD{bits}Async", address, value, 3, 0)
    cuda.good(f"cuMemsetD2D{bits}_v2", address + 1024, 512, value, 2, 2)
    cuda.good("cuCtxSynchronize")
    content = cuda.ask("read", address, 4096)
    size = len(shown)
    assert content[: 3 * size + 1] == shown * 3 + b"\0"
    for row in (1024, 1536):
        assert content[row : row + 2 * size + 1] == shown * 2 + b"\0"
    assert cuda.cu(f"cuMemsetD{bits}_v2", address, value, 4096 // size + 1) == "INVALID_VALUE"


def test_a_large_piece_is_zeroed_without_taking_the_machines_memory(cuda: CudaProcess) -> None:
    def resident_kib() -> int:
        status = Path(f"/proc/{cuda.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    before = resident_kib()
    address = cuda.good("cuMemAlloc_v2", OUT, 8 << 30)
    cuda.ask("write", address + (1 << 30), b"content")
    cuda.good("cuMemsetD8_v2", address + 3, 0, (8 << 30) - 3)
    cuda.good("cuCtxSynchronize")
    assert cuda.ask("read", address + (1 << 30), 7) == bytes(7)
    assert resident_kib() - before < 65536


def test_stream_ordered_memory_comes_from_a_pool_that_retains_up_to_its_threshold(cuda: CudaProcess) -> None:
    before = cuda.free_bytes()
    pool = cuda.good("cuDeviceGetDefaultMemPool", OUT, 0)
    assert cuda.good("cuDeviceGetMemPool", OUT, 0) == pool

    def attribute(number: int) -> int:
        return int(cuda.good("cuMemPoolGetAttribute", pool, number, OUT))

    first = cuda.good("cuMemAllocAsync", OUT, 100, 0)
    assert before - cuda.free_bytes() == attribute(5) == 32 * MIB
    assert attribute(7) == 512
    cuda.good("cuMemPoolSetAttribute", pool, 4, pack("Q", 64 * MIB))
    second = cuda.good("cuMemAllocAsync", OUT, 40 * MIB, 0)
    assert attribute(5) == 72 * MIB
    cuda.good("cuMemFreeAsync", first, 0)
    cuda.good("cuMemFreeAsync", second, 0)
    assert cuda.cu("cuMemFreeAsync", second, 0) == "INVALID_VALUE"
    cuda.good("cuCtxSynchronize")
    assert attribute(7) == 0
    assert attribute(5) <= 64 * MIB
    cuda.good("cuMemPoolTrimTo", pool, 0)
    assert attribute(5) == 0
    assert attribute(6) == 72 * MIB
    cuda.good("cuMemPoolSetAttribute", pool, 6, pack("Q", 0))
    assert attribute(6) == 0
    assert cuda.free_bytes() == before
    assert cuda.cu("cuMemPoolDestroy", pool) == "INVALID_VALUE"


def test_pools_release_unused_memory_when_the_last_context_ends(processes: Processes) -> None:
    cuda, other = processes.start(), processes.opened()
    context = cuda.open()
    pool = cuda.good("cuDeviceGetDefaultMemPool", OUT, 0)
    cuda.good("cuMemPoolSetAttribute", pool, 4, pack("Q", 1 << 40))
    cuda.good("cuMemFreeAsync", cuda.good("cuMemAllocAsync", OUT, 100 * MIB, 0), 0)
    cuda.good("cuCtxSynchronize")
    assert other.free_bytes() == TOTAL - 2 * CONTEXT - 100 * MIB
    cuda.good("cuCtxDestroy_v2", context)
    assert other.free_bytes() == TOTAL - CONTEXT


def test_an_own_pool_has_its_bound_and_lives_until_its_last_piece_is_freed(
    cuda: CudaProcess,
) -> None:
    before = cuda.free_bytes()
    pool = cuda.good("cuMemPoolCreate", OUT, pack("iiiiQQ56x", 1, 0, 1, 0, 0, 48 * MIB))
    cuda.good("cuDeviceSetMemPool", 0, pool)
    piece = cuda.good("cuMemAllocFromPoolAsync", OUT, 16 * MIB, pool, 0)
    assert cuda.cu("cuMemAllocAsync", OUT, 40 * MIB, 0)[0] == "OUT_OF_MEMORY"
    cuda.good("cuMemPoolDestroy", pool)
    assert cuda.cu("cuMemPoolTrimTo", pool, 0) == "INVALID_VALUE"
    assert cuda.good("cuDeviceGetMemPool", OUT, 0) == cuda.good("cuDeviceGetDefaultMemPool", OUT, 0)
    assert before - cuda.free_bytes() == 32 * MIB
    cuda.good("cuMemFree_v2", piece)
    assert cuda.free_bytes() == before


def test_pending_frees_of_streams_are_awaited_before_out_of_memory(cuda: CudaProcess) -> None:
    size = 9 << 30
    for _ in range(5):
        address = cuda.good("cuMemAllocAsync", OUT, size, 0)
        cuda.good("cuMemFreeAsync", address, 0)


def test_a_mapping_needs_access_and_shows_the_same_memory_twice(cuda: CudaProcess) -> None:
    assert cuda.good("cuMemGetAllocationGranularity", OUT, VMM, 0) == GRANULE
    address = cuda.good("cuMemAddressReserve", OUT, 8 * MIB, 0, 0, 0)
    handle = cuda.good("cuMemCreate", OUT, 4 * MIB, VMM, 0)
    cuda.good("cuMemMap", address, 4 * MIB, 0, handle, 0)
    assert cuda.cu("cuMemMap", address + 2 * MIB, 4 * MIB, 0, handle, 0) == "INVALID_VALUE"
    cuda.good("cuMemMap", address + 4 * MIB, 4 * MIB, 0, handle, 0)
    assert cuda.cu("cuMemsetD8_v2", address, 7, 10) == "INVALID_VALUE"
    cuda.good("cuMemSetAccess", address, 8 * MIB, ACCESS, 1)
    assert cuda.good("cuMemGetAccess", OUT, LOCATION, address) == 3
    cuda.good("cuMemsetD8_v2", address + 4 * MIB - 5, 7, 10)
    cuda.good("cuCtxSynchronize")
    assert cuda.ask("read", address, 6) == b"\7" * 5 + b"\0"
    assert cuda.ask("read", address + 4 * MIB, 6) == b"\7" * 5 + b"\0"
    again = cuda.good("cuMemRetainAllocationHandle", OUT, address)
    assert again == handle
    assert cuda.good("cuMemGetAllocationPropertiesFromHandle", Out(32), handle)[:16] == VMM[:16]
    assert cuda.cu("cuMemAddressFree", address, 8 * MIB) == "INVALID_VALUE"
    assert cuda.cu("cuMemUnmap", address, 6 * MIB) == "INVALID_VALUE"
    cuda.good("cuMemUnmap", address, 8 * MIB)
    cuda.good("cuMemAddressFree", address, 8 * MIB)
    cuda.good("cuMemRelease", handle)
    cuda.good("cuMemRelease", handle)
    assert cuda.cu("cuMemRelease", handle) == "INVALID_VALUE"
    assert cuda.free_bytes() == TOTAL - CONTEXT


def test_unmapped_addresses_are_refused(cuda: CudaProcess) -> None:
    host = cuda.good("cuMemHostAlloc", OUT, 8 * MIB, 0)

    def refused(address: int, size: int) -> None:
        assert cuda.cu("cuMemcpyDtoH_v2", host, address, size) == "INVALID_VALUE"
        assert cuda.cu("cuMemcpyHtoDAsync_v2", address, host, size, 0) == "INVALID_VALUE"
        assert cuda.cu("cuMemsetD8_v2", address, 0, size) == "INVALID_VALUE"

    address = cuda.good("cuMemAlloc_v2", OUT, 4 * MIB)
    refused(address, 4 * MIB + 1)
    refused(address + 4 * MIB - 1, 2)
    cuda.good("cuMemFree_v2", address)
    refused(address, 1)
    refused(cuda.good("cuMemAddressReserve", OUT, 8 * MIB, 0, 0, 0), 1)


def test_exported_memory_is_imported_by_its_file_and_charged_once(cuda: CudaProcess) -> None:
    handle = cuda.good("cuMemCreate", OUT, 4 * MIB, EXPORTED, 0)
    before = cuda.free_bytes()
    file = int.from_bytes(cuda.good("cuMemExportToShareableHandle", Out(4), handle, 1, 0), "little")
    imported = cuda.good("cuMemImportFromShareableHandle", OUT, file, 1)
    assert cuda.free_bytes() == before
    address = cuda.good("cuMemAddressReserve", OUT, 8 * MIB, 0, 0, 0)
    for at, each in ((address, handle), (address + 4 * MIB, imported)):
        cuda.good("cuMemMap", at, 4 * MIB, 0, each, 0)
    cuda.good("cuMemSetAccess", address, 8 * MIB, ACCESS, 1)
    cuda.ask("write", address, b"content")
    assert cuda.ask("read", address + 4 * MIB, 7) == b"content"
    unexportable = cuda.good("cuMemCreate", OUT, 4 * MIB, VMM, 0)
    assert cuda.cu("cuMemExportToShareableHandle", Out(4), unexportable, 1, 0)[0] == "INVALID_VALUE"


def test_host_memory_takes_nothing_of_the_gpu(cuda: CudaProcess) -> None:
    before = cuda.free_bytes()
    host = cuda.good("cuMemHostAlloc", OUT, 10 * MIB, 3)
    assert cuda.good("cuMemHostGetFlags", Out(4), host) == pack("I", 3)
    assert cuda.good("cuMemHostGetDevicePointer_v2", OUT, host + 5, 0) == host + 5
    assert cuda.free_bytes() == before
    cuda.good("cuMemFreeHost", host)
    address = cuda.good("cuMemAlloc_v2", OUT, 100)
    own = cuda.good("cuMemAllocHost_v2", OUT, 8192)
    assert cuda.cu("cuMemHostRegister_v2", own, 4096, 0) == "HOST_MEMORY_ALREADY_REGISTERED"
    assert cuda.cu("cuMemHostUnregister", address) == "HOST_MEMORY_NOT_REGISTERED"


def test_pointer_attributes_describe_an_address(cuda: CudaProcess) -> None:
    address = cuda.good("cuMemAlloc_v2", OUT, 3 * MIB)
    host = cuda.good("cuMemHostAlloc", OUT, 4096, 0)
    context = cuda.good("cuCtxGetCurrent", OUT)
    assert cuda.good("cuMemGetAddressRange_v2", OUT, OUT, address + MIB) == (address, 3 * MIB)
    assert cuda.good("cuPointerGetAttribute", OUT, 1, address) == context
    assert cuda.good("cuPointerGetAttribute", Out(4), 2, address) == pack("I", 2)
    assert cuda.good("cuPointerGetAttribute", Out(4), 2, host) == pack("I", 1)
    assert cuda.good("cuPointerGetAttribute", OUT, 12, address + 1) == 3 * MIB
    assert cuda.cu("cuPointerGetAttribute", OUT, 4, address)[0] == "INVALID_VALUE"
    assert cuda.cu("cuPointerGetAttribute", OUT, 1, address + 3 * MIB)[0] == "INVALID_VALUE"


def test_memory_is_opened_by_a_handle_in_another_process_and_charged_to_its_owner(
    processes: Processes,
) -> None:
    owner, other = processes.opened(), processes.opened()
    for size in (1000, 10 * MIB):
        address = owner.good("cuMemAlloc_v2", OUT, size)
        owner.ask("write", address, b"content")
        handle = owner.good("cuIpcGetMemHandle", Out(64), address)
        assert owner.cu("cuIpcOpenMemHandle_v2", OUT, Whole(handle), 1)[0] == "INVALID_CONTEXT"
        before = other.free_bytes()
        opened = other.good("cuIpcOpenMemHandle_v2", OUT, Whole(handle), 1)
        assert other.free_bytes() == before
        assert other.ask("read", opened, 8) == b"content\0"
        other.ask("write", opened, b"answer")
        assert owner.ask("read", address, 7) == b"answert"
        other.good("cuIpcCloseMemHandle", opened)
        owner.good("cuMemFree_v2", address)
        assert other.cu("cuIpcOpenMemHandle_v2", OUT, Whole(handle), 1)[0] == "INVALID_HANDLE"
    assert sorted(path.suffix for path in processes.node.with_name("node.gpus.state").iterdir()) == [
        "",
        ".lock",
    ]
