"""Memory that several processes hold.

An H200 with driver 580 retained memory that was exported, imported again and released by its creator: 10,240 MiB under a limit of 2,048
(docs/measurements/2026-11-h200.md). NVIDIA's open kernel modules show to whom the driver charges it: one holder at a time, and the
next one once that one releases it (``memDestructCommon`` and ``_gpuCollectMemInfo``).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.cuda_process import MIB, OUT, CudaProcess, Out, Processes, Whole, pack

CONTEXT = 64
EXPORTED = pack("iiiiQQ", 1, 1, 1, 0, 0, 0)
#: Kinds of shared memory; they differ in how a process exports, imports and releases it.
KINDS = ["handle", "ipc"]


@pytest.fixture
def processes(described: Callable[..., None], tmp_path: Path) -> Iterator[Processes]:
    node = gpus.preset("v100-16160", "n1")
    described(replace(node, gpus=(replace(node.gpus[0], context_mib=CONTEXT),)))
    with Processes(tmp_path / "node.gpus").closing() as started:
        yield started


def listed() -> dict[int, int]:
    """MiB in addition to the context, by process."""
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    return {process.pid: process.usedGpuMemory // MIB - CONTEXT for process in found}


def made(kind: str, maker: CudaProcess, mib: int = 64) -> tuple[int, bytes | int]:
    """Memory, and what others import it by: an IPC handle, or a descriptor of the maker's."""
    if kind == "ipc":
        address = maker.good("cuMemAlloc_v2", OUT, mib * MIB)
        return address, maker.good("cuIpcGetMemHandle", Out(64), address)
    handle = maker.good("cuMemCreate", OUT, mib * MIB, EXPORTED, 0)
    file = maker.good("cuMemExportToShareableHandle", Out(4), handle, 1, 0)
    return handle, int.from_bytes(file, "little")


def joined(shared: bytes | int, maker: CudaProcess, other: CudaProcess) -> int:
    if isinstance(shared, bytes):
        return int(other.good("cuIpcOpenMemHandle_v2", OUT, Whole(shared), 1))
    file = other.receive(maker.lend(shared))
    held = int(other.good("cuMemImportFromShareableHandle", OUT, file, 1))
    other.ask("close", file)
    return held


def release(kind: str, process: CudaProcess, held: int, by_maker: bool) -> None:
    if kind == "handle":
        process.good("cuMemRelease", held)
    else:
        process.good("cuMemFree_v2" if by_maker else "cuIpcCloseMemHandle", held)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_lives_until_its_last_holder_releases_it_and_is_charged_to_one_of_them(
    kind: str, processes: Processes
) -> None:
    maker, other, third = processes.opened(), processes.opened(), processes.opened()
    memory, shared = made(kind, maker)
    held = [joined(shared, maker, each) for each in (other, third)]
    if isinstance(shared, int):
        maker.ask("close", shared)
    free = maker.free_bytes()
    assert listed() == {maker.pid: 64, other.pid: 0, third.pid: 0}
    release(kind, maker, memory, by_maker=True)
    assert (listed()[maker.pid], sum(listed().values()), maker.free_bytes()) == (0, 64, free)
    release(kind, other, held[0], by_maker=False)
    assert (listed(), maker.free_bytes()) == ({maker.pid: 0, other.pid: 0, third.pid: 64}, free)
    release(kind, third, held[1], by_maker=False)
    assert (set(listed().values()), maker.free_bytes()) == ({0}, free + 64 * MIB)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_makers_memory_is_charged_to_its_holder(kind: str, processes: Processes) -> None:
    maker, other, watcher = processes.opened(), processes.opened(), processes.opened()
    _, shared = made(kind, maker)
    held = joined(shared, maker, other)
    maker.kill()
    free = watcher.free_bytes()
    assert listed() == {other.pid: 64, watcher.pid: 0}
    release(kind, other, held, by_maker=False)
    assert watcher.free_bytes() == free + 64 * MIB
    _, shared = made(kind, other)
    assert joined(shared, other, watcher)
    other.kill()
    assert (watcher.free_bytes(), listed()) == (free + CONTEXT * MIB, {watcher.pid: 64})


def test_memory_imported_by_its_own_maker_is_held_by_the_second_handle(processes: Processes) -> None:
    maker = processes.opened()
    free, held = maker.free_bytes(), []
    for count in range(1, 4):
        handle, file = made("handle", maker)
        held.append(maker.good("cuMemImportFromShareableHandle", OUT, file, 1))
        maker.ask("close", file)
        maker.good("cuMemRelease", handle)
        assert maker.free_bytes() == free - count * 64 * MIB
    for handle in held:
        maker.good("cuMemRelease", handle)
    assert maker.free_bytes() == free


def test_a_descriptor_alone_holds_memory_and_suffices_to_import_it(processes: Processes) -> None:
    maker, other = processes.opened(), processes.opened()
    free = maker.free_bytes()
    handle, file = made("handle", maker)
    maker.good("cuMemRelease", handle)
    assert maker.free_bytes() == free - 64 * MIB
    held = joined(file, maker, other)
    maker.ask("close", file)
    assert listed() == {maker.pid: 0, other.pid: 64}
    other.good("cuMemRelease", held)
    handle, file = made("handle", maker)
    maker.good("cuMemRelease", handle)
    maker.ask("close", file)
    assert maker.free_bytes() == free


def test_memory_held_only_by_a_dead_makers_descriptor_is_imported_and_freed_completely(
    processes: Processes,
) -> None:
    maker, other = processes.opened(), processes.opened()
    free = other.free_bytes()
    _, shared = made("handle", maker)
    assert isinstance(shared, int)
    file = other.receive(maker.lend(shared))
    maker.kill()
    assert other.free_bytes() == free + CONTEXT * MIB
    held = other.good("cuMemImportFromShareableHandle", OUT, file, 1)
    other.ask("close", file)
    assert (other.free_bytes(), listed()) == (free, {other.pid: 64})
    other.good("cuMemRelease", held)
    other.close()
    left = processes.node.with_name("node.gpus.state").iterdir()
    assert sorted(path.suffix for path in left) == ["", ".lock"]


def test_a_piece_of_a_pool_is_imported_from_another_process(processes: Processes) -> None:
    maker, other = processes.opened(), processes.opened()
    pool = maker.good("cuMemPoolCreate", OUT, pack("iiiiQQ", 1, 1, 1, 0, 0, 0) + bytes(56))
    piece = maker.good("cuMemAllocFromPoolAsync", OUT, 64 * MIB, pool, 0)
    maker.ask("write", piece, b"content")
    file = int.from_bytes(maker.good("cuMemPoolExportToShareableHandle", Out(4), pool, 1, 0), "little")
    exported = maker.good("cuMemPoolExportPointer", Out(64), piece)
    imported = other.good("cuMemPoolImportFromShareableHandle", OUT, other.receive(maker.lend(file)), 1, 0)
    assert other.cu("cuMemAllocFromPoolAsync", OUT, MIB, imported, 0)[0] == "INVALID_VALUE"
    assert maker.cu("cuMemPoolImportPointer", OUT, pool, exported)[0] == "INVALID_VALUE"
    held = [other.good("cuMemPoolImportPointer", OUT, imported, exported) for _ in range(2)]
    assert other.ask("read", held[0], 7) == b"content"
    other.good("cuMemFree_v2", held[0])
    maker.good("cuMemFreeAsync", piece, 0)
    maker.good("cuCtxSynchronize")
    assert listed() == {maker.pid: 0, other.pid: 64}
    other.good("cuMemFreeAsync", held[1], 0)
    other.good("cuCtxSynchronize")
    assert listed() == {maker.pid: 0, other.pid: 0}
