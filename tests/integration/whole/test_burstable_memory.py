"""Burstable memory in a whole playground: a pod uses free memory of its GPU, and gives it back when another
pod is bound there.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import Json, is_running, phase_of
from tests.integration.whole.world import World, gpu_pod, shared_node, until

NODE: Final = "t4"
CUDA: Final = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"
#: Memory of a context on the fake T4, and of the last piece, which may be too large.
_SLACK_MIB: Final = 256 + 512
_GIB: Final = 1024

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: One GPU of 15 GiB.
NODES = (shared_node(NODE, "t4", "cgpu"),)
ISOLATED = True


def cuda_pod(name: str, gib: int, *command: str, limit: str = "") -> Json:
    made = gpu_pod(name, gib, *(command or ("sleep", "3600")))
    made["spec"]["containers"][0]["image"] = CUDA
    if limit:
        made["metadata"]["annotations"] = {names.ANN_GPU_MEMORY_LIMIT: limit}
    return made


def taking(name: str, gib: int, *, limit: str = "") -> Json:
    """It allocates all that it can, and keeps it."""
    return cuda_pod(name, gib, "take-memory", "--hold_s=3600", limit=limit)


@contextlib.asynccontextmanager
async def agent_with(cluster: World, *options: str) -> AsyncIterator[None]:
    """The node's agent with more options, as a changed chart value starts it."""
    agent = cluster.playground.parts[f"node-agent {NODE}"]
    before = list(agent.arguments)
    try:
        await agent.stop()
        agent.arguments.extend(options)
        agent.start()
        await cluster.playground.node_ready(NODE)
        yield
    finally:
        await agent.stop()
        agent.arguments[:] = before
        agent.start()
        await cluster.playground.node_ready(NODE)


def taken_mib(text: str) -> int:
    found = re.search(r"taken: (\d+) MiB", text)
    assert found, text
    return int(found[1])


async def has_taken(cluster: World, name: str) -> int:
    """The memory that the pod's program got, once it can get no more."""

    async def taken() -> str:
        text = (await cluster.kubectl("logs", name)).text
        return text if "the next piece" in text else ""

    return taken_mib(await until(taken, f"{name} has taken what it can"))


async def test_a_burst_is_reclaimed_for_a_pod_that_is_bound_there(cluster: World) -> None:
    async with agent_with(cluster, "--watchdog-period", "0.5", "--watchdog-grace", "3"):
        await cluster.create(taking("bursting", 6, limit="14Gi"))
        await cluster.run_all("bursting")
        assert 14 * _GIB - _SLACK_MIB <= await has_taken(cluster, "bursting") < 14 * _GIB
        await figure(cluster, "memory_allowed_bytes", "bursting", at_least_mib=14 * _GIB)
        await figure(cluster, "memory_used_bytes", "bursting", at_least_mib=14_000)
        shown = await cluster.kubectl("inspect", "cgpu", "--pods")
        assert re.search(r"bursting +t4 +0 +6144 +14336 +14\d\d\d ", shown.text), shown.text

        why = (await cluster.kubectl("inspect", "cgpu", "--why", "bursting")).text
        assert re.search(r"requests: +aliyun.com/gpu-mem: 6", why), why
        assert re.search(r"may use: +14Gi of GPU memory, while the GPU has it free", why), why
        assert re.search(r"uses now: +14\d\d\d MiB of GPU 0", why), why

        await cluster.create(taking("newcomer", 8))
        # Immediately, though nothing has been freed: no more for the bursting pod, and the other one has to wait.
        await cluster.event(
            "bursting",
            "GPUMemoryReclaiming: container main uses",
            "its processes there are killed in 3 s",
        )
        await cluster.run_all("newcomer")
        await cluster.event(
            "newcomer",
            "WaitingForGPUMemory: container main may use",
            "which pod default/bursting has to give back",
        )
        await cluster.event(
            "bursting", "GPUMemoryReclaimed: container main uses", "killed by the node agent: "
        )
        assert 8 * _GIB - _SLACK_MIB <= await has_taken(cluster, "newcomer") < 8 * _GIB
        await cluster.pods.until(
            lambda: phase_of(cluster.pod("bursting")) == "Failed", "its program was killed"
        )


async def test_with_the_policy_wait_a_program_keeps_its_memory_and_gets_no_more(cluster: World) -> None:
    async with agent_with(cluster, "--watchdog-period", "0.5", "--watchdog-grace", "0", "--reclaim", "wait"):
        await cluster.create(cuda_pod("bursting", 6, limit="main=14Gi"))
        await cluster.run_all("bursting")
        holding = asyncio.create_task(
            cluster.kubectl("exec", "bursting", "--", "take-memory", "--most_mib=9216", "--hold_s=3600")
        )
        await figure(cluster, "memory_used_bytes", "bursting", at_least_mib=9216)
        await cluster.create(taking("newcomer", 8))
        await cluster.run_all("newcomer")
        await cluster.event("newcomer", "WaitingForGPUMemory")
        more = await cluster.kubectl("exec", "bursting", "--", "take-memory")
        assert "CUDA_ERROR_OUT_OF_MEMORY" in more.text, more.text
        assert is_running(cluster.pod("bursting"))
        assert not holding.done()
        # The program exits by itself, and the other one continues.
        await cluster.delete("bursting")
        assert 8 * _GIB - _SLACK_MIB <= await has_taken(cluster, "newcomer") < 8 * _GIB
        await holding
        assert not any("GPUMemoryReclaimed" in one for one in cluster.events_of("bursting"))


async def figure(cluster: World, what: str, pod: str, *, at_least_mib: int) -> None:
    """Wait until the agent's metric of the pod's container is at least that."""
    host, _, port = (cluster.playground.state / "agents").read_text().split()[1].rpartition(":")
    line = re.compile(rf'gpushare_container_{what}\{{namespace="default",pod="{pod}",.* (\d+)$', re.MULTILINE)

    async def reached() -> bool:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = line.search((await reader.read()).decode())
        writer.close()
        return found is not None and int(found[1]) >> 20 >= at_least_mib

    await until(reached, f"{pod} has {at_least_mib} MiB by {what}")
