"""The driver's own limits in a whole playground: a node whose driver has them holds who gets past our libraries."""

import asyncio
import re
from typing import Final

import pytest

from tests.integration.whole.cluster import Json
from tests.integration.whole.world import World, gpu_pod, shared_node, until

NODE: Final = "t4-r615"
CUDA: Final = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"
#: What a context takes on the stand-in's T4, and the last piece that may be too large.
_SLACK_MIB: Final = 256 + 512

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: One node, whose driver has limits.
NODES = (shared_node(NODE, "t4-r615", "cgpu"),)
ISOLATED = True


def cuda_pod(name: str, units: int) -> Json:
    """A pod of the CUDA sample's image, which waits for commands."""
    made = gpu_pod(name, units, "sleep", "3600")
    made["spec"]["containers"][0]["image"] = CUDA
    return made


async def annotated(cluster: World, *words: str) -> None:
    async def said() -> bool:
        node = await cluster.session.request("GET", f"/api/v1/nodes/{NODE}")
        return all(word.encode() in node for word in words)

    await until(said, f"node {NODE} says {words}")


async def taken_mib(cluster: World, name: str, *before: str) -> int:
    """What a program gets that calls for all that it can."""
    ran = await cluster.kubectl("exec", name, "--", *before, "take-memory", "--most_mib=8192")
    found = re.search(r"taken: (\d+) MiB", ran.text)
    assert found, ran.text
    return int(found[1])


async def limited(cluster: World, name: str, mib: int) -> None:
    """Wait until the agent has set the limit in the driver."""
    wanted = f'gpushare_nodeagent_driver_limit_bytes{{namespace="default",pod="{name}"'

    async def said() -> bool:
        shown = await figures(cluster)
        return any(line.startswith(wanted) and line.endswith(f" {mib << 20}") for line in shown.splitlines())

    await until(said, f"the driver holds {name} to {mib} MiB")


async def figures(cluster: World) -> str:
    """The agent's metrics; empty while it is away."""
    host, _, port = (cluster.playground.state / "agents").read_text().split()[1].rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return ""
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return text


async def test_who_gets_past_the_libraries_is_held_by_the_driver(cluster: World) -> None:
    await annotated(cluster, "preload (", "behind it the driver's own limits): mode cgpu")
    await cluster.create(cuda_pod("past", 3))
    await cluster.run_all("past")
    await limited(cluster, "past", 3072)
    mib = await taken_mib(cluster, "past", "env", "-u", "LD_PRELOAD")
    assert 3072 - _SLACK_MIB <= mib < 3072


async def test_the_driver_alone_holds_containers_and_neighbours_have_theirs(cluster: World) -> None:
    await cluster.playground.set_isolation("driver")
    try:
        await annotated(
            cluster, "driver (memory alone, by cgroup): mode cgpu, and --isolation driver was asked for"
        )
        await cluster.create(cuda_pod("three", 3), cuda_pod("twelve", 12))
        await cluster.run_all("three", "twelve")
        await limited(cluster, "three", 3072)
        await limited(cluster, "twelve", 12288)
        assert 3072 - _SLACK_MIB <= await taken_mib(cluster, "three") < 3072
        assert await taken_mib(cluster, "twelve") == 8192
    finally:
        await cluster.playground.set_isolation("auto")
