"""A new agent next to the old one, as in a rolling update that starts it first."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import NODE, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.node.test_condition import ready

ROOT = Path(__file__).parents[4]


class Agents:
    """Agents on one node, one after the other, each a process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, *unit: str) -> asyncio.subprocess.Process:
        """Start another agent; returns when it has registered with the kubelet."""
        kubelet, before = self._world.kubelet, len(self._world.kubelet.registrations)
        process = await self.begin(*unit)
        await self._world.changes.until(
            lambda: len(kubelet.registrations) > before and kubelet.is_served(names.GPU_MEM),
            "the process serves",
            30.0,
        )
        return process

    async def begin(self, *unit: str) -> asyncio.subprocess.Process:
        """Start another agent, still unknown to the others when this returns."""
        kubelet = self._world.kubelet
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                str(ROOT / "tests/integration/nodeagent/lifecycle/agent_process.py"),
                self._world.api.url,
            ),
            *(str(kubelet.plugins_dir), str(kubelet.resources_socket), "2", *unit),
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        self.processes.append(process)
        return process

    async def end(self, process: asyncio.subprocess.Process, number: signal.Signals = signal.SIGTERM) -> int:
        process.send_signal(number)
        return await asyncio.wait_for(process.wait(), 60.0)

    async def close(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.fixture(params=["v1.36.3", "v1.37.2"])
async def agents(world: World, request: pytest.FixtureRequest) -> AsyncIterator[Agents]:
    """On a kubelet that takes the end of any list for the last agent's, and on one that distinguishes them."""
    world.kubelet.apart = request.param == "v1.37.2"
    world.api.put("nodes", NODE, node("share", nodeInfo={"kubeletVersion": request.param}))
    made = Agents(world)
    yield made
    await made.close()


def sockets(world: World) -> set[str]:
    return {path.name.rpartition("-")[2] for path in world.kubelet.plugins_dir.glob("gpushare-*.sock")}


async def test_resources_stay_advertised_however_often_the_agent_is_replaced(
    world: World, agents: Agents
) -> None:
    agent = await agents.start()
    await world.run_pod("p0", 1, on=0)
    for number in range(1, 4):
        following = await agents.start()
        assert await agents.end(agent) == 0
        await world.run_pod(f"p{number}", 1, on=1)
        agent = following
    assert world.kubelet.disconnections == []
    assert world.kubelet.registrations == [names.GPU_MEM] * 4
    assert world.kubelet.allocatable(names.GPU_MEM) == 30
    await world.until_assigned("p0", "p1", "p2", "p3")
    assert len(sockets(world)) == 1
    # The last one has no successor to hand over to.
    await agents.end(agent)
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 0, "gone")
    assert sockets(world) == set()


async def test_a_pod_admitted_while_the_old_agent_stops_is_served(world: World, agents: Agents) -> None:
    old = await agents.start()
    await agents.start()
    leaving = asyncio.create_task(agents.end(old))
    admitted = 0
    while not leaving.done():
        await world.run_pod(f"p{admitted}", 1, on=admitted % 2)
        world.end_pod(f"p{admitted}")
        admitted += 1
    assert await leaving == 0
    assert admitted
    assert world.kubelet.disconnections == []


async def test_a_stopping_agent_waits_for_a_successor_that_does_not_serve_yet(
    world: World, agents: Agents
) -> None:
    old = await agents.start()
    new = await agents.begin()
    # By then it has noticed the old one.
    await world.changes.until(
        lambda: len([*world.kubelet.plugins_dir.glob("gpushare-mem-*.sock")]) == 2,
        "it is there",
    )
    assert await agents.end(old) == 0
    await world.changes.until(lambda: len(world.kubelet.registrations) == 2, "it serves")
    await world.run_pod("a", 3, on=1)
    assert world.kubelet.disconnections == []
    assert new.returncode is None


async def test_a_stopping_agent_hands_over_to_one_that_starts_during_its_last_checks(
    world: World, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is not ready is stopped before the next one is started."""
    isolation = world.folder / "gpushare" / "containers"
    isolation.mkdir(parents=True)
    await world.start()
    agent = world.agent

    async def rights_stay(_ask: object, _clock: object) -> bool:
        await agents.start()
        return False

    left_open: list[Any] = []
    monkeypatch.setattr("gpushare.nodeagent.agent.permissions_are_gone", rights_stay)
    monkeypatch.setattr("gpushare.nodeagent.deviceplugin.registration._LEFT_OPEN", left_open)
    assert await agent.leave()
    assert world.kubelet.disconnections == []
    assert ready(world)[1] == "Sharing"
    # No process ends with it here.
    await world.kubelet.stop()
    await world.stop()
    (server,) = left_open
    await server.stop(None)


async def test_after_a_killed_old_agent_resources_are_missing_only_briefly(
    world: World, agents: Agents
) -> None:
    old = await agents.start()
    await agents.start()
    await agents.end(old, signal.SIGKILL)
    await world.changes.until(lambda: world.kubelet.disconnections, "the kubelet takes the new one for gone")
    await world.changes.until(lambda: world.kubelet.is_served(names.GPU_MEM), "registered again")
    assert len(sockets(world)) in (1, 2)
    await world.run_pod("a", 3, on=1)


async def test_the_old_agent_resumes_when_the_new_one_dies(world: World, agents: Agents) -> None:
    old = await agents.start()
    new = await agents.start("128MiB")
    assert world.kubelet.allocatable(names.GPU_MEM) == 240
    await agents.end(new, signal.SIGKILL)
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "the old one's units")
    await world.run_pod("a", 3, on=1)
    # The next one cleans up the leftovers.
    last = await agents.start()
    assert await agents.end(old) == 0
    assert len(sockets(world)) == 1
    assert last.returncode is None


async def test_a_restarted_kubelet_gets_only_the_newest_agent(world: World, agents: Agents) -> None:
    old = await agents.start()
    await agents.start("128MiB")
    await world.kubelet.restart()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 240, "registered again")
    assert len(world.kubelet.registrations) == 3
    assert await agents.end(old) == 0
    # The newest may register once more, where its kubelet was slow to call back; the old one never does.
    assert world.kubelet.allocatable(names.GPU_MEM) == 240
    assert world.kubelet.disconnections == []


async def test_two_agents_of_different_settings_do_not_write_against_each_other(
    world: World, agents: Agents
) -> None:
    old = await agents.start()
    await agents.start("128MiB")

    def described() -> str:
        return str(world.api.annotations("nodes", NODE).get(names.ANN_DEVICES, ""))

    def writes() -> int:
        return len([one for one in world.api.requests if one.startswith("PATCH") and "/nodes/" in one])

    await world.changes.until(
        lambda: "128MiB" in described() and "unit 128MiB" in ready(world)[2], "described by the new one"
    )
    # It writes the condition again where the watch shows the description alone: before it serves the next pod.
    await world.run_pod("first", 1, on=0)
    await world.until_assigned("first")
    before = writes()
    for number in range(5):
        await world.run_pod(f"p{number}", 1, on=0)
        await world.until_assigned(f"p{number}")
    assert "128MiB" in described()
    assert writes() == before
    assert await agents.end(old) == 0
    assert "128MiB" in described()
