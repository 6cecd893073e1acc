"""The whole scheduler over an API in memory, with a scripted extender."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gpushare_playground.kubescheduler.extender import Extender, ExtenderError, FilterResult
from gpushare_playground.kubescheduler.queue import Place
from gpushare_playground.kubescheduler.running import KubeScheduler
from gpushare_playground.objects import NODES, PODS, Json, spec_of
from tests.unit.playground.controllers.memory_api import Events, MemoryApi, until
from tests.unit.playground.kubescheduler.pods import a_node, a_pod

NO_VICTIMS = "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
GPU = {"aliyun.com/gpu-mem": "8"}


class ScriptedExtender(Extender):
    """An extender with scripted answers that records its requests."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []
        self.refused: dict[str, str] = {}
        self.hopeless: dict[str, str] = {}
        self.points: dict[str, int] = {}
        self.down: str = ""
        self.binds_fail: str = ""
        self.may_bind = asyncio.Event()
        self.may_bind.set()

    async def filter(self, pod: Json, nodes: "list[str] | tuple[str, ...]") -> FilterResult:  # type: ignore[override]
        self.calls.append(("filter", pod["metadata"]["name"], tuple(nodes)))
        if self.down:
            raise ExtenderError(self.down)
        passed = [name for name in nodes if name not in self.refused and name not in self.hopeless]
        return FilterResult(passed, self.refused, self.hopeless)

    async def prioritize(self, pod: Json, nodes: "list[str] | tuple[str, ...]") -> dict[str, int]:  # type: ignore[override]
        self.calls.append(("prioritize", pod["metadata"]["name"], tuple(nodes)))
        return self.points

    async def bind(self, pod: Json, node: str) -> None:
        self.calls.append(("bind", pod["metadata"]["name"], (node,)))
        await self.may_bind.wait()
        if self.binds_fail:
            raise ExtenderError(self.binds_fail)
        await self.api.objects.bind(pod, node)

    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.calls]


@dataclass
class World:
    api: MemoryApi
    extender: ScriptedExtender
    scheduler: KubeScheduler
    events: Events = field(default_factory=Events)

    def add_pod(self, name: str = "p", **spec: object) -> None:
        self.api.add(PODS, a_pod(name, **spec))

    def node_of(self, name: str = "p") -> str:
        return str(spec_of(self.api.get(PODS, name)).get("nodeName") or "")

    def condition(self, name: str = "p") -> tuple[str, str]:
        conditions = (self.api.get(PODS, name).get("status") or {}).get("conditions") or [{}]
        return str(conditions[0].get("reason")), str(conditions[0].get("message"))

    async def placed(self, name: str = "p") -> str:
        await until(lambda: self.node_of(name))
        return self.node_of(name)

    async def refused(self, name: str = "p") -> tuple[str, str]:
        await until(lambda: self.condition(name) != ("None", "None"))
        return self.condition(name)

    def place_in_queue(self, name: str = "p") -> Place | None:
        return self.scheduler.profiles["ack-co-scheduler"].queue.place_of(f"uid-{name}")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    api = MemoryApi((PODS, NODES))
    extender = ScriptedExtender(api)
    events = Events()
    profiles: dict[str, Extender | None] = {"default-scheduler": None, "ack-co-scheduler": extender}
    scheduler = KubeScheduler(
        api.objects, api.caches[PODS], api.caches[NODES], profiles, lambda _: events, first_backoff_s=0.01
    )
    task = asyncio.create_task(scheduler.run())
    yield World(api, extender, scheduler, events)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_gpu_pod_is_filtered_scored_and_bound_through_the_extender(world: World) -> None:
    for name in ("n1", "n2", "n3"):
        world.api.add(NODES, a_node(name, gpu_mem="15"))
    world.extender.refused = {"n1": "no single GPU has 8 GiB free"}
    world.extender.points = {"n3": 500}
    world.add_pod(requests=GPU)
    assert await world.placed() == "n3"
    assert world.extender.calls == [
        ("filter", "p", ("n1", "n2", "n3")),
        ("prioritize", "p", ("n2", "n3")),
        ("bind", "p", ("n3",)),
    ]
    await until(lambda: world.events.seen)
    assert world.events.seen == [("Normal", "Scheduled", "Successfully assigned default/p to n3")]
    assert world.place_in_queue() is None


async def test_prioritize_is_not_called_when_one_node_is_left(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.add_pod(requests=GPU)
    await world.placed()
    assert world.extender.verbs() == ["filter", "bind"]


async def test_nodes_that_fail_the_in_tree_filters_are_not_sent_to_the_extender(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="4"))
    world.api.add(NODES, a_node("n2", gpu_mem="15"))
    world.add_pod(requests=GPU)
    assert await world.placed() == "n2"
    assert world.extender.calls[0] == ("filter", "p", ("n2",))


async def test_a_refused_pod_has_the_message_of_kube_scheduler(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="4"))
    world.api.add(NODES, a_node("n2", gpu_mem="15"))
    world.api.add(NODES, a_node("n3", gpu_mem="15"))
    reason = "no single GPU has 8 GiB free (largest free: 4 GiB on GPU 1)"
    world.extender.refused = {"n2": reason}
    world.extender.hopeless = {"n3": "has no GPU"}
    world.add_pod(requests=GPU)
    message = (
        f"0/3 nodes are available: 1 Insufficient aliyun.com/gpu-mem, 1 has no GPU, 1 {reason}. "
        "preemption: 0/3 nodes are available: "
        "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    )
    assert await world.refused() == ("Unschedulable", message)
    assert ("Warning", "FailedScheduling", message) in world.events.seen


async def test_preemption_is_described_as_by_kube_scheduler(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.add_pod("lesser", requests={**GPU, "cpu": "1"}, priority=5)
    await world.placed("lesser")
    # With the lesser pod gone this one would fit: the real scheduler would evict it.
    world.add_pod("higher", requests=GPU, priority=9)
    _, message = await world.refused("higher")
    assert message.endswith("preemption: the playground's scheduler preempts no pods")
    world.add_pod("meek", requests=GPU, priority=9, preemptionPolicy="Never")
    _, message = await world.refused("meek")
    assert message.endswith("preemption: not eligible due to preemptionPolicy=Never.")
    world.add_pod("equal", requests=GPU, priority=5)
    _, message = await world.refused("equal")
    assert message.endswith(NO_VICTIMS)


async def test_without_nodes_the_pod_waits_for_the_first(world: World) -> None:
    world.add_pod(requests=GPU)
    assert await world.refused() == ("Unschedulable", "no nodes available to schedule pods")
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    assert await world.placed() == "n1"


async def test_a_pending_pod_is_placed_as_soon_as_another_completes(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.add_pod("first", requests=GPU)
    await world.placed("first")
    world.add_pod("second", requests=GPU)
    message = f"0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem. {NO_VICTIMS}"
    assert await world.refused("second") == ("Unschedulable", message)
    world.api.change(PODS, "default/first", status={"phase": "Succeeded"})
    assert await world.placed("second") == "n1"


async def test_full_nodes_are_sent_to_an_extender_that_counts_the_resource_alone() -> None:
    api, events = MemoryApi((PODS, NODES)), Events()
    extender = ScriptedExtender(api)
    profiles: dict[str, Extender | None] = {"ack-co-scheduler": extender}
    scheduler = KubeScheduler(
        api.objects, api.caches[PODS], api.caches[NODES], profiles, lambda _: events, ignored=tuple(GPU)
    )
    world = World(api, extender, scheduler, events)
    task = asyncio.create_task(scheduler.run())
    world.api.add(NODES, a_node("n1", gpu_mem="4"))
    world.add_pod(requests=GPU)
    assert await world.placed() == "n1"
    assert extender.verbs() == ["filter", "bind"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_that_the_extender_refused_is_tried_again_when_anything_happens(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.extender.refused = {"n1": "full"}
    world.add_pod(requests=GPU)
    await world.refused()
    world.extender.refused = {}
    world.api.change(NODES, "n1", metadata={"annotations": {"gpushare.dev/devices": "{}"}})
    assert await world.placed() == "n1"


async def test_heartbeats_and_own_conditions_retry_no_pod(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.extender.refused = {"n1": "full"}
    world.add_pod(requests=GPU)
    await world.refused()
    calls = len(world.extender.calls)
    beat = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]
    world.api.change(NODES, "n1", status={"conditions": beat})
    await until(lambda: world.place_in_queue() is Place.UNSCHEDULABLE)
    calls = len(world.extender.calls)
    beat = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:10Z"}]
    world.api.change(NODES, "n1", status={"conditions": beat})
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(world.extender.calls) == calls


async def test_the_next_pod_is_scheduled_while_a_binding_is_under_way_and_counts_it(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.extender.may_bind.clear()
    world.add_pod("first", requests=GPU)
    await until(lambda: "bind" in world.extender.verbs())
    world.add_pod("second", requests=GPU)
    reason, message = await world.refused("second")
    assert (reason, message) == (
        "Unschedulable",
        f"0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem. {NO_VICTIMS}",
    )
    world.extender.may_bind.set()
    assert await world.placed("first") == "n1"


async def test_a_failed_binding_frees_the_place_and_is_an_error_that_is_retried(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.extender.binds_fail = "GPU 0 has been taken meanwhile"
    world.add_pod(requests=GPU)
    assert await world.refused() == ("SchedulerError", "GPU 0 has been taken meanwhile")
    await until(lambda: world.place_in_queue() is Place.BACKING_OFF)
    state = world.scheduler.occupancy.node("n1")
    assert state is not None
    assert state.used == {}
    world.extender.binds_fail = ""
    assert await world.placed() == "n1"


async def test_an_extender_that_is_down_is_reported_and_called_again_later(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.extender.down = (
        'Post "http://127.0.0.1:1/filter": dial tcp 127.0.0.1:1: connect: connection refused'
    )
    world.add_pod(requests=GPU)
    assert await world.refused() == ("SchedulerError", world.extender.down)
    assert ("Warning", "FailedScheduling", world.extender.down) in world.events.seen
    world.extender.down = ""
    assert await world.placed() == "n1"


async def test_a_binding_whose_response_was_lost_counts_as_successful(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))

    async def bind_and_fail(pod: Json, node: str) -> None:
        await world.api.objects.bind(pod, node)
        raise ExtenderError("context deadline exceeded")

    world.extender.bind = bind_and_fail  # type: ignore[method-assign]
    world.add_pod(requests=GPU)
    assert await world.placed() == "n1"
    await until(lambda: world.place_in_queue() is None)
    state = world.scheduler.occupancy.node("n1")
    assert state is not None
    assert state.used == {"aliyun.com/gpu-mem": 8}


async def test_a_pod_deleted_while_it_is_bound_leaves_nothing_behind(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15"))
    world.extender.may_bind.clear()
    world.extender.binds_fail = "pods not found"
    world.add_pod(requests=GPU)
    await until(lambda: "bind" in world.extender.verbs())
    world.api.drop("pods", "default/p")
    world.extender.may_bind.set()
    await until(lambda: not world.scheduler.occupancy.is_assumed("uid-p"))
    assert world.place_in_queue() is None


async def test_a_gated_pod_waits_for_its_gates(world: World) -> None:
    world.api.add(NODES, a_node("n1"))
    world.add_pod(schedulingGates=[{"name": "example.com/wait"}])
    await until(lambda: world.place_in_queue() is Place.GATED)
    world.api.change(PODS, "default/p", spec={"schedulingGates": None})
    assert await world.placed() == "n1"


async def test_capacity_taken_during_the_extenders_filter_is_not_allocated_twice(world: World) -> None:
    world.api.add(NODES, a_node("n1", gpu_mem="15", cpu="1"))

    async def slow_filter(pod: Json, nodes: list[str]) -> FilterResult:
        if "quick" not in world.api.named(PODS):
            world.add_pod("quick", schedulerName="default-scheduler", requests={"cpu": "1"})
            await until(lambda: world.node_of("quick"))
        return FilterResult(list(nodes))

    world.extender.filter = slow_filter  # type: ignore[method-assign, assignment]
    world.add_pod(requests={**GPU, "cpu": "1"})
    message = f"0/1 nodes are available: 1 Insufficient cpu. {NO_VICTIMS}"
    assert await world.refused() == ("Unschedulable", message)
    assert world.node_of() == ""


async def test_ignored_fields_are_reported(world: World) -> None:
    world.api.add(NODES, a_node("n1"))
    world.add_pod(topologySpreadConstraints=[{"maxSkew": 1}])
    await world.placed()
    assert (
        "Warning",
        "IgnoredByPlayground",
        "the playground's scheduler does not look at topologySpreadConstraints",
    ) in (world.events.seen)
