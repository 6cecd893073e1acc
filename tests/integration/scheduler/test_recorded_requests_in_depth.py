"""What kube-scheduler's own code sent is answered as policies, quotas and the state of nodes have it.

The bodies are recorded: see ``recording/SOURCES.md``.
"""

import json

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import decode_quota_tree
from gpushare.api.crd.resource_policy import decode_policy, policy_pod_of
from gpushare.api.node.device import Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import matrix
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from tests.integration.scheduler.replaying import (
    create_waiting,
    every_recording,
    every_version,
    four,
    serving,
    world_of,
)
from tests.unit.scheduler.policy_world import PolicyWorld
from tests.unit.scheduler.world import World, gpu_node

#: The pod of the case ``preemption``.
URGENT = "00000000-0000-4000-8000-000000000006"


@every_version
@every_recording
async def test_init_containers_and_sidecars_are_counted_as_that_kube_scheduler_counts_them(
    version: str, form: str
) -> None:
    async with serving(version, form, world_of(four())) as replay:
        # 1.22 knows no sidecars: to it that is an init container, and its API server has dropped the restart policy.
        replay.world.api.create(replay.body("init-and-sidecar", "filter")["Pod"])
        replay.world.see("pipeline")
        units = {"1.22": max(4, 2, 3 + 2), "1.36": max(4, 2 + 3 + 2)}[version]
        await replay.bound("init-and-sidecar", "four")
        held = replay.world.ledger.held("00000000-0000-4000-8000-000000000011")
        assert held is not None
        assert [(share.index, share.units) for share in held.allocation.gpus] == [(0, units)]


@every_version
@every_recording
async def test_what_was_asked_for_in_mib_is_taken_in_the_unit_in_which_it_was_counted_alone(
    version: str, form: str
) -> None:
    async with serving(version, form, world_of(four())) as replay:
        assert await replay.bound("in-mib", "four") == [(0, 4)]
    async with serving(version, form, world_of(four(unit=MemoryUnit.MIB_128))) as replay:
        assert "counted in units of 1 GiB" in (await replay.refusals("in-mib"))["four"]


@every_version
@every_recording
async def test_gpus_by_number_are_those_nearest_to_each_other(version: str, form: str) -> None:
    near = matrix(4, lambda a, b: 100 if {a, b} == {1, 3} else 1)
    async with serving(version, form, world_of(four(mode=NodeMode.TOPOLOGY, near=near))) as replay:
        assert [index for index, _ in await replay.bound("gpus-by-number", "four")] == [1, 3]
        assert "mode topology" in (await replay.refusals("single-share"))["four"]


@every_version
@every_recording
async def test_a_cordoned_gpu_and_one_that_is_gone_take_nothing_new(version: str, form: str) -> None:
    node = four()
    first, second, *rest = node.devices
    node = msgspec.structs.replace(
        node, devices=(msgspec.structs.replace(first, cordoned=True), second, *rest)
    )
    async with serving(version, form, world_of(node)) as replay:
        assert await replay.bound("single-share", "four") == [(1, 3)]
        replay.world.add_node(msgspec.structs.replace(node, devices=(node.devices[0], *rest)))
        assert await replay.bound("several-gpus", "four") == [(2, 4), (3, 4)]
        replay.world.add_node(gpu_node("four", *[15360] * 4))
        assert replay.world.used_mib("four") == [0, 3 * 1024, 4 * 1024, 4 * 1024]


@every_version
@every_recording
@pytest.mark.parametrize(
    ("policy", "preferred", "gpu"),
    [
        (Placement.BINPACK, "four", 0),
        (Placement.SPREAD, "single", 1),
        # Whole GPUs are asked for too: one that nobody uses is kept for these.
        (Placement.FRAGMENTATION, "four", 0),
    ],
)
async def test_nodes_are_ranked_by_the_policy_and_gpus_are_chosen_by_it(
    version: str, form: str, policy: Placement, preferred: str, gpu: int
) -> None:
    world = World(policy=policy)
    world.add_node(four(placement=policy))
    create_waiting(world)
    async with serving(version, form, world) as replay:
        assert await replay.bound("in-mib", "four") == [(0, 4)]
        world.add_node(msgspec.structs.replace(gpu_node("single", 32768), placement=policy))
        assert await replay.fits("single-share") == ["four", "single"]
        scores = {one["Host"]: one["Score"] for one in await replay.send("single-share", "prioritize")}
        other = "single" if preferred == "four" else "four"
        assert scores.get(preferred, 0) > scores.get(other, 0), scores
        assert await replay.send("single-share", "bind") == {"Error": ""}
        assert replay.shares("single-share") == [(gpu, 3)]


@every_version
@every_recording
async def test_units_of_a_policy_fill_in_order_by_pods_with_and_without_gpus(version: str, form: str) -> None:
    rules = PolicyWorld()
    rules.add_node(four())
    rules.add_node(gpu_node("single", 16384))
    create_waiting(rules)
    for node in ("four", "single"):
        rules.policies.census.set_node(node, {"pool": node})
    units = [
        {"resource": "ecs", "nodeSelector": {"pool": "four"}, "max": 1},
        {"resource": "ecs", "nodeSelector": {"pool": "single"}},
    ]
    meta = {"name": "order", "namespace": "default", "uid": "order", "generation": 1}
    written = {"metadata": meta, "spec": {"selector": {}, "units": units}}
    rules.policies.upsert_policy(decode_policy(json.dumps(written).encode()))
    rules.policies.unread.clear()
    for pod in rules.api.pods.values():
        rules.policies.upsert_pod(policy_pod_of(decode_pod(pod)))
    async with serving(version, form, rules, policies=rules.policies) as replay:
        assert await replay.fits("without-gpu") == ["four"]
        assert await replay.send("without-gpu", "bind") == {"Error": ""}
        web = rules.api.pods["default/web"]
        assert web["spec"]["nodeName"] == "four"
        assert web["metadata"]["annotations"][names.ANN_DELETION_COST] == "200"
        assert await replay.fits("single-share") == ["single"]
        # A kube-scheduler that comes with another node than it was offered is told why not.
        late = await replay.send("single-share", "bind")
        assert "no unit has room for the pod on node four" in late["Error"]
        assert rules.ledger.totals().pods == 0


@every_version
@every_recording
async def test_an_elastic_quota_refuses_what_passes_its_max_and_says_so_for_every_node(
    version: str, form: str
) -> None:
    world = world_of(four(), gpu_node("single", 16384))
    leaf = {"name": "team", "namespaces": ["default"], "max": {names.GPU_MEM: 8}}
    written = {"metadata": {"name": "t", "uid": "t"}, "spec": {"root": {"name": "root", "children": [leaf]}}}
    world.view.quotas.upsert(decode_quota_tree(json.dumps(written).encode()))
    async with serving(version, form, world) as replay:
        assert await replay.fits("single-share") == ["four", "single"]
        assert await replay.send("single-share", "bind") == {"Error": ""}
        words = "elastic quota root/team: 3 of 8 aliyun.com/gpu-mem used (max), 8 asked for"
        assert await replay.refusals("several-gpus") == {"four": words, "single": words}
        late = await replay.send("several-gpus", "bind")
        assert words in late["Error"]


@every_version
@every_recording
async def test_the_unit_changes_between_the_question_and_the_binding(version: str, form: str) -> None:
    async with serving(version, form, world_of(four())) as replay:
        assert await replay.bound("single-share", "four") == [(0, 3)]
        assert await replay.fits("several-gpus") == ["four"]
        replay.world.add_node(four(unit=MemoryUnit.MIB_128))
        assert await replay.send("several-gpus", "bind") == {"Error": ""}
        replay.world.see("several")
        assert replay.shares("several-gpus") == [(0, 4), (1, 4)]
        assert replay.world.used_mib("four") == [3 * 1024 + 4 * 128, 4 * 128, 0, 0]


@every_version
@every_recording
async def test_a_node_is_labelled_otherwise_under_a_pod_and_between_the_question_and_the_binding(
    version: str, form: str
) -> None:
    async with serving(version, form, world_of(four())) as replay:
        assert await replay.bound("single-share", "four") == [(0, 3)]
        assert await replay.fits("several-gpus") == ["four"]
        replay.world.add_node(four(mode=NodeMode.DEFAULT))
        late = await replay.send("several-gpus", "bind")
        assert "node shares no GPU memory (it is in mode default" in late["Error"]
        replay.world.add_node(four(mode=NodeMode.CORE_MEM))
        # The mode gives compute now, and the pod that was there first goes on.
        compute = await replay.refusals("memory-and-compute")
        assert (
            compute["four"]
            == "node has 1 pod with GPU memory alone, which a pod with compute too cannot join"
        )
        assert replay.world.used_mib("four") == [3 * 1024, 0, 0, 0]
        replay.world.add_node(four(mode=NodeMode.SHARE, placement=Placement.SPREAD))
        assert [gpu for gpu, _ in await replay.bound("in-mib", "four")] == [1]


@every_version
@every_recording
async def test_room_that_is_made_for_a_pod_by_moving_others_is_nobody_elses(version: str, form: str) -> None:
    world = world_of(gpu_node("single", 10 * 1024))
    record = world.view.waiting[URGENT]
    assert record.request is not None
    plan = world.ledger.plan(record.request, ["single"], lambda uid: None)
    assert plan is not None
    world.ledger.keep(URGENT, record.request, plan)
    async with serving(version, form, world) as replay:
        refused = await replay.refusals("single-share")
        assert refused["single"] == "no single GPU has 3 GiB free (every GPU is full)"
        assert await replay.fits("preemption") == ["single"]


@every_version
@every_recording
async def test_a_pod_that_no_single_gpu_ever_holds_is_told_so_for_every_node(version: str, form: str) -> None:
    world = world_of(four(devices=gpu_node("four", *[8192] * 4).devices), gpu_node("single", 2048))
    async with serving(version, form, world) as replay:
        answer = await replay.send("preemption", "filter")
        # Both as nodes of no use to kube-scheduler's own preemption, in words that go into the pod's condition.
        assert answer["FailedNodes"] == {}
        assert answer["FailedAndUnresolvableNodes"] == {
            "four": "asks for 10 GiB, the largest GPU has 8 GiB",
            "single": "asks for 10 GiB, the largest GPU has 2 GiB",
        }


@every_version
@every_recording
@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_a_replica_that_has_not_read_everything_yet_decides_nothing(
    version: str, form: str, verb: str
) -> None:
    world = world_of(four())
    async with serving(version, form, world, missing="pods are not read yet") as replay:
        with pytest.raises(AssertionError, match="pods are not read yet"):
            await replay.send("single-share", verb)
        assert not world.api.bindings
