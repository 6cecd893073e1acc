"""The kubelet does not always take the preferred IDs: records follow what containers have, and no GPU looks
free in between.
"""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.objects import decode_pod
from gpushare.scheduler.cache.pod_records import record_of
from tests.integration.nodeagent.cluster_objects import container
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed
from tests.integration.nodeagent.scripted_nvml import gpu


class Counted:
    """After each write on a pod: the least that the scheduler has counted on each GPU, in units, since ``begin``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.least: dict[int, int] = {}
        self.writes = 0
        self._put = world.api.put
        world.api.put = self.put  # type: ignore[method-assign]

    def put(self, kind: str, name: str, item: dict[str, Any]) -> None:
        self._put(kind, name, item)
        if kind == "pods":
            self.writes += 1
            for index, units in self.now().items():
                self.least[index] = min(units, self.least.get(index, units))

    def begin(self) -> None:
        self.least = self.now()

    def now(self) -> dict[int, int]:
        held = {0: 0, 1: 0}
        for (kind, _), item in self.world.api.objects.items():
            record = record_of(decode_pod(item)) if kind == "pods" else None
            if record is not None and record.allocation is not None:
                for share in record.allocation.gpus:
                    held[share.index] += share.units
        return held


def take_from(world: World, index: int) -> None:
    """From now on the kubelet takes IDs of that GPU, whatever is preferred."""
    prefix = gpu(index).uuid[4:12]
    world.kubelet.pick = lambda resource, free, needed: [one for one in free if one.startswith(prefix)][
        :needed
    ]


async def test_two_pods_that_have_each_others_gpu(world: World) -> None:
    counted = Counted(world)
    await world.start()
    first = world.bind("first", container("c", 9), on=0)
    second = world.bind("second", container("c", 9), on=1)
    counted.begin()
    take_from(world, 1)
    await world.kubelet.admit(first)
    take_from(world, 0)
    await world.kubelet.admit(second)
    await world.changes.until(
        lambda: [world.recorded(one).gpus[0].index for one in ("first", "second")] == [1, 0]
    )
    await world.until_assigned("first", "second")
    assert counted.least == counted.now() == {0: 9, 1: 9}
    assert names.ANN_ALSO not in world.api.annotations("pods", "default/first")
    assert names.ANN_ALSO not in world.api.annotations("pods", "default/second")
    await world.changes.until(lambda: len(world.api.reported("GPUAllocationReconciled")) == 2)
    assert {event["type"] for event in world.api.reported("GPUAllocationReconciled")} == {"Normal"}


async def test_a_pod_that_got_the_gpu_of_a_pod_not_yet_admitted(world: World) -> None:
    counted = Counted(world)
    await world.start()
    world.bind("waiting", container("c", 9), on=0)
    quick = world.bind("quick", container("c", 9), on=1)
    counted.begin()
    take_from(world, 0)
    await world.kubelet.admit(quick)
    await world.changes.until(
        lambda: [world.recorded(one).gpus[0].index for one in ("waiting", "quick")] == [1, 0]
    )
    await world.until_assigned("quick")
    assert counted.least == counted.now() == {0: 9, 1: 9}
    assert names.ANN_ALSO not in world.api.annotations("pods", "default/quick")
    assert not world.assigned("waiting")


@pytest.mark.parametrize("failing", [1, 2, 3])
async def test_writes_that_fail_in_between_leave_no_gap_either(world: World, failing: int) -> None:
    counted = Counted(world)
    await world.start()
    world.bind("waiting", container("c", 9), on=0)
    quick = world.bind("quick", container("c", 9), on=1)
    counted.begin()
    take_from(world, 0)
    world.api.failing_patches = failing
    await world.kubelet.admit(quick)
    await world.changes.until(
        lambda: [world.recorded(one).gpus[0].index for one in ("waiting", "quick")] == [1, 0]
    )
    await world.until_assigned("quick")
    assert counted.least == {0: 9, 1: 9}


async def test_an_agent_that_died_in_between_continues_where_it_was(world: World) -> None:
    await world.start()
    quick = world.bind("quick", container("c", 9), on=1)
    take_from(world, 0)
    await world.kubelet.admit(quick)
    await world.until_assigned("quick")
    await world.stop()
    # As left by an agent that had brought the record up to date, but for what was counted in addition.
    pod = world.api.objects["pods", "default/quick"]
    marks = {**pod["metadata"]["annotations"]}
    marks[names.ANN_ALSO] = marks[names.ANN_SHARE]
    world.api.put("pods", "default/quick", {**pod, "metadata": {**pod["metadata"], "annotations": marks}})
    await world.start()
    await world.changes.until(lambda: names.ANN_ALSO not in world.api.annotations("pods", "default/quick"))
    assert world.assigned("quick")


async def test_a_single_pod_may_move_to_another_gpu_with_enough_free_memory(world: World) -> None:
    await world.start()
    made = world.bind("lone", container("c", 3), on=0)
    take_from(world, 1)
    assert (await world.kubelet.admit(made)).envs["c"][names.ENV_MEM_INDEX] == "1"
    await world.changes.until(lambda: world.recorded("lone").gpus[0].index == 1)


async def test_a_pod_is_not_moved_to_memory_reserved_for_another(world: World) -> None:
    await world.start()
    made = world.bind("mover", container("c", 3), on=0)
    world.bind("promised", container("c", 13), on=1)
    take_from(world, 1)
    with pytest.raises(
        AdmissionFailed, match=r"is waiting for 3 units of GPU 1; the scheduler placed default/mover on GPU 0"
    ):
        await world.kubelet.admit(made)
    await world.changes.until(lambda: world.api.reported("FailedGPUAllocation"))
    assert world.api.reported("FailedGPUAllocation")[0]["regarding"]["name"] == "mover"


async def test_without_the_kubelets_list_records_follow_the_answers(world: World) -> None:
    await world.start()
    world.kubelet.listing_works = False
    made = world.bind("lone", container("c", 3), on=0)
    take_from(world, 1)
    await world.kubelet.admit(made)
    await world.until_assigned("lone")
    assert world.recorded("lone").gpus[0].index == 1


@pytest.mark.parametrize("on", [0, 1])
async def test_a_pod_whose_devices_went_to_a_deleted_one_is_served_in_its_turn(world: World, on: int) -> None:
    await world.start()
    gone = world.bind("gone", container("c", 3), on=0)
    following = world.bind("next", container("c", 3), on=on)
    # It is deleted from the API server, and the agent knows; the kubelet does not yet.
    world.api.drop("pods", "default/gone")
    await world.run_pod("other", 2, on=0)
    await world.kubelet.admit(gone)
    world.kubelet.remove("default/gone")
    admitted = await world.kubelet.admit(following)
    assert admitted.envs["c"][names.ENV_MEM_INDEX] in ("0", "1")
    await world.until_assigned("next")
