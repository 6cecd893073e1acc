"""The driver's own limits in a whole playground: a node whose driver has them limits programs that bypass
our libraries.
"""

import asyncio
import re
from typing import Final

import pytest

from tests.integration.whole.cluster import Json
from tests.integration.whole.world import World, gpu_pod, shared_node, until

NODE: Final = "t4-r615"
CUDA: Final = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"
#: Memory of a context on the fake T4, and of the last piece, which may be too large.
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


async def annotated(cluster: World, *parts: str) -> None:
    async def reached() -> bool:
        node = await cluster.session.request("GET", f"/api/v1/nodes/{NODE}")
        return all(part.encode() in node for part in parts)

    await until(reached, f"node {NODE} says {parts}")


async def taken_mib(cluster: World, name: str, *before: str) -> int:
    """The memory that a program gets that allocates all it can."""
    ran = await cluster.kubectl("exec", name, "--", *before, "take-memory", "--most_mib=8192")
    found = re.search(r"taken: (\d+) MiB", ran.text)
    assert found, ran.text
    return int(found[1])


async def limited(cluster: World, name: str, mib: int) -> None:
    """Wait until the agent has set the limit in the driver."""
    wanted = f'gpushare_nodeagent_driver_limit_bytes{{namespace="default",pod="{name}"'

    async def reached() -> bool:
        shown = await figures(cluster)
        return any(line.startswith(wanted) and line.endswith(f" {mib << 20}") for line in shown.splitlines())

    await until(reached, f"the driver holds {name} to {mib} MiB")


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


async def test_a_program_that_bypasses_the_libraries_is_limited_by_the_driver(cluster: World) -> None:
    await annotated(cluster, "preload (", "behind it the driver's own limits): mode cgpu")
    await cluster.create(cuda_pod("past", 3))
    await cluster.run_all("past")
    await limited(cluster, "past", 3072)
    mib = await taken_mib(cluster, "past", "env", "-u", "LD_PRELOAD")
    assert 3072 - _SLACK_MIB <= mib < 3072


async def test_the_driver_alone_limits_containers_and_neighbours_get_their_shares(cluster: World) -> None:
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
