"""The driver's own limits on the fake driver: the agent sets them, and programs that do not load our
libraries are held to them.
"""

import asyncio
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpushare.api import names
from gpushare.nodeagent.driver.cgroup_memory_limits import NO_LIMIT
from gpushare_playground.gpus import preset
from tests.integration.nodeagent.cluster_objects import NODE, container, decide, node, pod
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.isolating import active
from tests.integration.nodeagent.isolation.limited import (
    CONTAINER,
    cgroup_of,
    directory_of,
    report_containers,
    run_process,
    with_cgroups,
)
from tests.integration.nodeagent.node.test_stand_in_driver import LIBRARY, command, described, library
from tests.integration.nodeagent.scripted_kubelet import Admitted
from tests.integration.nodeagent.scripted_nvml import gpu

MIB = 1 << 20
OUT_OF_MEMORY = 2
NOT_FOUND_BY_OS = pynvml.NVML_ERROR_OPERATING_SYSTEM
UUID = preset("t4", NODE).gpus[0].uuid
#: A PID of no process: above the kernel's maximum.
PIDS = itertools.count((1 << 22) + 1)

pytestmark = pytest.mark.skipif(
    not (LIBRARY / "libcuda.so.1").exists(), reason="needs the stand-in driver's CUDA half"
)

#: Waits for a line, prints the result of creating a context, then allocates on request (MiB), or prints
#: free and total MiB.
PROGRAM = """
import ctypes, sys
sys.stdin.readline()
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
print(cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0), flush=True)
for line in sys.stdin:
    if line == "memory\\n":
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        print(free.value >> 20, total.value >> 20, flush=True)
    else:
        print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(line) << 20)), flush=True)
"""


#: Runs a program as a container's, which sees its own cgroup as the root.
INSIDE = """
read line
exec unshare --cgroup --mount sh -c 'umount "$0" && mount -t cgroup2 none "$0" && exec "$@"' "$FAKEGPU_CGROUPS" "$@"
"""


class Program:
    """A program on GPU 0 that calls the driver and loads no library of ours."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def request(self, line: str) -> list[int]:
        await self.send(line)
        assert self._process.stdout is not None
        return [int(word) for word in (await asyncio.wait_for(self._process.stdout.readline(), 30.0)).split()]

    async def allocate(self, mib: int) -> int:
        return (await self.request(str(mib)))[0]

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await asyncio.wait_for(self._process.communicate(), 15.0)


@pytest.fixture
async def programs(world: World) -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def started(programs: AsyncExitStack, *before: str) -> Program:
    """A program that waits before it does anything."""
    process = await asyncio.create_subprocess_exec(
        *(*before, sys.executable, "-c", PROGRAM),
        env={**os.environ, "LD_LIBRARY_PATH": str(library())},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    program = Program(process)
    programs.push_async_callback(program.end)
    return program


async def begun(world: World, programs: AsyncExitStack, cgroup: str) -> Program:
    program = await started(programs)
    run_process(world, program.pid, cgroup)
    assert await program.request("") == [0]
    return program


async def admitted_pod(world: World, name: str, units: int) -> Admitted:
    made = pod(name, container("c", units))
    decide(made, [replace(gpu(0), uuid=UUID, total_mib=15360)], 0)
    world.api.put_pod(made)
    admitted = await world.kubelet.admit(made)
    run_process(world, next(PIDS), cgroup_of(admitted))  # its first process, which uses no GPU
    report_containers(world, name, c=CONTAINER)
    return admitted


class Nvml:
    """The fake driver's library in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(library() / "libnvidia-ml.so.1"))
        assert self._library.nvmlInit_v2() == 0
        self._handle = ctypes.c_void_p()
        assert self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)) == 0

    def limits(self, cgroup: str) -> tuple[int, int, int]:
        """The call's result, the hard limit, and the usage, in MiB."""
        arguments = pynvml.c_nvmlGetMemoryLimits_v1_t()
        arguments.nameSpace = cgroup.encode()
        result = self._library.nvmlDeviceGetMemoryLimits_v1(self._handle, ctypes.byref(arguments))
        return (
            result,
            arguments.hardLimit if arguments.hardLimit == NO_LIMIT else arguments.hardLimit // MIB,
            (arguments.currentUsed // MIB),
        )

    def set_limit(self, cgroup: str, hard_bytes: int, soft_bytes: int = 0) -> int:
        arguments = pynvml.c_nvmlSetMemoryLimits_v1_t()
        arguments.nameSpace, arguments.softLimit, arguments.hardLimit = (
            cgroup.encode(),
            soft_bytes,
            hard_bytes,
        )
        result: int = self._library.nvmlDeviceSetMemoryLimits_v1(self._handle, ctypes.byref(arguments))
        return result

    def close(self) -> None:
        self._library.nvmlShutdown()


@pytest.fixture
def gpus(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A T4 whose driver has limits by cgroup, and the cgroups for them."""
    root = with_cgroups(world)
    path = described(world, replace(preset("t4", NODE), driver="615.71.05", cuda="13.4"))
    monkeypatch.setenv("FAKEGPU_NODE", str(path))
    monkeypatch.setenv("FAKEGPU_CGROUPS", str(root))
    monkeypatch.setenv("FAKEGPU_PROC", str(world.folder / "proc"))
    return path


@pytest.fixture
def nvml(gpus: Path) -> Iterator[Nvml]:
    opened = Nvml()
    yield opened
    opened.close()


@asynccontextmanager
async def agent(world: World, gpus: Path, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    watch = world.settings.isolation.watch
    if ("nodes", NODE) not in world.api.objects:
        world.api.put("nodes", NODE, node("cgpu"))
    async with command(
        world,
        gpus,
        *("--proc", str(watch.proc), "--cgroups", str(watch.cgroups), "--watchdog-period", "0.1"),
        *("--isolation-dir", str(world.settings.isolation.folder)),
        *("--cdi-dirs", str(world.folder / "cdi"), *more),
    ) as process:
        await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15, "offered", 30.0)
        yield process


async def until_limited(world: World, nvml: Nvml, admitted: Admitted, mib: int) -> None:
    where = directory_of(world, admitted)
    await world.changes.until(lambda: nvml.limits(where)[1] == mib, "limited", 30.0)


async def test_a_program_without_our_library_gets_no_more_than_the_share(
    world: World, gpus: Path, nvml: Nvml, programs: AsyncExitStack
) -> None:
    async with agent(world, gpus, "--isolation", "driver"):
        await world.changes.until(lambda: active(world).startswith("driver (memory only"), "annotated")
        a, b = await admitted_pod(world, "a", 3), await admitted_pod(world, "b", 12)
        await until_limited(world, nvml, a, 3072)
        await until_limited(world, nvml, b, 12288)
        first = await begun(world, programs, cgroup_of(a))
        second = await begun(world, programs, f"{cgroup_of(a)}/inner")
        neighbour = await begun(world, programs, cgroup_of(b))
        assert await first.allocate(2000) == 0
        # The rest of the share, without two contexts and the other process's memory.
        assert await second.request("memory") == [3072 - 2 * 256 - 2000, 3072]
        assert await second.allocate(1000) == OUT_OF_MEMORY
        assert await second.allocate(500) == 0
        assert nvml.limits(directory_of(world, a)) == (0, 3072, 3012)
        assert await neighbour.allocate(12288 - 256) == 0
        assert await neighbour.allocate(2) == OUT_OF_MEMORY
        assert not world.api.reported("GPUMemoryExceeded")


async def test_a_limit_ends_with_its_container_and_applies_to_no_other(
    world: World, gpus: Path, nvml: Nvml, programs: AsyncExitStack
) -> None:
    async with agent(world, gpus, "--isolation", "driver"):
        a = await admitted_pod(world, "a", 3)
        await until_limited(world, nvml, a, 3072)
        program = await begun(world, programs, cgroup_of(a))
        assert await program.allocate(1000) == 0
        await program.end()
        where = directory_of(world, a)
        shutil.rmtree(where)
        for process in (world.folder / "proc").iterdir():  # /proc itself stays: an agent may look right now
            shutil.rmtree(process)
        world.end_pod("a")
        assert nvml.limits(where)[0] == NOT_FOUND_BY_OS
        b = await admitted_pod(world, "b", 5)
        await until_limited(world, nvml, b, 5120)
        run_process(
            world, (1 << 22) + 1, cgroup_of(a)
        )  # recreated by another program; it is no container's now
        assert nvml.limits(where) == (0, NO_LIMIT, 0)
        program = await begun(world, programs, cgroup_of(a))
        assert await program.allocate(8000) == 0


async def test_limits_outlive_a_killed_agent_and_the_next_one_continues(
    world: World, gpus: Path, nvml: Nvml, programs: AsyncExitStack
) -> None:
    async with agent(world, gpus, "--isolation", "driver") as process:
        a = await admitted_pod(world, "a", 3)
        await until_limited(world, nvml, a, 3072)
        process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(process.wait(), 15.0)
    await world.changes.until(world.kubelet.is_alone, "the kubelet has noticed")
    program = await begun(world, programs, cgroup_of(a))
    assert await program.allocate(2900) == OUT_OF_MEMORY
    assert await program.allocate(2800) == 0
    # Meanwhile it is removed.
    assert nvml.set_limit(directory_of(world, a), NO_LIMIT) == 0
    async with agent(world, gpus, "--isolation", "driver"):
        await until_limited(world, nvml, a, 3072)
        assert await program.allocate(100) == OUT_OF_MEMORY
        b = await admitted_pod(world, "b", 2)
        await until_limited(world, nvml, b, 2048)


def enter(cgroup: Path, *pids: int) -> None:
    cgroup.mkdir(parents=True)
    for pid in pids:
        (cgroup / "cgroup.procs").write_text(str(pid))


@pytest.fixture
def kernels_cgroups(world: World, gpus: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cgroup of the kernel's, below the root of version 2, which is mounted where the world's folders would be."""
    root = world.settings.isolation.watch.cgroups
    shutil.rmtree(root)
    root.mkdir()
    if subprocess.run(["mount", "-t", "cgroup2", "none", root], capture_output=True, check=False).returncode:
        pytest.skip("cgroups of version 2 cannot be mounted here; it takes root")
    monkeypatch.delenv("FAKEGPU_PROC")
    made = root / world.folder.name
    try:
        yield made
    finally:
        for folder, _, _ in os.walk(made, topdown=False):
            Path(folder).rmdir()
        subprocess.run(["umount", "--lazy", root], check=True)


async def test_with_real_cgroups_a_container_is_limited_also_in_its_own_cgroup_namespace(
    world: World, kernels_cgroups: Path, gpus: Path, nvml: Nvml
) -> None:
    watch = world.settings.isolation.watch
    world.use(isolation=replace(world.settings.isolation, watch=replace(watch, proc=Path("/proc"))))
    # Killed before their cgroup can be removed.
    async with AsyncExitStack() as programs, agent(world, gpus, "--isolation", "driver"):
        made = pod("a", container("c", 3))
        decide(made, [replace(gpu(0), uuid=UUID, total_mib=15360)], 0)
        world.api.put_pod(made)
        admitted = await world.kubelet.admit(made)
        where = Path(f"{kernels_cgroups}{cgroup_of(admitted)}")
        report_containers(world, "a", c=CONTAINER)
        first, second = await started(programs), await started(programs, "sh", "-c", INSIDE, "sh")
        enter(where, first.pid, second.pid)
        await world.changes.until(lambda: nvml.limits(str(where))[1] == 3072, "limited", 30.0)
        assert await first.request("") == [0]
        await second.send("")  # for the shell
        assert await second.request("") == [0]
        assert await first.allocate(1500) == 0
        assert await second.allocate(1500) == OUT_OF_MEMORY
        assert await second.request("memory") == [3072 - 2 * 256 - 1500, 3072]
        assert await second.allocate(1000) == 0
        assert nvml.limits(str(where)) == (0, 3072, 3012)


async def test_the_driver_limits_programs_that_bypass_our_libraries(
    world: World, gpus: Path, nvml: Nvml, programs: AsyncExitStack
) -> None:
    libraries = LIBRARY.parent / "isolation"
    if not (libraries / "libcuda.so.1").exists():
        pytest.skip("needs the isolation libraries: make isolation")
    driver = world.folder / "driver" / "usr" / "lib64"
    driver.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(LIBRARY / name, driver)
    async with agent(
        world,
        gpus,
        *("--isolation", "auto", "--isolation-library-dir", str(libraries)),
        *("--driver-root", str(world.folder / "driver")),
    ):
        await world.changes.until(
            lambda: "; backed by the driver's own limits): mode cgpu" in active(world), "annotated"
        )
        a = await admitted_pod(world, "a", 3)
        await until_limited(world, nvml, a, 3072)
        program = await begun(world, programs, cgroup_of(a))
        assert await program.allocate(2900) == OUT_OF_MEMORY
        assert await program.allocate(2800) == 0


def test_the_fake_driver_refuses_what_the_driver_would(world: World, nvml: Nvml) -> None:
    root = world.settings.isolation.watch.cgroups
    (root / "a").mkdir()
    where = str(root / "a")
    assert nvml.set_limit(where, MIB, soft_bytes=2 * MIB) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert nvml.set_limit(where, 15361 * MIB) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert nvml.set_limit(str(root / "b"), MIB) == NOT_FOUND_BY_OS
    assert nvml.set_limit(str(root), MIB) == pynvml.NVML_ERROR_NOT_FOUND
    assert nvml.set_limit(str(world.folder), MIB) == pynvml.NVML_ERROR_NOT_FOUND
    assert nvml.limits(where) == (0, NO_LIMIT, 0)
    assert nvml.set_limit(where, 15360 * MIB) == 0
    assert nvml.limits(where) == (0, 15360, 0)
    assert nvml.set_limit(where, NO_LIMIT) == 0
    assert nvml.limits(where) == (0, NO_LIMIT, 0)


def test_an_older_driver_has_no_such_functions(world: World, nvml: Nvml) -> None:
    described(world, preset("t4", NODE))
    assert nvml.limits(str(world.settings.isolation.watch.cgroups))[0] == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert nvml.set_limit(str(world.folder), MIB) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
