"""Users can seldom read nodes: a pod gets an event when its GPU goes out of service, and when it is back."""

from typing import Any

import pytest

from tests.integration.nodeagent.cluster_objects import container
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.node.test_node_events import again, lose, mend
from tests.integration.nodeagent.pods.test_whole_gpus_follow import wants
from tests.integration.nodeagent.scripted_nvml import gpu

OUT, BACK = "PodGPUUnhealthy", "PodGPURecovered"


def pod_events(world: World) -> list[tuple[str, str]]:
    """Pod and reason of all events of pods, in order."""
    return [
        (one["regarding"]["name"], one["reason"])
        for one in world.api.events
        if one["regarding"]["kind"] == "Pod" and one["reason"] in (OUT, BACK)
    ]


async def admit(world: World, name: str, made: dict[str, Any], on: int | tuple[int, ...]) -> None:
    await world.kubelet.admit(world.bind(name, made, on=on))


async def test_pods_of_a_lost_gpu_get_one_event_and_another_when_it_is_back(world: World) -> None:
    await world.start()
    await admit(world, "a", container("c", 3), 1)
    await admit(world, "b", container("c", 3), 1)
    await admit(world, "elsewhere", container("c", 4), 0)
    lose(world, 1)
    await world.changes.until(lambda: len(pod_events(world)) == 2, "both have an event")
    assert sorted(pod_events(world)) == [("a", OUT), ("b", OUT)]
    note = world.api.reported(OUT)[0]["note"]
    assert note == (
        f"GPU 1 ({gpu(1).uuid}), which is allocated to this pod, is out of service: GPU is lost. The pod keeps it; if its program "
        "has failed, delete the pod"
    )
    await again(world)
    assert len(pod_events(world)) == 2, "a restarted agent repeats nothing"
    mend(world)
    await world.changes.until(lambda: len(pod_events(world)) == 4, "its recovery is reported")
    assert sorted(pod_events(world)[2:]) == [("a", BACK), ("b", BACK)]
    lose(world, 1)
    await world.changes.until(lambda: len(pod_events(world)) == 6, "it went again")


@pytest.mark.parametrize("gpus", [1, 2])
async def test_a_pod_with_whole_gpus_gets_an_event_for_each(world: World, gpus: int) -> None:
    await world.start(mode="topology")
    await admit(world, "whole", wants(gpus), tuple(range(gpus)))
    lose(world, 0)
    await world.changes.until(lambda: pod_events(world) == [("whole", OUT)], "the lost one is reported")
    assert gpu(0).uuid in world.api.reported(OUT)[0]["note"]


async def test_a_failing_driver_is_one_event_of_the_node_and_one_of_each_pod(world: World) -> None:
    await world.start()
    await admit(world, "a", container("c", 3), 1)
    world.nvml.driver = False
    world.nvml.faults = {gpu(index).uuid: "the driver does not answer" for index in range(2)}
    await world.changes.until(lambda: pod_events(world) == [("a", OUT)], "reported")
    world.nvml.driver, world.nvml.faults = True, {}
    await world.changes.until(lambda: pod_events(world) == [("a", OUT), ("a", BACK)], "and of its end")
