"""``kill -9`` of the node agent while pods are created and deleted: the records keep matching what the
containers have.
"""

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.nodeagent.isolation.storage.directories import USAGE_BYTES
from tests.integration.nodeagent.cluster_objects import NODE, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.isolating import DELIVERED
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed, Admitted
from tests.randomized import rounds, seeds

ROOT = Path(__file__).parents[4]
GPU_UNITS = 15


def chance(seed: int) -> random.Random:
    """The same choices in every ``make test``, others in ``make soak``."""
    (drawn,) = seeds(1)
    return random.Random(drawn + seed)


class AgentProcess:
    def __init__(self, world: World, *options: str) -> None:
        self._world = world
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        kubelet = self._world.kubelet
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "tests/integration/nodeagent/lifecycle/agent_process.py"),
            *(
                self._world.api.url,
                str(kubelet.plugins_dir),
                str(kubelet.resources_socket),
                "2",
                *self._options,
            ),
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        await self._world.changes.until(lambda: kubelet.is_served(names.GPU_MEM), "the process serves", 30.0)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        code = await asyncio.wait_for(self._process.wait(), 60.0)
        await self._world.changes.until(lambda: not self._world.kubelet.is_served(names.GPU_MEM))
        return code


def limits_of(admitted: Admitted) -> Path:
    """The limits file on the host that the container's response mounts."""
    paths = {one.container_path: Path(one.host_path) for one in admitted.answers["c"].mounts}
    return paths["/run/gpushare/limits"]


@pytest.mark.randomized
async def test_isolated_containers_keep_their_files_over_kills_and_nothing_else_is_left(world: World) -> None:
    rng = chance(5)
    for folder in ("image", "driver/usr/lib64"):
        (world.folder / folder).mkdir(parents=True)
        for library in DELIVERED:
            (world.folder / folder / library).write_text(library)
    world.api.put("nodes", NODE, node("cgpu"))
    agent = AgentProcess(world, "1GiB", str(world.folder))
    await agent.start()
    living: list[str] = []
    for number in range(rounds(14, soak=24)):
        name = f"p{number}"
        if len(living) == 6:
            world.end_pod(living.pop(rng.randrange(len(living))))
        admission = asyncio.create_task(world.run_pod(name, 2, on=number % 2))
        killed = number % 4 == 2
        if killed:
            for _ in range(rng.randrange(150)):
                await asyncio.sleep(0)
            await agent.end()
        try:
            await admission
            living.append(name)
        except AdmissionFailed:
            world.api.drop("pods", f"default/{name}")
        if killed:
            await agent.start()
    used = {name: limits_of(world.kubelet.admitted[f"default/{name}"]) for name in living}
    for path in used.values():
        assert f"memory_bytes={2048 << 20}" in path.read_text()
        assert (path.parent / "usage").stat().st_size == USAGE_BYTES
    await world.changes.until(
        lambda: (
            {one.name for one in (world.folder / "containers").iterdir()}
            == {path.parent.name for path in used.values()}
        ),
        "only what is used is left",
        30.0,
    )
    assert await agent.end(signal.SIGTERM) == 0
    assert all(path.is_file() for path in used.values())
