"""Memory that programs share: charged to a container once, as long as one of its programs has it."""

import random

import pytest

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import driver_used_mib, run_tenant
from tests.integration.isolation.talking import Talker, talkers

OUT_OF_MEMORY = 2
KINDS = ["handle", "ipc"]


def made(kind: str, maker: Talker, mib: int) -> tuple[int, bytes | int]:
    """The maker's memory, and the handle by which others open it."""
    if kind == "ipc":
        address = maker.good(f"[x if isinstance(x, int) else x.value for x in take('plain', {mib} * MIB)]")
        return address, maker(f"ipc_handle({address})")
    handle = maker.good(f"make({mib})")
    return handle, maker(f"export({handle})")


def joined(maker: Talker, shared: bytes | int, other: Talker) -> tuple[int, int]:
    """The result, and the other program's memory."""
    if isinstance(shared, bytes):
        result, held = other(f"ipc_open({shared!r})")
    else:
        file = maker.lend(shared, other)
        result, held = other(f"take_in({file})")
        other(f"os.close({file})")
    return result, held


def finish(kind: str, maker: Talker, shared: bytes | int) -> None:
    """The maker has handed it out to everyone who is to have it."""
    if kind == "handle":
        maker(f"os.close({shared})")


def release(kind: str, program: Talker, held: int, by_maker: bool) -> None:
    if kind == "handle":
        program(f"let_go({held})")
    else:
        program(f"give('plain', c_uint64({held}))" if by_maker else f"ipc_close({held})")


@pytest.mark.parametrize("order", ["release, close", "close, release"])
def test_memory_that_is_exported_imported_and_released_in_a_loop_is_refused_at_the_limit(
    order: str, container: LimitedContainer
) -> None:
    """10,240 MiB under a limit of 2,048 on an H200, before (docs/measurements/2026-11-h200.md)."""
    here = container(2154)
    with talkers(here) as (program,):
        base, held = program.used(), []
        while True:
            result, handle = program("make(256)")
            if result:
                break
            file = program(f"export({handle})")
            held.append(program.good(f"take_in({file})"))
            assert program.used() == base + 256 * len(held)
            for step in order.split(", "):
                program(f"let_go({handle})" if step == "release" else f"os.close({file})")
        assert result == OUT_OF_MEMORY
        assert program("info()[0]") < 256
        for handle in held:
            program(f"let_go({handle})")
        assert program.used() == base


@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_a_container_share_what_would_not_fit_for_each_of_them(
    kind: str, container: LimitedContainer
) -> None:
    here = container(3000)
    with talkers(here, here, here) as (maker, other, third):
        base = maker.used()
        memory, shared = made(kind, maker, 1200)
        held = [joined(maker, shared, each) for each in (other, third)]
        finish(kind, maker, shared)
        assert [result for result, _ in held] == [0, 0]
        assert maker.used() == third.used() == base + 1200
        release(kind, maker, memory, by_maker=True)
        release(kind, other, held[0][1], by_maker=False)
        assert maker.used() == base + 1200
        assert maker("take('plain', 1200 * MIB)[0]") == OUT_OF_MEMORY
        release(kind, third, held[1][1], by_maker=False)
        assert maker.used() == base


@pytest.mark.parametrize("kind", KINDS)
def test_shared_memory_of_a_dead_process_stays_charged_while_another_has_it_open(
    kind: str, container: LimitedContainer
) -> None:
    here = container(3000)
    with talkers(here, here, here) as (maker, other, watcher):
        context = watcher.used() // 3
        _, shared = made(kind, maker, 1000)
        assert joined(maker, shared, other)[0] == 0
        maker.end(kill=True)
        assert watcher.used() == 2 * context + 1000
        other.end(kill=True)
        assert watcher.used() == context
        assert watcher("take('plain', 2000 * MIB)[0]") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_another_container_is_charged_for_what_it_has_of_this_one(
    kind: str, container: LimitedContainer
) -> None:
    here, there = container(2000), container(1500)
    with talkers(here, there, there) as (maker, other, third):
        mine, theirs = maker.used(), other.used()
        memory, shared = made(kind, maker, 800)
        held = [joined(maker, shared, each) for each in (other, third)]
        assert [result for result, _ in held] == [0, 0]
        assert (maker.used(), other.used()) == (mine + 800, theirs + 800)
        _, more = made(kind, maker, 600)
        assert joined(maker, more, other)[0] == OUT_OF_MEMORY
        assert other.used() == theirs + 800
        finish(kind, maker, shared)
        release(kind, maker, memory, by_maker=True)
        assert (maker.used(), other.used()) == (mine + 600, theirs + 800)
        release(kind, other, held[0][1], by_maker=False)
        assert third.used() == theirs + 800
        release(kind, third, held[1][1], by_maker=False)
        assert third.used() == theirs


def test_memory_kept_only_by_a_descriptor_is_charged_until_it_is_closed(container: LimitedContainer) -> None:
    here = container()
    with talkers(here, here) as (maker, other):
        base = maker.used()
        handle, file = made("handle", maker, 500)
        maker(f"let_go({handle})")
        assert maker.used() == base + 500
        assert maker("take('plain', 1500 * MIB)[0]") == OUT_OF_MEMORY
        maker(f"os.close({file})")
        assert maker("take('plain', 1500 * MIB)[0]") == 0
        assert other.used() == base + 1500


def test_a_mapping_alone_keeps_imported_memory_charged(container: LimitedContainer) -> None:
    here = container()
    with talkers(here, here) as (maker, other):
        base = maker.used()
        handle, file = made("handle", maker, 64)
        result, held = joined(maker, file, other)
        assert result == 0
        address = other.good(f"put_at({held}, 64)")
        finish("handle", maker, file)
        maker(f"let_go({handle})")
        other(f"let_go({held})")
        assert maker.used() == base + 64
        other(f"must('cuMemUnmap', c_uint64({address}), c_size_t(64 * MIB))")
        assert maker.used() == base


def test_memory_exported_without_the_library_is_charged_when_it_is_mapped(
    container: LimitedContainer,
) -> None:
    here = container(1000)
    bare = Talker(here, bare=True)
    try:
        with talkers(here) as (program,):
            base = program.used()
            held = []
            for _ in range(2):
                _, file = made("handle", bare, 600)
                result, imported = joined(bare, file, program)
                assert (result, program.used()) == (0, base)
                held.append(imported)
            assert program.good(f"put_at({held[0]}, 600)")
            assert program.used() == base + 600
            assert program(f"put_at({held[1]}, 600)[0]") == OUT_OF_MEMORY
    finally:
        bare.end(kill=True)


def test_a_larger_mapping_of_memory_exported_without_the_library_is_charged_as_well(
    container: LimitedContainer,
) -> None:
    here = container(1000)
    bare = Talker(here, bare=True)
    try:
        with talkers(here) as (program,):
            base = program.used()
            _, file = made("handle", bare, 600)
            held = joined(bare, file, program)[1]
            program(f"address = put_at({held}, 600)[1]")
            program("must('cuMemUnmap', c_uint64(address), c_size_t(600 * MIB))")
            program(f"let_go({held})")
            assert program.used() == base
            held = joined(bare, file, program)[1]
            small = program.good(f"put_at({held}, 2)")
            assert program.used() == base + 2
            assert program.good(f"put_at({held}, 600)")
            assert program.used() == base + 600
            program(f"must('cuMemUnmap', c_uint64({small}), c_size_t(2 * MIB))")
            assert program.used() == base + 600
            _, file = made("handle", bare, 600)
            held = joined(bare, file, program)[1]
            assert program.good(f"put_at({held}, 2)")
            assert program(f"put_at({held}, 600)[0]") == OUT_OF_MEMORY
            assert program.used() == base + 602
    finally:
        bare.end(kill=True)


@pytest.mark.parametrize("size", [1000, 300_000, 3 << 20])
def test_opened_memory_counts_whole_pages_and_ends_with_the_context(
    size: int, container: LimitedContainer
) -> None:
    here = container()
    with talkers(here, here) as (maker, other):
        base = maker.used()
        address = maker.good(f"[x if isinstance(x, int) else x.value for x in take('plain', {size})]")
        pages = (size + (2 << 20) - 1) // (2 << 20) * 2
        shared = maker(f"ipc_handle({address})")
        other("first = context()")
        assert joined(maker, shared, other)[0] == 0
        assert joined(maker, shared, other)[0] == 0
        context = base // 2
        assert maker.used() == base + pages + context
        maker(f"give('plain', c_uint64({address}))")
        assert maker.used() == base + pages + context
        other("must('cuCtxDestroy_v2', first)")
        assert maker.used() == base


def test_shared_memory_beyond_the_available_slots_is_charged_as_well(
    container: LimitedContainer,
) -> None:
    run_tenant(
        container(8000),
        """
import os
context()
base, address = used(), c_uint64()
must("cuMemAddressReserve", byref(address), c_size_t(1200 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
exported = AllocationProperties(type=1, handles=1, location=Location(1, 0))
for count in range(600):
    handle, file, again = c_uint64(), c_int(), c_uint64()
    must("cuMemCreate", byref(handle), c_size_t(2 * MIB), byref(exported), c_uint64(0))
    must("cuMemExportToShareableHandle", byref(file), handle, 1, c_uint64(0))
    must("cuMemImportFromShareableHandle", byref(again), c_void_p(file.value), 1)
    must("cuMemMap", c_uint64(address.value + 2 * MIB * count), c_size_t(2 * MIB), c_size_t(0), again, c_uint64(0))
    must("cuMemRelease", handle)
    os.close(file.value)
assert used() - base == 1200, used() - base
""",
    )


@pytest.mark.parametrize("seed", range(3))
def test_random_use_of_shared_memory_is_charged_what_the_driver_counts(
    seed: int, container: LimitedContainer
) -> None:
    dice = random.Random(seed)
    here = container(12000)
    with talkers(*[here] * 5) as (watcher, *programs):
        holders: dict[Talker, list[tuple[str, int, bool]]] = {program: [] for program in programs}
        for _ in range(40):
            living = list(holders)
            maker, act = dice.choice(living), dice.randrange(10)
            if act < 5:
                kind = dice.choice(KINDS)
                memory, shared = made(kind, maker, dice.choice([2, 64, 300]))
                holders[maker].append((kind, memory, True))
                for other in living:
                    if dice.randrange(2) and (kind == "handle" or other is not maker):
                        result, held = joined(maker, shared, other)
                        assert result == 0
                        holders[other].append((kind, held, False))
                finish(kind, maker, shared)
            elif act < 9 and holders[maker]:
                kind, memory, by_maker = holders[maker].pop(dice.randrange(len(holders[maker])))
                release(kind, maker, memory, by_maker)
            elif act == 9 and len(living) > 2:
                maker.end(kill=True)
                del holders[maker]
            assert watcher.used() == driver_used_mib(here.node)
        for program in holders:
            program.end(kill=True)
        assert watcher.used() == driver_used_mib(here.node) < 1000


def test_an_allocation_of_another_programs_pool_is_charged_to_the_importer_as_well(
    container: LimitedContainer,
) -> None:
    here = container(1000)
    with talkers(here, here) as (maker, other):
        base = maker.used()
        for line in (
            "pool, piece, file, data = c_void_p(), c_uint64(), c_int(), (ctypes.c_ubyte * 64)()",
            "properties = PoolProperties(type=1, handles=1, location=Location(1, 0))",
            "must('cuMemPoolCreate', byref(pool), byref(properties))",
            "must('cuMemAllocFromPoolAsync', byref(piece), c_size_t(200 * MIB), pool, None)",
            "must('cuMemPoolExportToShareableHandle', byref(file), pool, 1, c_uint64(0))",
            "must('cuMemPoolExportPointer', data, piece)",
        ):
            maker(line)
        assert maker.used() == base + 200
        data = maker("bytes(data)")
        other("pool, piece, more = c_void_p(), c_uint64(), c_uint64()")
        taken_in = "call('cuMemPoolImportPointer', byref({}), pool, ctypes.create_string_buffer({}, 64))"
        file = maker.lend(maker("file.value"), other)
        other(f"must('cuMemPoolImportFromShareableHandle', byref(pool), c_void_p({file}), 1, c_uint64(0))")
        assert other(taken_in.format("piece", data)) == 0
        assert maker.used() == base + 400
        assert other(taken_in.format("more", data)) == OUT_OF_MEMORY
        maker("give('from_pool', (piece, pool))")
        assert maker.used() == base + 200
        other("must('cuMemFree_v2', piece)")
        assert maker.used() == base
