"""Two namespaces share four GPUs by an ElasticQuotaTree: borrow, give back, and continue when the tree is wrong."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from gpushare.api import names
from tests.integration.whole.cluster import Json, Seen, following, is_running, waits_because
from tests.integration.whole.world import CHECKOUT, World, gpu_pod, shared_node, until, world

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLE: Final = CHECKOUT / "examples/10-elastic-quotas.yaml"
TREES: Final = f"/apis/{names.QUOTA_GROUP}/namespaces/{names.QUOTA_NAMESPACE}/{names.QUOTA_PLURAL}"
TREE: Final = "kube-system/elasticquotatree"


class Shared:
    """The cluster, its trees, and the example's two teams."""

    def __init__(self, cluster: World, trees: Seen) -> None:
        self.cluster = cluster
        self.trees = trees

    async def apply(self, path: Path) -> None:
        ran = await self.cluster.kubectl("apply", "-f", str(path))
        assert ran.code == 0, ran.text

    async def create(self, team: str, *pod_names: str, units: int = 15) -> None:
        await self.take(team, [gpu_pod(name, units) for name in pod_names])

    async def create_plain(
        self, team: str, *pod_names: str, cpu: str, scheduler: str = names.SCHEDULER_NAME
    ) -> None:
        pods = [gpu_pod(name, None) for name in pod_names]
        for pod in pods:
            pod["spec"]["schedulerName"] = scheduler
            pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        await self.take(team, pods)

    async def take(self, team: str, pods: list[Json]) -> None:
        for pod in pods:
            pod["metadata"]["namespace"] = team
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})

        async def applied() -> bool:
            # A real API server creates no pod before the namespace has its service account.
            return (await self.cluster.kubectl("apply", "-f", "-", stdin=body)).code == 0

        await until(applied, f"pods in {team} are taken")

    def pod(self, team: str, name: str) -> Json:
        return self.cluster.pods.items.get(f"{team}/{name}", {"metadata": {}, "spec": {}})

    def running(self, team: str) -> list[str]:
        return [
            key
            for key, pod in self.cluster.pods.items.items()
            if key.startswith(f"{team}/") and is_running(pod) and not pod["metadata"].get("deletionTimestamp")
        ]

    async def run(self, team: str, number: int) -> None:
        """Wait until that many of the team's pods run."""
        await self.cluster.pods.until(
            lambda: len(self.running(team)) == number,
            f"{number} pods of {team} run",
            detail=lambda: {key: waits_because(pod) for key, pod in self.cluster.pods.items.items()},
        )

    async def waits(self, team: str, name: str, reason: str) -> None:
        """Wait until a pod is pending for that reason."""
        await self.cluster.pods.until(
            lambda: reason in waits_because(self.pod(team, name)),
            f"{team}/{name} waits because {reason}",
            detail=lambda: waits_because(self.pod(team, name)),
        )

    def used(self, resource: str) -> list[str]:
        """The status of each quota, the root first."""
        status = self.trees.items.get(TREE, {}).get("status", {})
        return [one["used"].get(resource, "") for one in status.get("quotas") or ()]

    async def status(self, **wanted: Any) -> Json:
        """Wait until the tree's status has all of ``wanted``; ``used`` is units by quota."""

        def found() -> Json:
            status = self.trees.items.get(TREE, {}).get("status", {})
            used = {one["name"]: int(one["used"][names.GPU_MEM]) for one in status.get("quotas") or ()}
            state: Json = {**status, "used": used}
            return state if all(state.get(key) == value for key, value in wanted.items()) else {}

        return await self.trees.until(found, f"{wanted}", detail=lambda: self.trees.items)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_world() -> AsyncIterator[World]:
    """As the chart has it: full nodes are filtered by the extender too."""
    async with world(shared_node("four", "core-mem-4")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def shared(shared_world: World) -> AsyncIterator[Shared]:
    """The example applied; no pod and no tree is left behind."""
    async with following(shared_world.session, TREES, Seen()) as trees:
        made = Shared(shared_world, trees)
        await made.apply(EXAMPLE)
        await made.status(state="InForce")
        yield made
        for team in ("team-a", "team-b"):
            await shared_world.kubectl(
                "delete", "pods", "--all", "-n", team, "--grace-period=1", "--wait=false"
            )
        await shared_world.pods.until(lambda: not shared_world.pods.items, "all pods are gone")
        await shared_world.kubectl("delete", "elasticquotatrees", "--all", "-n", "kube-system")
    shared_world.assert_sound()


async def test_borrowed_quota_goes_back_to_the_other_team_up_to_its_min(shared: Shared) -> None:
    await shared.create("team-a", *(f"a-{number}" for number in range(4)))
    await shared.run("team-a", 4)
    await shared.status(used={"root": 60, "team-a": 60, "team-b": 0})
    await shared.create("team-b", "b-0")
    await shared.run("team-b", 1)
    await shared.run("team-a", 3)
    why = "elastic quota root/team-b takes back within its min what root/team-a had borrowed"

    def evictions() -> list[str]:
        return [
            note for number in range(4) for note in shared.cluster.events_of(f"a-{number}") if why in note
        ]

    await shared.cluster.events.until(lambda: bool(evictions()), "an event says why one was evicted")
    assert len(evictions()) == 1
    await shared.create("team-b", "b-1", "b-2")
    await shared.run("team-b", 2)
    await shared.run("team-a", 2)
    await shared.status(used={"root": 60, "team-a": 30, "team-b": 30})
    # Both have their min: nothing is evicted for a third, nor for the successors of the evicted.
    waiting = next(name for name in ("b-1", "b-2") if not is_running(shared.pod("team-b", name)))
    await shared.waits("team-b", waiting, f"elastic quota root: 60 of 60 {names.GPU_MEM} used (max)")
    await shared.create("team-a", "again")
    await shared.waits("team-a", "again", "elastic quota root: 60 of 60")
    assert (len(shared.running("team-a")), len(shared.running("team-b"))) == (2, 2)


async def test_a_wrong_tree_changes_nothing_also_after_a_restart_of_the_scheduler(shared: Shared) -> None:
    text = EXAMPLE.read_text().replace("gpu-mem: 45", "gpu-mem: 20")
    ran = await shared.cluster.kubectl("apply", "-f", "-", stdin=text)
    assert ran.code == 0, ran.text
    status = await shared.status(state="Refused")
    assert "quota team-b: min of aliyun.com/gpu-mem (30) is above its max (20)" in status["message"]
    assert status["message"].endswith("what was in force before stays")
    extender = shared.cluster.playground.parts["extender"]
    restarts = extender.restarts
    shared.cluster.playground.kill("extender")

    async def again() -> bool:
        return extender.restarts > restarts

    await until(again, "the extender is started again")
    await shared.cluster.playground.extender_ready()
    await shared.create("team-b", *(f"b-{number}" for number in range(4)))
    await shared.run("team-b", 3)
    (waiting,) = {f"b-{number}" for number in range(4)} - {
        key.partition("/")[2] for key in shared.running("team-b")
    }
    await shared.waits("team-b", waiting, "elastic quota root/team-b: 45 of 45")
