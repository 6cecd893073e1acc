"""Whole GPUs through the agent and a scripted kubelet: the decision is followed, and the record follows the
kubelet.
"""

from typing import Any

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.node.device import description_of, node_devices
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import TopologyLevels
from gpushare.api.objects import decode_node
from gpushare_playground.gpus import preset
from tests.integration.nodeagent.cluster_objects import NODE, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.node.test_stand_in_driver import command, described
from tests.integration.nodeagent.scripted_nvml import gpu


def wants(gpus: int, name: str = "c") -> dict[str, Any]:
    limits = {names.GPU_WHOLE: str(gpus)}
    return {"name": name, "resources": {"limits": limits, "requests": dict(limits)}}


def record(world: World, name: str) -> Allocation | None:
    return read_allocation(world.api.annotations("pods", f"default/{name}"), None)


def indices(found: Allocation | None) -> list[int]:
    return [] if found is None else [share.index for share in found.gpus]


async def test_a_pod_gets_the_gpus_chosen_by_the_scheduler(world: World) -> None:
    world.nvml.gpus[:] = [gpu(index) for index in range(4)]
    await world.start(mode="topology")
    made = world.bind("a", wants(2), on=(1, 3))
    agent = world.agent
    assert agent is not None
    # A kubelet whose watch is ahead takes any GPUs, and the record follows.
    await world.changes.until(
        lambda: agent._exclusive.get(made["metadata"]["uid"]), "the agent knows the pod"
    )
    admitted = await world.kubelet.admit(made)
    assert admitted.envs["c"][names.ENV_VISIBLE_DEVICES].split(",") == [gpu(1).uuid, gpu(3).uuid]
    other = await world.kubelet.admit(world.bind("b", wants(1), on=None))
    assert other.envs["c"][names.ENV_VISIBLE_DEVICES] == gpu(0).uuid
    # That pod had no allocation: what it got is recorded, so that the scheduler counts it.
    await world.changes.until(lambda: indices(record(world, "b")) == [0], "recorded")
    assert indices(record(world, "a")) == [1, 3]
    await world.changes.until(lambda: world.api.reported("GPUAllocationReconciled"), "reported")
    assert (
        world.api.reported("GPUAllocationReconciled")[0]["note"]
        == "the kubelet allocated GPU 0, which is recorded now"
    )


async def test_a_pod_without_a_decision_gets_no_cordoned_gpu_while_another_is_free(
    world: World,
) -> None:
    await world.start(mode="topology")
    there = world.api.objects["nodes", NODE]
    there["metadata"]["annotations"][names.ANN_CORDONED] = "0"
    world.api.put("nodes", NODE, there)

    def named() -> bool:
        conditions = world.api.objects["nodes", NODE]["status"].get("conditions", ())
        return any(one["message"].startswith("GPU 0: cordoned; mode ") for one in conditions)

    await world.changes.until(named, "the agent has seen it")
    admitted = await world.kubelet.admit(world.bind("a", wants(1), on=None))
    assert admitted.envs["c"][names.ENV_VISIBLE_DEVICES] == gpu(1).uuid


async def test_a_node_is_described_until_its_whole_gpus_are_released(world: World) -> None:
    await world.start(mode="topology")
    await world.kubelet.admit(world.bind("a", wants(1), on=1))
    world.api.label_node(NODE, {})

    def mode() -> NodeMode | None:
        found = description_of(decode_node(world.api.objects["nodes", NODE]))
        return None if found is None else found.mode

    await world.changes.until(lambda: mode() is NodeMode.DEFAULT, "described still")
    world.end_pod("a")
    await world.changes.until(lambda: mode() is None, "not described any more")


async def test_an_unresponsive_gpu_keeps_its_distances(world: World) -> None:
    one, two, three = gpus = [gpu(index) for index in range(3)]
    world.nvml.gpus[:] = gpus
    world.nvml.near |= {(one.uuid, two.uuid): 100, (two.uuid, three.uuid): 50}
    world.nvml.near |= {(one.uuid, three.uuid): 1}
    await world.start(mode="topology")

    def health_and_links() -> tuple[list[bool], TopologyLevels] | None:
        found = description_of(decode_node(world.api.objects["nodes", NODE]))
        return None if found is None else ([device.healthy for device in found.devices], found.near)

    near = ((0, 100, 1), (100, 0, 50), (1, 50, 0))
    await world.changes.until(lambda: health_and_links() == ([True] * 3, near), "described")
    world.nvml.gpus[:] = [one, three]
    world.nvml.near = {(one.uuid, three.uuid): 2}
    world.nvml.exchanged = True
    changed = ((0, 100, 2), (100, 0, 50), (2, 50, 0))
    await world.changes.until(
        lambda: health_and_links() == ([True, False, True], changed), "one is gone, the rest is read again"
    )


async def test_the_fake_drivers_topology_is_written_on_the_node(world: World) -> None:
    world.api.put("nodes", NODE, node("topology"))
    async with command(world, described(world, preset("two-islands", NODE))):
        await world.changes.until(lambda: world.kubelet.is_served(names.GPU_WHOLE), "served", 30.0)
        await world.changes.until(
            lambda: names.ANN_DEVICES in world.api.annotations("nodes", NODE), "described", 30.0
        )
        found = node_devices(decode_node(world.api.objects["nodes", NODE]))
        assert found is not None
        assert [device.numa_node for device in found.devices] == [0] * 4 + [1] * 4
        links = {(a, b): found.near[a][b] for a in range(8) for b in range(8) if a != b}
        assert {links[a, b] for a, b in links if a // 4 == b // 4} == {100}
        assert {links[a, b] for a, b in links if a // 4 != b // 4} == {1}
        # It has no allocation, and the kubelet offers the GPUs in any order: an island is found.
        admitted = await world.kubelet.admit(world.bind("a", wants(4), on=None))
        uuids = admitted.envs["c"][names.ENV_VISIBLE_DEVICES].split(",")
        assert len({index // 4 for index, one in enumerate(found.devices) if one.uuid in uuids}) == 1
