"""Ways to the driver from a container with the shipped libraries, for both ways of injecting them:
the limit holds.

Ways that bypass it are in test_attacks_watched.py.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.integration.isolation.placed import (
    AS_TENANT,
    OVER,
    SLICE_MIB,
    WAYS,
    Way,
    allocated_container,
    compiled,
    must,
    needs_root,
    run,
)
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import Container

REACH = Path(__file__).with_name("reach.c")
#: Refused, by a library that reports the slice; granted.
REFUSED, GRANTED = f"2 {SLICE_MIB}\n", f"0 {SLICE_MIB}\n"
#: A launcher without a loader, as programs in Go and the like are: it starts the program of its arguments.
LAUNCHER = """
#include <unistd.h>
int main(int count, char **arguments) { (void)count; return execv(arguments[1], arguments + 1); }
"""
#: How tenants' programs look for the driver: by its name, or by its path.
NAMED, PLACED = "libcuda.so.1", "/run/system/libcuda.so.1"
#: The name of a compiler's link, by which numba opens it.
LINK = "libcuda.so"
LINKED = """
#include <stdio.h>
#include <stddef.h>
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);
int main(void)
{
    unsigned long long address;
    size_t free_bytes, total_bytes;
    void *context;
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemGetInfo_v2(&free_bytes, &total_bytes))
        return 1;
    printf("%d %zu\\n", cuMemAlloc_v2(&address, (size_t)4096 << 20), total_bytes >> 20);
    return 0;
}
"""

pytestmark = needs_root
both_ways = pytest.mark.parametrize("way", WAYS)
#: With /etc/ld.so.preload it bypasses the limit.
in_place_alone = pytest.mark.parametrize("way", ["in place"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not tmp_path, which only its owner may read: with the files of the fake driver that other users need."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        (Path(made) / "node.gpus.state").mkdir()
        (Path(made) / "node.gpus.state").chmod(0o1777)
        yield Path(made)


@pytest.fixture
def here(folder: Path) -> Container:
    node = gpus.preset("v100-16160", "n1")
    gpus.write(folder / "node.gpus", node)
    return allocated_container(folder, node)


def brought(program: Path, mode: str = "755") -> str:
    """A piece of shell that puts the program into the container, as /run/program."""
    return f"cp {program} /run/program && chmod {mode} /run/program"


@both_ways
@pytest.mark.parametrize("how", ["plain", "deepbind"])
@pytest.mark.parametrize("name", [NAMED, LINK])
def test_by_its_name(way: str, how: str, name: str, here: Container, folder: Path) -> None:
    reach = compiled(folder / "programs", REACH)
    for mib, expected in ((4096, REFUSED), (1500, GRANTED)):
        assert must(run(here, Way(way), folder, reach, how, name, str(mib))) == expected


@both_ways
@pytest.mark.parametrize("name", ["libnvidia-ml.so.1", "libnvidia-ml.so"])
def test_management_by_its_name(way: str, name: str, here: Container, folder: Path) -> None:
    totals = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
print(memory[0] >> 20)
"""
    assert must(run(here, Way(way), folder, sys.executable, "-c", totals, name)) == f"{SLICE_MIB}\n"


@both_ways
def test_linked_to_by_its_file(way: str, here: Container, folder: Path) -> None:
    linked = compiled(
        folder / "programs", LINKED, f"-L{fakegpu.BUILT}", "-Wl,--no-as-needed", "-l:libcuda.so.1"
    )
    assert must(run(here, Way(way), folder, linked)) == REFUSED


@in_place_alone
def test_by_its_full_path(way: str, here: Container, folder: Path) -> None:
    reach = compiled(folder / "programs", REACH)
    assert must(run(here, Way(way), folder, reach, "plain", PLACED, "4096")) == REFUSED


@in_place_alone
def test_in_a_namespace_of_the_loader(way: str, here: Container, folder: Path) -> None:
    reach = compiled(folder / "programs", REACH)
    assert must(run(here, Way(way), folder, reach, "apart", NAMED, "4096")) == REFUSED


@in_place_alone
def test_a_second_copy_of_the_library_in_a_process_counts_together_with_the_first(
    way: str, here: Container, folder: Path
) -> None:
    again = """
import ctypes
libc = ctypes.CDLL(None)
libc.dlmopen.restype = c_void_p
context()
assert take("plain", 1300 * MIB)[0] == 0
other = ctypes.CDLL("libcuda.so.1", handle=libc.dlmopen(-1, b"libcuda.so.1", 2))
tenant.cuda = other
must("cuInit", 0)
made = c_void_p()
assert call("cuCtxCreate_v2", byref(made), 0, 0) == 0
assert take("plain", 500 * MIB)[0] == OUT_OF_MEMORY
"""
    must(run(here, Way(way), folder, sys.executable, "-c", AS_TENANT + "import tenant\n" + again))


@both_ways
@pytest.mark.parametrize("spawn", ["subprocess.call", "posix_spawn"])
def test_by_a_program_that_another_one_spawned_while_it_held_memory(
    way: str, spawn: str, here: Container, folder: Path
) -> None:
    reach = compiled(folder / "programs", REACH)
    # subprocess starts programs with vfork.
    starts = {
        "subprocess.call": f"assert subprocess.call([{str(reach)!r}, 'plain', {NAMED!r}, '500']) == 0",
        "posix_spawn": f"""
child = os.posix_spawn({str(reach)!r}, ["reach", "plain", {NAMED!r}, "500"], os.environ)
assert os.waitpid(child, 0)[1] == 0
""",
    }
    holds = 'import os, subprocess\ncontext()\nassert take("plain", 1300 * MIB)[0] == 0\n'
    output = must(run(here, Way(way), folder, sys.executable, "-c", AS_TENANT + holds + starts[spawn]))
    assert output == REFUSED


@both_ways
@pytest.mark.parametrize("cleared", [False, True])
def test_by_a_statically_linked_launcher(way: str, cleared: bool, here: Container, folder: Path) -> None:
    launcher = compiled(folder / "programs", LAUNCHER, "-static")
    reach = compiled(folder / "programs", REACH)
    empty = ["env", "-i", f"FAKEGPU_NODE={here.node}"] if cleared else []
    # In a real container the loader finds the driver's directory without its environment; here by its path.
    library = PLACED if cleared and way == "in place" else NAMED
    output = must(run(here, Way(way), folder, *empty, launcher, reach, "plain", library, "4096"))
    assert output == REFUSED


@both_ways
def test_with_an_empty_environment(way: str, here: Container, folder: Path) -> None:
    library = PLACED if way == "in place" else NAMED
    empty = ["env", "-i", f"FAKEGPU_NODE={here.node}", f"TENANT_CUDA={library}"]
    must(run(here, Way(way), folder, *empty, sys.executable, "-c", OVER))


@both_ways
def test_as_another_user(way: str, here: Container, folder: Path) -> None:
    reach = compiled(folder / "programs", REACH)
    unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for mib, expected in ((4096, REFUSED), (1500, GRANTED)):
        result = run(
            here,
            Way(way, before=brought(reach)),
            folder,
            *unprivileged,
            "/run/program",
            "plain",
            NAMED,
            str(mib),
        )
        assert must(result) == expected


@both_ways
def test_by_a_setuid_program_which_ignores_the_environment(way: str, here: Container, folder: Path) -> None:
    reach = compiled(folder / "programs", REACH)
    library = PLACED if way == "in place" else NAMED
    unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    result = run(
        here,
        Way(way, before=brought(reach, "4755")),
        folder,
        *unprivileged,
        *("/run/program", "plain", library, "4096"),
        LD_PRELOAD="/nowhere.so",
    )
    assert must(result) == REFUSED


@both_ways
def test_with_a_forged_environment(way: str, here: Container, folder: Path) -> None:
    """Variables that NVIDIA's runtime, other sharing libraries and ours in tests read; none of them
    sets the amount.
    """
    forged = folder / "forged"
    forged.mkdir()
    (forged / "limits").write_text(here.limits.read_text().replace(f"={SLICE_MIB << 20}", f"={16000 << 20}"))
    (forged / "usage").write_bytes(bytes(here.usage.stat().st_size))
    # Its other libraries find themselves by these names where GPUSHARE_RUN counts.
    (forged / "libgpushare-driver-cuda.so").symlink_to(fakegpu.BUILT / "libcuda.so.1")
    (forged / "libgpushare-driver-nvml.so").symlink_to(fakegpu.BUILT / "libnvidia-ml.so.1")
    reach = compiled(folder / "programs", REACH)
    output = must(
        run(
            here,
            Way(way),
            folder,
            *(reach, "plain", NAMED, "4096"),
            GPUSHARE_RUN=str(forged),
            GPUSHARE_LIMITS=str(forged / "limits"),
            CGPU_DISABLE="true",
            CUDA_DEVICE_MEMORY_LIMIT="16g",
            CUDA_VISIBLE_DEVICES="0",
            NVIDIA_VISIBLE_DEVICES="all",
            NVIDIA_DISABLE_REQUIRE="1",
            LD_BIND_NOW="1",
        )
    )
    assert output == REFUSED
