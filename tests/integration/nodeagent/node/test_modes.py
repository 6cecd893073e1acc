"""The node's label changes while the agent runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from msgspec import structs

from gpushare.api import names
from gpushare.api.node.device import described_devices
from gpushare.api.node.modes import MODES, NodeMode, add
from gpushare.api.node.node_template import template_of
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.deviceplugin.resource import PluginResource
from gpushare.nodeagent.deviceplugin.socket_names import PRESENCE
from gpushare.nodeagent.modes.rules import RULES, all_plugins
from gpushare.nodeagent.modes.shares import MEMORY
from tests.integration.nodeagent.cluster_objects import NODE, container, node
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import Admitted
from tests.integration.nodeagent.scripted_nvml import gpu

SLICE = "example.com/gpu-slice"


class Slices:
    """The allocator of slices of GPUs."""

    async def prefer(
        self, resource: str, amount: int, available: Sequence[str], must: Sequence[str]
    ) -> list[str]:
        return sorted(available)[:amount]

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        return [Injection(envs={"SLICES": ",".join(ids)}) for ids in containers]


class SliceRules:
    """The agent's rules for a made-up mode."""

    plugins = (
        MEMORY,
        PluginResource(
            SLICE,
            "gpushare-slice-",
            lambda device, node, ids: [f"{ids.whole_id(device)}{number}" for number in range(7)],
            lambda deciders: Slices(),
        ),
    )

    def kept_back(self, claims: Iterable[AllocatedPod], whole: Mapping[str, str]) -> Mapping[str, str]:
        return {
            share.uuid: "until its shares are given back" for one in claims for share in one.allocation.gpus
        }


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeMode]:
    monkeypatch.setitem(RULES, "slices", SliceRules())
    yield add(NodeMode("slices", (names.GPU_MEM, names.GPU_COUNT, SLICE)))
    del MODES["slices"]


async def test_an_invented_mode_is_served_by_its_entry_and_its_rules(world: World, slices: NodeMode) -> None:
    await world.start(mode="share")
    await world.run_pod("a", 3, on=0)
    relabel(world, "slices")
    await world.changes.until(lambda: world.kubelet.allocatable(SLICE) == 7)
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)
    world.end_pod("a")
    await world.changes.until(lambda: world.kubelet.allocatable(SLICE) == 14)
    await world.changes.until(lambda: described(world) == (slices, MemoryUnit.GIB, 2))
    both = container("c", 2)
    both["resources"]["limits"][SLICE] = "1"
    admitted = await world.kubelet.admit(world.bind("b", both, on=1))
    assert admitted.envs["c"]["SLICES"].endswith("-g0")
    assert admitted.envs["c"][names.ENV_MEM_INDEX] == "1"
    relabel(world, "topology")
    await world.changes.until(lambda: world.kubelet.capacity(SLICE) == 0)


def test_each_modes_resources_have_plugins_whose_socket_names_fit_the_checked_length() -> None:
    served = {mode: {one.name for one in rules.plugins} for mode, rules in RULES.items()}
    assert served == {one.value: {*one.resources} - {names.GPU_COUNT} for one in MODES.values()}
    assert all(len(one.socket) <= len(PRESENCE) for one in all_plugins().values())


def relabel(world: World, mode: str | None) -> None:
    world.api.label_node(NODE, {} if mode is None else {names.LABEL_MODE: mode})


def described(world: World) -> tuple[NodeMode, MemoryUnit, int] | None:
    found = described_devices(decode_node(world.api.objects["nodes", NODE]))
    return None if found is None else (found[0], found[1], len(found[2]))


async def test_the_old_modes_resources_go_to_zero_and_the_new_ones_appear(world: World) -> None:
    await world.start(mode="core_mem")
    relabel(world, "share")
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_CORE) == 0)
    assert world.kubelet.capacity(names.GPU_MEM) == 30
    await world.changes.until(lambda: described(world) == (NodeMode.SHARE, MemoryUnit.GIB, 2))
    relabel(world, "topology")
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_WHOLE) == 2)
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 0)
    await world.changes.until(lambda: names.GPU_COUNT not in world.api.capacity(NODE))
    relabel(world, "core_mem")
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_CORE) == 200)
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 30)
    assert sorted(set(world.kubelet.registrations)) == sorted(
        [names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE]
    )


@pytest.mark.parametrize("off", [None, "default", "typo"])
async def test_a_node_that_stops_sharing_is_described_until_no_pod_holds_a_share(
    world: World, off: str | None
) -> None:
    await world.start(mode="share")
    await world.run_pod("a", 3, on=1)
    await world.until_assigned("a")
    relabel(world, off)
    await world.changes.until(lambda: described(world) == (NodeMode.DEFAULT, MemoryUnit.GIB, 2))
    assert names.GPU_COUNT not in world.api.capacity(NODE), "the count goes first"
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_MEM) == 0)
    await world.stop()
    await world.start(ready=False)
    world.end_pod("a")
    await world.changes.until(lambda: described(world) is None)


async def test_an_unlabelled_node_registers_nothing(world: World) -> None:
    await world.start(mode=None, ready=False)
    world.api.put("nodes", NODE, node(None))
    await world.changes.until(lambda: any("WATCH /api/v1/nodes" in one for one in world.api.requests))
    relabel(world, "share")
    await world.ready()
    assert world.kubelet.registrations == [names.GPU_MEM]


async def test_pods_keep_what_they_hold_when_the_mode_changes(world: World) -> None:
    await world.start(mode="share")
    await world.run_pod("a", 3, on=1)
    await world.until_assigned("a")
    relabel(world, "topology")
    # The shared GPU is not allocated whole until the pod has ended.
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_WHOLE) == 1)
    assert world.recorded("a").gpus[0].index == 1
    world.end_pod("a")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_WHOLE) == 2)


async def test_a_gpu_held_whole_is_not_shared_until_its_pod_has_ended(world: World) -> None:
    await world.start(mode="topology")
    made = {
        "metadata": {"name": "whole", "namespace": "default", "uid": "w", "annotations": {}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {names.GPU_WHOLE: "1"}}}]},
        "status": {"phase": "Running"},
    }
    admitted = await world.kubelet.admit(made)
    assert admitted.envs["c"][names.ENV_VISIBLE_DEVICES] == gpu(0).uuid
    world.kubelet.calls.clear()
    await world.changes.until(lambda: "List" in world.kubelet.calls, "the agent has seen what is held")
    relabel(world, "share")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15)
    # The kubelet's response may arrive after the label: then the node is described twice.
    await world.changes.until(
        lambda: (
            "held whole by pod default/whole until it ends"
            in world.api.annotations("nodes", NODE).get(names.ANN_DEVICES, "")
        ),
        "described with the reason",
    )
    assert described(world) == (NodeMode.SHARE, MemoryUnit.GIB, 2)
    # It is no fault, and not reported as one.
    found = described_devices(decode_node(world.api.objects["nodes", NODE]))
    assert found is not None
    assert [one.is_faulty for one in found[2]] == [False, False]
    await world.changes.until(
        lambda: "DrainingPreviousMode" in str(world.api.objects["nodes", NODE]), "the condition says so"
    )
    assert not world.api.reported("GPUUnhealthy")
    world.kubelet.remove("default/whole")


async def test_gpus_allocated_by_another_plugin_are_withheld_and_reported(world: World) -> None:
    await world.start(mode="share")
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30)
    other = {
        "metadata": {"name": "other", "namespace": "default", "uid": "o", "annotations": {}},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }
    # How NVIDIA's plugin names a time slice of a GPU.
    held = {"c": {"nvidia.com/gpu": [f"{gpu(0).uuid}::1"]}}
    world.kubelet.admitted["default/other"] = Admitted(other, devices=held, whole=True)
    node = world.api.objects["nodes", NODE]
    capacity = {**node["status"]["capacity"], "nvidia.com/gpu": "8"}
    world.api.put("nodes", NODE, {**node, "status": {**node["status"], "capacity": capacity}})
    await world.changes.until(lambda: world.api.reported("GPUsOfferedTwice"), "an event says so")
    assert world.agent is not None
    world.agent._reconciler.trigger()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 15, "its GPU takes nothing")
    reason = "allocated as nvidia.com/gpu to pod default/other until it ends"
    await world.changes.until(
        lambda: reason in world.api.annotations("nodes", NODE).get(names.ANN_DEVICES, ""), "its node says why"
    )
    world.kubelet.remove("default/other")
    world.agent._reconciler.trigger()
    await world.changes.until(lambda: world.kubelet.allocatable(names.GPU_MEM) == 30, "it is offered again")


async def test_capacity_left_over_from_another_mode_goes_to_zero_after_a_restart(world: World) -> None:
    world.api.put("nodes", NODE, node("share", capacity={names.GPU_CORE: "200", names.GPU_WHOLE: "0"}))
    await world.start()
    await world.changes.until(lambda: world.kubelet.capacity(names.GPU_CORE) == 0)
    assert names.GPU_WHOLE not in world.kubelet.endpoints


async def test_the_unit_changes_under_a_running_pod(world: World) -> None:
    await world.start()
    await world.run_pod("old", 3, on=0)
    await world.until_assigned("old")
    held = world.recorded("old").mib
    for unit, capacity in ((MemoryUnit.MIB_128, 240), (MemoryUnit.GIB, 30)):
        await world.stop()
        world.use(unit=unit)
        await world.start()
        await world.changes.until(lambda capacity=capacity: world.kubelet.capacity(names.GPU_MEM) == capacity)
        admitted = await world.run_pod(f"new-{unit.value}", 4, on=0)
        assert admitted.envs["c"][names.ENV_MEM_LIMIT] == str(4 * unit.mib)
        await world.until_assigned(f"new-{unit.value}")
        assert world.recorded("old").mib == held


async def test_a_node_template_predicts_what_the_node_advertises_in_another_unit(world: World) -> None:
    await world.start(mode="core_mem")
    template = template_of(decode_node(world.api.objects["nodes", NODE]))
    for unit in (MemoryUnit.MIB_128, MemoryUnit.GIB):
        predicted = structs.replace(template, unit=unit).capacity
        await world.stop()
        world.use(unit=unit)
        await world.start()
        # The number of GPUs is written on the node; the kubelet has everything else.
        count = str(predicted.pop(names.GPU_COUNT))
        await world.changes.until(
            lambda predicted=predicted: {one: world.kubelet.capacity(one) for one in predicted} == predicted
        )
        await world.changes.until(lambda count=count: world.api.capacity(NODE).get(names.GPU_COUNT) == count)
        assert predicted.keys() == {names.GPU_MEM, names.GPU_CORE}
