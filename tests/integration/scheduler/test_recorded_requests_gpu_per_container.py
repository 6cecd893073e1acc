"""Recorded requests of kube-scheduler's own code for pods with a GPU for each container, answered
over HTTP.

For the bodies see ``recording/SOURCES.md``.
"""

from gpushare.api.node.modes import NodeMode
from gpushare.scheduler.server.protocol import BindingArgs
from tests.integration.scheduler.replaying import (
    CASES,
    Replay,
    every_recording,
    every_version,
    four,
    replaying,
    serving,
    world_of,
)
from tests.unit.scheduler.world import World, gpu_node, pod_object

PAIR = "00000000-0000-4000-8000-000000000021"


def by_container(replay: Replay, uid: str) -> dict[str, list[tuple[int, int, int]]]:
    """GPU, units and percent of compute of each container of the bound pod."""
    held = replay.world.ledger.held(uid)
    assert held is not None
    return {
        name: [(share.index, share.units, share.core_percent) for share in shares]
        for name, shares in held.allocation.containers.items()
    }


async def hold(world: World, name: str, uid: str, units: int) -> None:
    """Bind a low-priority pod to the node ``four``."""
    world.api.create(pod_object(name, units, uid=uid))
    world.see(name)
    await world.binder.bind(BindingArgs("default", name, uid, "four"))
    world.see(name)


@every_version
@every_recording
async def test_containers_get_a_gpu_each_on_a_node_with_enough_gpus(version: str, form: str) -> None:
    async with replaying(version, form) as replay:
        answer = await replay.send("gpu-per-container", "filter")
        assert answer["FailedNodes"] == {}
        # No eviction helps there, so kube-scheduler tries no preemption.
        assert answer["FailedAndUnresolvableNodes"] == {"single": "requests 2 GPUs, but the node has 1"}
        ranked = await replay.send("gpu-per-container", "prioritize")
        assert [one["Host"] for one in ranked] == ["four"]
        assert await replay.bound("gpu-per-container", "four") == [(0, 10), (1, 10)]
        assert by_container(replay, PAIR) == {"actor": [(0, 10, 0)], "learner": [(1, 10, 0)]}
        # 5 of 15 are left on each of the two: the smaller request joins them.
        assert await replay.bound("single-share", "four") == [(0, 3)]
        assert await replay.bound("several-gpus", "four") == [(1, 4), (2, 4)]


@every_version
@every_recording
async def test_compute_is_counted_by_the_gpu_of_each_container(version: str, form: str) -> None:
    """60 percent each: together they exceed one GPU."""
    world = world_of(four(mode=NodeMode.CORE_MEM), gpu_node("single", 16384))
    async with serving(version, form, world) as replay:
        assert await replay.bound("gpu-per-container-with-compute", "four") == [(0, 5), (1, 5)]
        held = by_container(replay, "00000000-0000-4000-8000-000000000022")
        assert held == {"actor": [(0, 5, 60)], "learner": [(1, 5, 60)]}


@every_version
@every_recording
async def test_victims_are_added_until_every_container_has_a_gpu(version: str, form: str) -> None:
    """kube-scheduler evicts one with 9 of 15 for two of 10 each: that frees 21 units, but only 6 on one GPU."""
    world = world_of(four(devices=gpu_node("four", 15360, 15360).devices))
    recorded = next(one for one in CASES["cases"] if one["name"] == "gpu-per-container-preemption")["victims"]
    uid = recorded["four"][0]["metadata"]["uid"]
    await hold(world, "low-1", uid, 9)
    await hold(world, "beside", "uid-beside", 9)
    async with serving(version, form, world) as replay:
        refused = await replay.refusals("gpu-per-container-preemption")
        assert refused["four"] == "needs 2 GPUs with 10 GiB free each, but no GPU has"
        victims = (await replay.send("gpu-per-container-preemption", "preempt"))["NodeNameToMetaVictims"][
            "four"
        ]
        assert {one["UID"] for one in victims["Pods"]} == {uid, "uid-beside"}
