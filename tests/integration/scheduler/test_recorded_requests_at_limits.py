"""What kube-scheduler's own code sent is answered within caps, ties of NUMA, kinds of nodes, and across a take-over.

The bodies are recorded: see ``recording/SOURCES.md``.
"""

import msgspec

from gpushare.api.node.modes import NodeMode
from gpushare.scheduler.server.protocol import BindingArgs
from tests.integration.scheduler.replaying import (
    CASES,
    every_recording,
    every_version,
    four,
    replaying,
    serving,
    world_of,
)
from tests.unit.scheduler.world import World, gpu_node, pod_object


@every_version
@every_recording
async def test_a_gpu_takes_no_more_pods_than_its_cap(version: str, form: str) -> None:
    async with serving(version, form, world_of(four(max_pods=1))) as replay:
        assert await replay.bound("single-share", "four") == [(0, 3)]
        assert await replay.bound("in-mib", "four") == [(1, 4)]
        assert await replay.bound("several-gpus", "four") == [(2, 4), (3, 4)]
        refused = await replay.refusals("init-and-sidecar")
        assert refused["four"] == "every GPU with room already has 1 pod, the most allowed"


@every_version
@every_recording
async def test_a_pod_that_was_resized_in_place_has_its_share(version: str, form: str) -> None:
    async with serving(version, form, world_of(gpu_node("four", 5 * 1024))) as replay:
        assert await replay.bound("single-share", "four") == [(0, 3)]
        resources = replay.world.api.pods["default/share"]["spec"]["containers"][0]["resources"]
        resources["requests"] |= {"cpu": "2"}
        replay.world.see("share")
        assert "largest free: 2 GiB on GPU 0" in (await replay.refusals("in-mib"))["four"]
        assert replay.world.used_mib("four") == [3 * 1024]


@every_version
@every_recording
async def test_a_node_takes_no_more_pods_than_its_cap(version: str, form: str) -> None:
    async with serving(version, form, world_of(four(max_node_pods=2))) as replay:
        await replay.bound("single-share", "four")
        await replay.bound("several-gpus", "four")
        refused = await replay.refusals("in-mib")
        assert refused["four"].startswith("node already has 2 pods on its GPUs, the most allowed")
        late = await replay.send("in-mib", "bind")
        assert "node already has 2 pods on its GPUs" in late["Error"]


@every_version
@every_recording
async def test_several_gpus_are_of_one_numa_node_where_nothing_else_tells_them_apart(
    version: str, form: str
) -> None:
    sockets = (0, 1, 0, 1)
    devices = tuple(
        msgspec.structs.replace(device, numa_node=socket)
        for device, socket in zip(four().devices, sockets, strict=True)
    )
    async with serving(version, form, world_of(four(devices=devices))) as replay:
        found = [index for index, _ in await replay.bound("several-gpus", "four")]
        assert len({sockets[index] for index in found}) == 1, found


@every_version
@every_recording
async def test_memory_and_compute_go_together_to_nodes_that_count_both(version: str, form: str) -> None:
    world = world_of(four(mode=NodeMode.CORE_MEM), gpu_node("single", 16384))
    async with serving(version, form, world) as replay:
        refused = (await replay.send("memory-and-compute", "filter"))["FailedAndUnresolvableNodes"]
        assert list(refused) == ["single"], "it does not count compute, whoever ends there"
        assert await replay.bound("memory-and-compute", "four") == [(0, 3)]
        held = world.ledger.usage("four").gpus[0]
        assert (held.used_mib, held.used_core) == (3 * 1024, 30)
        # From now on pods that ask for memory alone go elsewhere.
        assert await replay.fits("single-share") == ["single"]
        refused = (await replay.send("single-share", "filter"))["FailedNodes"]
        assert "which a pod with memory alone cannot join" in refused["four"]


@every_version
@every_recording
async def test_who_else_has_to_go_is_added_to_the_victims(version: str, form: str) -> None:
    """kube-scheduler's victim has 8 of 16 units: beside another with 7 the claimant's 10 do not fit when it is gone."""
    world = world_of(gpu_node("single", 16384))
    named = CASES["cases"][-1]["victims"]["single"][0]["metadata"]["uid"]
    for name, uid, units, priority in (("low-0", named, 8, 0), ("beside", "uid-beside", 7, 0)):
        world.api.create(pod_object(name, units, uid=uid, priority=priority))
        world.see(name)
        await world.binder.bind(BindingArgs("default", name, uid, "single"))
        world.see(name)
    async with serving(version, form, world) as replay:
        assert not await replay.fits("preemption")
        told = (await replay.send("preemption", "preempt"))["NodeNameToMetaVictims"]["single"]
        assert [one["UID"] for one in told["Pods"]] == [named, "uid-beside"]


@every_version
@every_recording
async def test_a_replica_that_takes_over_goes_on_where_the_other_stopped(version: str, form: str) -> None:
    """The first one dies between a Binding that nobody has confirmed and the next question."""
    async with replaying(version, form) as replay:
        assert await replay.fits("single-share") == ["four"]
        assert await replay.send("single-share", "bind") == {"Error": ""}
        assert await replay.fits("several-gpus") == ["four"]
        before = replay.world
    successor = World(before.api, before.clock)
    successor.add_node(four())
    successor.add_node(gpu_node("single", 16384))
    for key in before.api.pods:
        successor.see(key.partition("/")[2])
    async with serving(version, form, successor) as replay:
        # kube-scheduler asked the first replica where the pod fits, and has this one bind it.
        assert await replay.send("several-gpus", "bind") == {"Error": ""}
        assert await replay.fits("whole-gpu") == ["four"]
        assert await replay.send("whole-gpu", "bind") == {"Error": ""}
        taken = {case: replay.shares(case) for case in ("single-share", "several-gpus", "whole-gpu")}
        assert taken == {"single-share": [(0, 3)], "several-gpus": [(0, 4), (1, 4)], "whole-gpu": [(2, 15)]}
        # What was answered before the other died is told again, and changes nothing.
        assert await replay.send("single-share", "bind") == {"Error": ""}
        assert successor.ledger.totals().pods == 4
