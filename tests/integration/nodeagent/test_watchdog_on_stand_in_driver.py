"""A real process on the stand-in driver: the command sees it through NVML and the node's ``/proc``."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare_playground.gpus import preset
from tests.integration.nodeagent.cluster_objects import NODE, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.test_stand_in_driver import LIBRARY, command, described, library

#: Holds 1 GiB of GPU 0 until its input ends.
HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
for result in (
    cuda.cuInit(0),
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)),
):
    if result:
        sys.exit(f"the driver says {result}")
print("held", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def holding(gpus: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER),
        env={**os.environ, "LD_LIBRARY_PATH": str(library()), "FAKEGPU_NODE": str(gpus)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 15.0) == b"held\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.communicate(), 15.0)


def foreign_mib(world: World) -> int:
    text = world.api.annotations("nodes", NODE).get(names.ANN_DEVICES)
    return 0 if text is None else int(json.loads(text)["gpus"][0].get("foreign", 0))


@pytest.mark.skipif(not (LIBRARY / "libcuda.so.1").exists(), reason="needs the stand-in driver's CUDA half")
async def test_a_process_of_the_node_is_seen_and_its_end_too(world: World) -> None:
    world.api.put("nodes", NODE, node("share"))
    gpus = described(world, preset("t4", NODE))
    async with command(world, gpus, "--watchdog-period", "0.1"):
        await world.changes.until(lambda: world.kubelet.is_served(names.GPU_MEM), "served", 30.0)
        assert foreign_mib(world) == 0
        async with holding(gpus) as process:
            await world.changes.until(lambda: foreign_mib(world) > 1024, "seen", 30.0)
            await world.changes.until(lambda: world.api.told("UnmanagedGPUUsage"), "told")
            assert f"{process.pid} (in no pod)" in world.api.told("UnmanagedGPUUsage")[0]["note"]
        await world.changes.until(lambda: foreign_mib(world) == 0, "its end, too", 40.0)
