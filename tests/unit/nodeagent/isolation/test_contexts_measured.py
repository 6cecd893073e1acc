"""The cost of a CUDA context as the agent reads it from usage files, whatever tenants write there."""

import struct
from pathlib import Path

from gpushare.nodeagent.isolation.selftest.context_cost import contexts_mib
from gpushare.nodeagent.isolation.storage.files import USAGE, Claimed

MIB = 1 << 20
PAGE = 4096


def container(folder: Path, name: str, *contexts: int) -> tuple[Claimed, Path]:
    """A container of GPUs ``a``, ``b``, … whose library has written these bytes."""
    there = folder / name
    there.mkdir()
    content = bytearray(PAGE * 18)
    struct.pack_into("<QI", content, 0, 0x3167656572617567, 1)
    for number, one in enumerate(contexts):
        struct.pack_into("<Q", content, PAGE * 17 + 64 * number + 8, one)
    (there / USAGE).write_bytes(content)
    more = {chr(ord("a") + number): 1024 for number in range(1, len(contexts))}
    return Claimed(f"default/{name}", f"u-{name}", "c", "a", 1024, "ids", more=more), there


def test_it_is_known_by_gpu_rounded_up_from_the_first_container_on(tmp_path: Path) -> None:
    assert contexts_mib([container(tmp_path, "new", 0)]) == {}
    one = container(tmp_path, "one", 518 * MIB, 110 * MIB - 1)
    assert contexts_mib([one]) == {"a": 518, "b": 110}


def test_the_minimum_counts_so_that_exaggerated_values_are_overruled(tmp_path: Path) -> None:
    some = [
        container(tmp_path, "liar", 2000 * MIB),
        container(tmp_path, "honest", 518 * MIB),
        container(tmp_path, "new", 0),
    ]
    assert contexts_mib(some) == {"a": 518}


def test_implausible_values_and_broken_files_are_ignored(tmp_path: Path) -> None:
    some = [container(tmp_path, "little", 1), container(tmp_path, "much", 2**64 - 1)]
    claimed, folder = container(tmp_path, "cut", 518 * MIB)
    (folder / USAGE).write_bytes(b"\xff" * 100)
    assert contexts_mib([*some, (claimed, folder), (claimed, tmp_path / "gone")]) == {}
