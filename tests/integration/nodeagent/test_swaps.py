"""The kubelet does not always take what is preferred: the records follow what containers really have."""

from collections.abc import Sequence

import pytest

from gpushare.api import names
from tests.integration.nodeagent.cluster_objects import container
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import AdmissionFailed
from tests.integration.nodeagent.scripted_nvml import gpu


def take_from(world: World, index: int) -> None:
    """From now on the kubelet takes IDs of that GPU, whatever is preferred."""
    prefix = gpu(index).uuid[4:12]

    def pick(resource: str, free: Sequence[str], needed: int) -> list[str]:
        return [one for one in free if one.startswith(prefix)][:needed]

    world.kubelet.pick = pick


async def test_equal_pods_that_are_swapped_have_each_others_gpu_in_their_records(world: World) -> None:
    await world.start()
    first = world.bind("first", container("c", 3), on=0)
    second = world.bind("second", container("c", 3), on=1)
    take_from(world, 1)
    assert (await world.kubelet.admit(first)).envs["c"][names.ENV_MEM_INDEX] == "1"
    take_from(world, 0)
    assert (await world.kubelet.admit(second)).envs["c"][names.ENV_MEM_INDEX] == "0"
    await world.changes.until(
        lambda: (world.recorded("first").gpus[0].index, world.recorded("second").gpus[0].index) == (1, 0)
    )
    await world.until_assigned("first", "second")
    annotations = world.api.annotations("pods", "default/first")
    assert annotations[names.ANN_MEM_INDEX] == "1"
    assert annotations[names.ANN_ALLOCATION] == '{"0":{"1":3}}'
    await world.changes.until(lambda: len(world.api.told("GPUAllocationReconciled")) == 2)
    assert {event["type"] for event in world.api.told("GPUAllocationReconciled")} == {"Normal"}


async def test_a_lone_pod_may_move_to_another_gpu_that_has_room(world: World) -> None:
    await world.start()
    made = world.bind("lone", container("c", 3), on=0)
    take_from(world, 1)
    assert (await world.kubelet.admit(made)).envs["c"][names.ENV_MEM_INDEX] == "1"
    await world.changes.until(lambda: world.recorded("lone").gpus[0].index == 1)


async def test_a_pod_is_not_moved_to_where_another_was_promised_the_memory(world: World) -> None:
    await world.start()
    made = world.bind("mover", container("c", 3), on=0)
    world.bind("promised", container("c", 13), on=1)
    take_from(world, 1)
    with pytest.raises(
        AdmissionFailed, match=r"waits for 3 units of GPU 1; as much is decided for default/mover on GPU 0"
    ):
        await world.kubelet.admit(made)
    await world.changes.until(lambda: world.api.told("FailedGPUAllocation"))
    assert world.api.told("FailedGPUAllocation")[0]["regarding"]["name"] == "mover"


async def test_devices_on_two_gpus_are_refused(world: World) -> None:
    await world.start()
    made = world.bind("a", container("c", 2), on=0)
    prefixes = [gpu(index).uuid[4:12] for index in (0, 1)]
    world.kubelet.pick = lambda resource, free, needed: [
        next(one for one in free if one.startswith(prefix)) for prefix in prefixes
    ]
    with pytest.raises(AdmissionFailed, match=r"devices on several GPUs \(1 on GPU 0, 1 on GPU 1\)"):
        await world.kubelet.admit(made)


async def test_unequal_pods_that_could_be_mistaken_are_told_apart_by_the_kubelets_list(world: World) -> None:
    await world.start()
    world.bind("older", container("c", 3), on=0)
    younger = world.bind("younger", container("a", 3), container("b", 4), on=1)
    admitted = await world.kubelet.admit(younger)
    assert {envs[names.ENV_MEM_INDEX] for envs in admitted.envs.values()} == {"1"}
    assert {envs[names.ENV_MEM_POD] for envs in admitted.envs.values()} == {"7"}


async def test_without_the_kubelets_list_records_follow_the_answers(world: World) -> None:
    await world.start()
    world.kubelet.listing_works = False
    made = world.bind("lone", container("c", 3), on=0)
    take_from(world, 1)
    await world.kubelet.admit(made)
    await world.until_assigned("lone")
    assert world.recorded("lone").gpus[0].index == 1


async def test_sum_of_the_records_is_never_above_a_gpu_when_many_pods_are_swapped(world: World) -> None:
    await world.start()
    pods = [world.bind(f"p{at}", container("c", 3), on=at % 2) for at in range(10)]
    for at, made in enumerate(pods):
        take_from(world, 1 if at < 5 else 0)
        await world.kubelet.admit(made)
    await world.until_assigned(*(f"p{at}" for at in range(10)))
    # An early look of the agent may see a half of them swapped; it looks again.
    await world.changes.until(
        lambda: [world.recorded(f"p{at}").gpus[0].index for at in range(10)] == [1] * 5 + [0] * 5,
        "every record names the GPU that its container has",
    )


async def test_a_waiting_pod_whose_gpu_went_to_its_twin_is_decided_anew(world: World) -> None:
    await world.start()
    waiting = world.bind("waiting", container("c", 9), on=0)
    quick = world.bind("quick", container("c", 9), on=1)
    take_from(world, 0)
    assert (await world.kubelet.admit(quick)).envs["c"][names.ENV_MEM_INDEX] == "0"
    await world.changes.until(
        lambda: (world.recorded("waiting").gpus[0].index, world.recorded("quick").gpus[0].index) == (1, 0)
    )
    assert world.assigned("quick")
    assert not world.assigned("waiting")
    world.kubelet.pick = None
    assert (await world.kubelet.admit(waiting)).envs["c"][names.ENV_MEM_INDEX] == "1"
