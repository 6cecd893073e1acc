import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gpushare_playground.controllers.running import WATCHED, Controllers, Timing
from gpushare_playground.objects import JOBS, NODES, PODS, Json, Kind, spec_of
from tests.unit.playground.controllers.memory_api import Events, MemoryApi, quiet


@dataclass
class Cluster:
    """An API in memory with running controllers; tests act as the kubelet."""

    api: MemoryApi
    controllers: Controllers
    events: Events = field(default_factory=Events)

    def pods(self) -> list[str]:
        return self.api.named(PODS)

    async def settled(self) -> None:
        await quiet(lambda: self.controllers.is_idle)

    def start(self, name: str, *, ready: bool = True) -> None:
        """Mark a pod as started, as the kubelet does."""
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status = {"phase": "Running", "conditions": [condition]}
        self.api.change(PODS, f"default/{name}", spec={"nodeName": "n1"}, status=status)

    def finish(self, name: str, phase: str = "Succeeded", finished_at: str = "2020-01-01T00:00:00Z") -> None:
        """Mark a pod's containers as terminated."""
        state = {"state": {"terminated": {"finishedAt": finished_at}}}
        self.api.change(
            PODS,
            f"default/{name}",
            spec={"nodeName": "n1"},
            status={"phase": phase, "containerStatuses": [state]},
        )

    async def run_all(self) -> None:
        """Start and keep ready whatever pod appears, and finish deletions, until nothing changes."""
        while True:
            await self.settled()
            pods = list(self.api.items["pods"].values())
            waiting = [pod for pod in pods if (pod.get("status") or {}).get("phase") is None]
            going = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
            if not waiting and not going:
                return
            for pod in waiting:
                self.start(pod["metadata"]["name"])
            for pod in going:
                self.api.drop("pods", f"default/{pod['metadata']['name']}")

    def status(self, kind: Kind, name: str) -> Json:
        status: Json = self.api.get(kind, name).get("status") or {}
        return status

    def conditions(self, kind: Kind, name: str) -> dict[str, str]:
        return {one["type"]: one["status"] for one in self.status(kind, name).get("conditions") or ()}

    def job(self, name: str = "work", **spec: object) -> Json:
        template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}
        defaults = {"parallelism": 1, "completions": 1, "backoffLimit": 6, "template": template}
        return self.api.add(JOBS, {"metadata": {"name": name}, "spec": {**defaults, **spec}})

    def scale(self, kind: Kind, name: str, replicas: int) -> None:
        item = self.api.get(kind, name)
        generation = item["metadata"]["generation"] + 1
        self.api.change(
            kind, f"default/{name}", metadata={"generation": generation}, spec={"replicas": replicas}
        )

    def placed_on(self, name: str) -> str:
        return str(spec_of(self.api.get(PODS, name)).get("nodeName"))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    api = MemoryApi(WATCHED)
    api.add(NODES, {"metadata": {"name": "n1"}})
    events = Events()
    controllers = Controllers(api.objects, api.caches, lambda _: events, timing=Timing(lost_node_s=0.0))
    task = asyncio.create_task(controllers.run())
    yield Cluster(api, controllers, events)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
