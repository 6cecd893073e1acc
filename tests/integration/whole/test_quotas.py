"""A namespace's share of the GPUs by Kubernetes' own ResourceQuota, as the guide has it."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio

from gpushare.api import names
from tests.integration.whole.cluster import Json, is_running
from tests.integration.whole.world import CHECKOUT, World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (shared_node("four", "core-mem-4"),)
PAGE: Final = CHECKOUT / "docs" / "guide" / "quotas.md"
#: The manifests of the page by kind.
WRITTEN: Final = {
    re.findall(r"^kind: (\w+)", one, re.MULTILINE)[0]: one
    for one in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
}
ABOVE: Final = (
    f"exceeded quota: gpu, requested: requests.{names.GPU_MEM}=8, "
    f"used: requests.{names.GPU_MEM}=12, limited: requests.{names.GPU_MEM}=16"
)


@pytest_asyncio.fixture(loop_scope="session")
async def team(cluster: World) -> AsyncIterator[World]:
    assert (await cluster.kubectl("create", "namespace", "team-a")).code == 0
    assert (await cluster.kubectl("apply", "-f", "-", stdin=WRITTEN["ResourceQuota"])).code == 0
    # A real API server creates no pod before the namespace has its service account, and counts a moment later.
    await until(lambda: counted(cluster, mem="0", core="0"), "the quota is counted")
    yield cluster
    assert (await cluster.kubectl("delete", "namespace", "team-a", "--timeout=60s")).code == 0
    await cluster.pods.until(
        lambda: not any(key.startswith("team-a/") for key in cluster.pods.items), "all of the team are gone"
    )


async def counted(cluster: World, *, mem: str, core: str) -> bool:
    ran = await cluster.kubectl("-n", "team-a", "get", "quota", "gpu", "-o", "json")
    used = json.loads(ran.out).get("status", {}).get("used") if ran.code == 0 else None
    return bool(used == {f"requests.{names.GPU_MEM}": mem, f"requests.{names.GPU_CORE}": core})


async def take(cluster: World, manifest: Json) -> None:
    manifest["metadata"]["namespace"] = "team-a"

    async def taken() -> bool:
        ran = await cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        return ran.code == 0 or "serviceaccount" not in ran.text

    await until(taken, "the namespace has its account")


def running(cluster: World, start: str) -> list[str]:
    return [
        key
        for key, pod in cluster.pods.items.items()
        if key.startswith(f"team-a/{start}") and is_running(pod)
    ]


async def test_exceeding_the_quota_is_refused_with_figures_and_a_job_continues_once_it_fits(
    team: World,
) -> None:
    await take(team, gpu_pod("a", 12))
    await team.pods.until(lambda: running(team, "a"), "the first pod runs")
    assert await counted(team, mem="12", core="0")
    refused = await team.kubectl("-n", "team-a", "apply", "-f", "-", stdin=WRITTEN["Pod"])
    assert refused.code == 1
    assert ABOVE in refused.text
    template = {"metadata": {}, "spec": gpu_pod("x", 8)["spec"]}
    job: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "work"},
        "spec": {"template": template},
    }
    await take(team, job)

    async def has_event() -> bool:
        return ABOVE in (await team.kubectl("-n", "team-a", "get", "events")).text

    await until(has_event, "an event on the Job says why it has no pod")
    assert (await team.kubectl("-n", "team-a", "delete", "pod", "a", "--grace-period=1")).code == 0
    await team.pods.until(lambda: running(team, "work"), "the Job's pod runs once there is room")
    assert await counted(team, mem="8", core="0")
    assert (await team.kubectl("-n", "team-a", "delete", "job", "work", "--wait=false")).code == 0
    await team.pods.until(lambda: not running(team, ""), "it is gone")


@pytest.mark.parametrize(
    ("limits", "mem", "core"),
    [
        ({names.GPU_MEM: 2, names.GPU_CORE: 30}, "2", "30"),
        ({names.GPU_MEMORY: "6144Mi"}, "6", "0"),
    ],
    ids=["compute", "MiB"],
)
async def test_compute_is_counted_and_requests_in_mib_in_units(
    team: World, limits: dict[str, Any], mem: str, core: str
) -> None:
    await take(team, gpu_pod("p", None, limits=limits))
    await until(lambda: counted(team, mem=mem, core=core), "it counts so")
    assert (await team.kubectl("-n", "team-a", "delete", "pod", "p", "--grace-period=0", "--force")).code == 0
    await until(lambda: counted(team, mem="0", core="0"), "it counts no more")
