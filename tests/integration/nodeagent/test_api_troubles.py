"""An API server that refuses, and malformed objects."""

import pytest

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import NODE, container, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed


async def test_a_record_that_cannot_be_written_at_first_is_written_later(world: World) -> None:
    await world.start()
    world.api.failing_patches = 3
    admitted = await world.run_pod("a", 3, on=1)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] == "1"
    await world.until_assigned("a")
    assert world.api.failing_patches == 0


async def test_a_node_that_cannot_be_written_at_first_is_written_later(world: World) -> None:
    world.api.failing_patches = 2
    await world.start()
    await world.changes.until(lambda: world.api.capacity(NODE).get(names.GPU_COUNT) == "2")


async def test_a_pod_with_a_broken_record_gets_an_event_and_is_refused(world: World) -> None:
    await world.start()
    made = world.bind("broken", container("c", 3), on=None)
    made["metadata"]["annotations"][names.ANN_SHARE] = "{"
    world.api.put_pod(made)
    await world.changes.until(lambda: world.api.reported("MalformedGPUAllocation"))
    assert "cannot be read" in world.api.reported("MalformedGPUAllocation")[0]["note"]
    with pytest.raises(AdmissionFailed, match="no pod bound to node n1 is waiting for 3 units"):
        await world.kubelet.admit(made)


async def test_a_pod_deleted_before_its_record_is_written_causes_no_error(world: World) -> None:
    await world.start()
    made = world.bind("a", container("c", 3), on=0)
    await world.kubelet.admit(made)
    world.api.drop("pods", "default/a")
    assert (await world.run_pod("b", 4, on=1)).envs["c"][names.ENV_MEM_INDEX] == "1"
    await world.until_assigned("b")


async def test_a_recreated_node_object_is_described_again(world: World) -> None:
    await world.start()
    await world.changes.until(lambda: world.api.capacity(NODE).get(names.GPU_COUNT) == "2")
    world.api.drop("nodes", NODE)
    fresh = node("share")
    fresh["metadata"]["uid"] = "another"
    world.api.put("nodes", NODE, fresh)
    await world.changes.until(
        lambda: (
            names.ANN_DEVICES in world.api.annotations("nodes", NODE)
            and world.api.capacity(NODE).get(names.GPU_COUNT) == "2"
        )
    )


async def test_a_node_that_does_not_exist_is_waited_for(world: World) -> None:
    world.api.put("nodes", NODE, node("share"))
    world.api.drop("nodes", NODE)
    world.use(node="elsewhere")
    await world.start(ready=False)
    agent = world.agent
    await world.changes.until(
        lambda: any(one.startswith("WATCH /api/v1/nodes") for one in world.api.requests)
    )
    await world.changes.until(lambda: any(one.startswith("WATCH /api/v1/pods") for one in world.api.requests))
    assert agent.missing() == ["there is no node elsewhere"]
    made = node("share")
    made["metadata"]["name"] = "elsewhere"
    world.api.put("nodes", "elsewhere", made)
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 30)
