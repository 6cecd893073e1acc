"""What pods on whole GPUs really use, by the agents' figures (which a real API server does not pass on from these nodes' addresses)."""

import json

import pytest

from gpushare.api import names
from tests.integration.whole.seen import Json
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (shared_node("isles", "two-islands", "topology"),)


async def used_by_pods(seen: World) -> list[Json]:
    """What ``--pods`` tells, once the agents have looked."""
    for _ in range(200):
        ran = await seen.kubectl("inspect", "cgpu", "--pods", "-o", "json")
        told = json.loads(ran.out)
        if not told["warnings"]:
            break
    assert told["warnings"] == [], ran.err
    return [*told["pods"]]


async def test_pods_on_whole_gpus_are_told_with_what_they_use(seen: World) -> None:
    for name in ("one", "two"):
        await seen.create(gpu_pod(name, None, node="isles", limits={names.GPU_WHOLE: int(name == "two") + 1}))
        await seen.run_all(name)
    assert {one["name"]: one["usedMiB"] for one in await used_by_pods(seen)} == {"one": 0, "two": 0}
