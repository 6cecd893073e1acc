"""The isolation measurements next to another library, as on the page; the library only records its environment."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.assigned import commands_typed_by
from tests.docs.typist import Typist

#: In place of HAMi-core: records, for each program that loads it, the variables that HAMi-core would use.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void loaded(void)
{
    FILE *record = fopen(getenv("RECORD"), "a");
    if (record) {
        fprintf(record, "%s %s %s %s\n", getenv("CUDA_DEVICE_MEMORY_LIMIT"), getenv("CUDA_DEVICE_SM_LIMIT"),
                getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), getenv("CUDA_REDIRECT"));
        fclose(record);
    }
}
"""
#: A row that appears after some have been measured; the whole measurement would take minutes.
ENOUGH = "by cuMemAllocPitch"


@pytest.fixture
def hami(tmp_path: Path) -> Path:
    """The folder of that library."""
    folder = tmp_path / "hami"
    folder.mkdir()
    compiler = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-x", "c", "-"]
    subprocess.run([*compiler, "-o", folder / "libvgpu.so"], input=LIBRARY, text=True, check=True, timeout=60)
    return folder


async def test_another_library_is_loaded_into_each_container_with_that_containers_limits(
    tmp_path: Path, hami: Path
) -> None:
    record = tmp_path / "record"
    here = {"HAMI": str(hami), "RECORD": str(record), "ARGS": "memory --quick"}

    [command] = commands_typed_by(__file__, "docs/developer/isolation.md")
    code, out = await Typist({**os.environ, **here}, tmp_path).run(command.text, until=ENOUGH)

    assert code == 0, out
    assert "compared with: HAMi-core" in out
    # Ours enforces the limit, a library that limits nothing does not, and the table has both.
    assert re.search(r"by cuMemAlloc +2154 never more +2154\.0 MiB \| +16160\.0 ahead\n", out), out
    memory, percent, cache, itself = record.read_text().splitlines()[0].split()
    assert (memory, percent, itself) == ("2154m", "100", f"{hami}/libvgpu.so")
    assert re.search(r"/containers/c/cache$", cache)
