"""MIG instances on demand in mode ``dra``: offered as placements, created for claims, destroyed after them;
also over kills.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc.aio
import pytest

from gpushare.api import names
from gpushare.nodeagent.dra import claim_instances, plugin
from gpushare.nodeagent.dra.claim_files import ClaimFiles
from gpushare.nodeagent.driver import discovery
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.node.scripted_dra_kubelet import DraKubelet, PrepareFailed, allocated
from tests.integration.nodeagent.node.test_dra import edits, kubelet_of, put, slices, started, taints, writes
from tests.integration.nodeagent.scripted_nvml import divisible, gpu

PARENT = divisible(1)
PLACEMENTS = {(one.profile, one.start): one for one in PARENT.placements}
SMALL, OTHER, HALF = PLACEMENTS["1g.10gb", 6], PLACEMENTS["1g.10gb", 5], PLACEMENTS["3g.40gb", 4]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_LOOK_S", 0.02)
    monkeypatch.setattr(discovery, "_JOIN_S", 0.05)


async def served(world: World, **settings: Any) -> DraKubelet:
    """The kubelet of a node with a whole GPU and one in MIG mode."""
    world.nvml.gpus = [gpu(0), PARENT]
    world.use(mig_dynamic=True, **settings)
    kubelet = await started(world)
    await world.changes.until(lambda: len(slices(world)) == 3, "all slices")
    return kubelet


@pytest.fixture
async def kubelet(world: World) -> DraKubelet:
    return await served(world)


def occupied(world: World) -> list[str]:
    """Where the GPU has instances."""
    return [one.name for found in world.nvml.gpus for one in found.occupied]


def offered(world: World) -> list[str]:
    return [device["name"] for one in slices(world) for device in one["spec"].get("devices", ())]


def share(name: str, *devices: str) -> dict[str, Any]:
    return allocated(name, *((device, "9728Mi", 0) for device in devices))


async def test_placements_consume_counters_of_their_gpu_in_slices_of_one_generation(
    world: World, kubelet: DraKubelet
) -> None:
    specs = {one["metadata"]["name"]: one["spec"] for one in slices(world)}
    assert {name: one["pool"] for name, one in specs.items()} == {
        f"n1-gpushare.dev{part}": {"name": "n1", "generation": 1, "resourceSliceCount": 3}
        for part in ("-counters-0", "", "-mig-0")
    }
    (counters,) = specs["n1-gpushare.dev-counters-0"]["sharedCounters"]
    assert counters["name"] == PARENT.uuid.lower()
    assert len(counters["counters"]) == 9
    assert (counters["counters"]["memory-slice-7"], counters["counters"]["compute-slices"]) == (
        {"value": "1"},
        {"value": "7"},
    )
    assert [one["name"] for one in specs["n1-gpushare.dev"]["devices"]] == [gpu(0).uuid.lower()]
    partitions = specs["n1-gpushare.dev-mig-0"]["devices"]
    assert [one["name"].rpartition("-mig-")[2] for one in partitions] == [
        *(f"19-{start}" for start in range(7)),
        *("9-4", "9-0", "0-0"),
    ]
    half = next(one for one in partitions if one["name"] == HALF.name)
    assert half["consumesCounters"] == [
        {
            "counterSet": PARENT.uuid.lower(),
            "counters": {
                "compute-slices": {"value": "3"},
                **{f"memory-slice-{number}": {"value": "1"} for number in range(4, 8)},
            },
        }
    ]
    assert half["allowMultipleAllocations"] is True
    assert half["capacity"]["memory"]["value"] == "40192Mi"
    assert half["attributes"]["profile"] == {"string": "3g.40gb"}
    assert half["attributes"]["parentUUID"] == {"string": PARENT.uuid}
    assert "uuid" not in half["attributes"]


async def test_an_instance_exists_from_its_first_claim_to_its_last(world: World, kubelet: DraKubelet) -> None:
    written = len(writes(world))
    first, second = put(world, share("first", SMALL.name)), put(world, share("second", SMALL.name))
    (device,) = await kubelet.prepare(first)
    assert device.device_name == SMALL.name
    assert occupied(world) == [SMALL.name]
    environment = dict(one.split("=", 1) for one in edits(world, first)["env"])
    assert environment[names.ENV_VISIBLE_DEVICES] == f"MIG-{SMALL.name}"
    assert environment[names.ENV_MEM_LIMIT] == "9728"
    await kubelet.prepare(second)
    await kubelet.prepare(put(world, share("third", OTHER.name)))
    assert set(occupied(world)) == {SMALL.name, OTHER.name}
    await kubelet.unprepare(first)
    assert SMALL.name in occupied(world)
    await kubelet.unprepare(second)
    assert occupied(world) == [OTHER.name]
    assert len(writes(world)) == written, "what is offered does not depend on what exists"


async def test_an_instance_in_use_is_destroyed_when_its_process_has_ended(
    world: World, kubelet: DraKubelet
) -> None:
    claim = put(world, share("claim", SMALL.name))
    await kubelet.prepare(claim)
    world.nvml.busy = [SMALL]
    with pytest.raises(
        PrepareFailed, match=r"memory slice 6 of GPU .* cannot be destroyed: In use by another client"
    ):
        await kubelet.unprepare(claim)
    world.nvml.busy = []
    await kubelet.unprepare(claim)
    assert occupied(world) == []


async def test_instances_of_others_are_left_alone_and_nothing_is_offered_over_them(
    world: World, kubelet: DraKubelet
) -> None:
    world.nvml.divide(PARENT.uuid, SMALL)
    await world.changes.until(lambda: HALF.name not in offered(world), "what overlaps it is withdrawn")
    there = offered(world)
    assert f"mig-{SMALL.name}" in there
    assert SMALL.name not in there
    assert OTHER.name in there
    claim = put(world, share("claim", SMALL.name))
    with pytest.raises(PrepareFailed, match="it was not created by gpushare"):
        await kubelet.prepare(claim)
    await kubelet.unprepare(claim)
    assert occupied(world) == [SMALL.name]
    with pytest.raises(
        PrepareFailed, match=r"3g\.40gb at memory slice 4 of GPU .* cannot be created: Insufficient"
    ):
        await kubelet.prepare(put(world, share("larger", HALF.name)))
    existing = put(world, share("existing", f"mig-{SMALL.name}"))
    await kubelet.prepare(existing)
    await kubelet.unprepare(existing)
    assert occupied(world) == [SMALL.name]


async def test_a_gpu_with_a_critical_error_takes_no_new_instances(world: World) -> None:
    await served(world, xid_recovery_s=1000.0)
    world.nvml.send_xid(PARENT.uuid, 79)
    await world.changes.until(lambda: SMALL.name in taints(world), "its placements have a taint")
    assert taints(world)[SMALL.name] == ("gpushare.dev/unhealthy", "critical-error-XID-79", "NoSchedule")
    assert gpu(0).uuid.lower() not in taints(world)


async def test_where_counters_are_off_nothing_is_allocated_and_the_node_reports_why(world: World) -> None:
    world.api.partitions_devices = False
    world.nvml.gpus = [PARENT]
    world.use(mig_dynamic=True)
    kubelet_of(world)
    await world.start(mode="dra", ready=False)
    await world.changes.until(
        lambda: any("DRAPartitionableDevices" in str(event) for event in world.api.events), "an event"
    )
    assert not offered(world)


class Stop:
    """A step at which the agent is killed: a caller that reaches it does not continue."""

    def __init__(self, world: World) -> None:
        self._changes, self._loop = world.changes, asyncio.get_running_loop()
        self.reached = False
        self.released = threading.Event()

    def __call__(self) -> None:
        if self.released.is_set():
            return
        self.reached = True
        self._loop.call_soon_threadsafe(self._changes.notify)
        self.released.wait(60.0)


@pytest.fixture
async def stop(world: World) -> AsyncIterator[Stop]:
    made = Stop(world)
    yield made
    made.released.set()


Arrange = Callable[[World, Stop, pytest.MonkeyPatch], None]


def at_files(method: str, *, after: bool) -> Arrange:
    """Before or after the claim's files are written or removed."""

    def arrange(world: World, stop: Stop, patch: pytest.MonkeyPatch) -> None:
        call = getattr(ClaimFiles, method)

        def stops(files: ClaimFiles, *args: Any) -> None:
            if after:
                call(files, *args)
                stop()
            else:
                stop()
                call(files, *args)

        patch.setattr(ClaimFiles, method, stops)

    return arrange


def at_driver(when: str) -> Arrange:
    """Before or after the driver creates or destroys."""

    def arrange(world: World, stop: Stop, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(world.nvml, when, stop)

    return arrange


PREPARING = {
    "before the record": at_files("begin", after=False),
    "after the record": at_files("begin", after=True),
    "before the instance": at_driver("before"),
    "after the instance": at_driver("after"),
    "before the CDI file": at_files("write", after=False),
    "after the CDI file": at_files("write", after=True),
}
UNPREPARING = {
    "before the instance is gone": at_driver("before"),
    "after the instance is gone": at_driver("after"),
    "before the CDI file is gone": at_files("remove", after=False),
    "after the CDI file is gone": at_files("remove", after=True),
}


async def killed(
    world: World, stop: Stop, patch: pytest.MonkeyPatch, arrange: Arrange, call: Any
) -> DraKubelet:
    """The agent dies at that step of a call of the kubelet; returns the kubelet of its successor."""
    with patch.context() as patched:
        arrange(world, stop, patched)
        calling = asyncio.create_task(call)
        await world.changes.until(lambda: stop.reached, "the step is reached")
        await world.stop()
        with suppress(grpc.aio.AioRpcError):
            await calling
    await world.start(ready=False)
    kubelet = kubelet_of(world)
    await kubelet.register()
    agent = world.agent
    await world.changes.until(lambda: not agent.missing(), "the next agent is ready")
    return kubelet


@pytest.mark.parametrize("arrange", PREPARING.values(), ids=PREPARING)
@pytest.mark.parametrize("goes_on", [True, False], ids=["prepared again", "unprepared"])
async def test_the_next_agent_finds_what_one_killed_while_preparing_left(
    world: World,
    kubelet: DraKubelet,
    stop: Stop,
    monkeypatch: pytest.MonkeyPatch,
    arrange: Arrange,
    *,
    goes_on: bool,
) -> None:
    claim = put(world, share("claim", SMALL.name))
    kubelet = await killed(world, stop, monkeypatch, arrange, kubelet.prepare(claim))
    assert SMALL.name in offered(world), "nobody else's"
    if goes_on:
        (device,) = await kubelet.prepare(claim)
        assert device.device_name == SMALL.name
        assert occupied(world) == [SMALL.name]
    await kubelet.unprepare(claim)
    assert occupied(world) == []
    assert not list(world.settings.cdi_folders[-1].glob("gpushare.dev-claim-*"))


@pytest.mark.parametrize("arrange", UNPREPARING.values(), ids=UNPREPARING)
async def test_the_next_agent_completes_what_one_killed_while_unpreparing_left(
    world: World, kubelet: DraKubelet, stop: Stop, monkeypatch: pytest.MonkeyPatch, arrange: Arrange
) -> None:
    claim = put(world, share("claim", SMALL.name))
    await kubelet.prepare(claim)
    kubelet = await killed(world, stop, monkeypatch, arrange, kubelet.unprepare(claim))
    await kubelet.unprepare(claim)
    assert occupied(world) == []
    assert not list(world.settings.cdi_folders[-1].glob("gpushare.dev-claim-*"))


async def test_an_instance_not_yet_available_to_containers_is_prepared_later(
    world: World, kubelet: DraKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_instances, "_READY_S", 0.1)
    claim = put(world, share("claim", SMALL.name))
    world.nvml.faults[f"MIG-{SMALL.name}"] = "GPU is lost"
    with pytest.raises(PrepareFailed, match=r"cannot be used yet \(.*-mig-19-6: GPU is lost\)"):
        await kubelet.prepare(claim)
    del world.nvml.faults[f"MIG-{SMALL.name}"]
    await world.changes.until(
        lambda: all(one.healthy for one in world.agent._book.node.devices),
        "it works",
    )
    await kubelet.prepare(claim)
    assert occupied(world) == [SMALL.name]
