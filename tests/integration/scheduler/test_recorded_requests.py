"""Recorded requests of kube-scheduler's own code, oldest and newest version, are answered over
HTTP.

For the bodies see ``recording/SOURCES.md``.
"""

import asyncio
import json

from gpushare.api import names
from gpushare.api.crd.resource_policy import decode_policy, policy_pod_of
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import matrix
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.scheduler.server.protocol import BindingArgs
from tests.integration.scheduler.replaying import (
    CASES,
    create_waiting,
    every_recording,
    every_version,
    four,
    replaying,
    serving,
    world_of,
)
from tests.unit.scheduler.resource_policy.policy_world import PolicyWorld
from tests.unit.scheduler.world import gpu_node, pod_object


@every_version
@every_recording
async def test_a_share_several_gpus_and_a_whole_one_are_filtered_ranked_and_bound(
    version: str, form: str
) -> None:
    async with replaying(version, form) as replay:
        for case, shares in (
            ("single-share", [(0, 3)]),
            ("several-gpus", [(0, 4), (1, 4)]),
            ("whole-gpu", [(2, 15)]),
        ):
            assert await replay.fits(case) == ["four"]
            ranked = await replay.send(case, "prioritize")
            assert all(one.keys() == {"Host", "Score"} and 0 <= one["Score"] <= 10 for one in ranked)
            assert await replay.send(case, "bind") == {"Error": ""}
            assert replay.shares(case) == shares


@every_version
@every_recording
async def test_a_gang_is_bound_when_its_last_pod_arrives(version: str, form: str) -> None:
    async with replaying(version, form) as replay:
        for case in ("gang-first", "gang-second"):
            assert await replay.fits(case) == ["four"]
            await replay.send(case, "prioritize")
        answers = await asyncio.gather(
            *(replay.send(f"gang-{which}", "bind") for which in ("first", "second"))
        )
        assert answers == [{"Error": ""}] * 2
        assert replay.shares("gang-first") == replay.shares("gang-second") == [(0, 4)]


@every_version
@every_recording
async def test_victims_are_returned_in_the_form_they_were_sent(version: str, form: str) -> None:
    async with replaying(version, form) as replay:
        assert await replay.fits("preemption") == ["four"]
        victim = CASES["cases"][-1]["victims"]["single"][0]["metadata"]["uid"]
        sent = replay.body("preemption", "preempt")
        by_node = sent["NodeNameToMetaVictims"] if form == "names" else sent["NodeNameToVictims"]
        # 1.22 sends 0 of them where it sends victims by UID, whatever it counted; 1.36 sends what it counted.
        violations = by_node["single"]["NumPDBViolations"]
        assert await replay.send("preemption", "preempt") == {
            "NodeNameToMetaVictims": {"single": {"Pods": [{"UID": victim}], "NumPDBViolations": violations}}
        }


@every_version
@every_recording
async def test_init_containers_and_sidecars_are_counted_as_that_kube_scheduler_counts_them(
    version: str, form: str
) -> None:
    async with serving(version, form, world_of(four())) as replay:
        # 1.22 has no sidecars: it treats that one as an init container, and its API server has dropped
        # the restart policy.
        replay.world.api.create(replay.body("init-and-sidecar", "filter")["Pod"])
        replay.world.see("pipeline")
        units = {"1.22": max(4, 2, 3 + 2), "1.36": max(4, 2 + 3 + 2)}[version]
        await replay.bound("init-and-sidecar", "four")
        held = replay.world.ledger.held("00000000-0000-4000-8000-000000000011")
        assert held is not None
        assert [(share.index, share.units) for share in held.allocation.gpus] == [(0, units)]


@every_version
@every_recording
async def test_a_request_in_mib_is_allocated_in_the_unit_of_its_node(version: str, form: str) -> None:
    async with serving(version, form, world_of(four())) as replay:
        assert await replay.bound("in-mib", "four") == [(0, 4)]
    async with serving(version, form, world_of(four(unit=MemoryUnit.MIB_128))) as replay:
        assert "counted in units of 1 GiB" in (await replay.refusals("in-mib"))["four"]


@every_version
@every_recording
async def test_gpus_requested_by_count_are_the_nearest_to_each_other(version: str, form: str) -> None:
    near = matrix(4, lambda a, b: 100 if {a, b} == {1, 3} else 1)
    async with serving(version, form, world_of(four(mode=NodeMode.TOPOLOGY, near=near))) as replay:
        assert [index for index, _ in await replay.bound("gpus-by-number", "four")] == [1, 3]
        assert "mode topology" in (await replay.refusals("single-share"))["four"]


@every_version
@every_recording
async def test_policy_units_fill_in_order_with_pods_with_and_without_gpus(version: str, form: str) -> None:
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
    policy = {"metadata": meta, "spec": {"selector": {}, "units": units}}
    rules.policies.upsert_policy(decode_policy(json.dumps(policy).encode()))
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
        # A kube-scheduler that binds to another node than it was offered is refused with the reason.
        late = await replay.send("single-share", "bind")
        assert "no unit has capacity for the pod on node four" in late["Error"]
        assert rules.ledger.totals().pods == 0


@every_version
@every_recording
async def test_memory_and_compute_go_to_nodes_that_count_both(version: str, form: str) -> None:
    world = world_of(four(mode=NodeMode.CORE_MEM), gpu_node("single", 16384))
    async with serving(version, form, world) as replay:
        refused = (await replay.send("memory-and-compute", "filter"))["FailedAndUnresolvableNodes"]
        assert list(refused) == ["single"], "it does not count compute, whichever pods are evicted there"
        assert await replay.bound("memory-and-compute", "four") == [(0, 3)]
        usage = world.ledger.usage("four").gpus[0]
        assert (usage.used_mib, usage.used_core) == (3 * 1024, 30)
        # From now on pods that request memory alone do not fit here.
        assert await replay.fits("single-share") == ["single"]
        refused = (await replay.send("single-share", "filter"))["FailedNodes"]
        assert "so a memory-only pod cannot use it" in refused["four"]


@every_version
@every_recording
async def test_missing_victims_are_added_to_those_of_kube_scheduler(version: str, form: str) -> None:
    """kube-scheduler's victim has 8 of 16 units: with another pod's 7 the preemptor's 10 would still not fit."""
    world = world_of(gpu_node("single", 16384))
    victim_uid = CASES["cases"][-1]["victims"]["single"][0]["metadata"]["uid"]
    for name, uid, units, priority in (("low-0", victim_uid, 8, 0), ("beside", "uid-beside", 7, 0)):
        world.api.create(pod_object(name, units, uid=uid, priority=priority))
        world.see(name)
        await world.binder.bind(BindingArgs("default", name, uid, "single"))
        world.see(name)
    async with serving(version, form, world) as replay:
        assert not await replay.fits("preemption")
        victims = (await replay.send("preemption", "preempt"))["NodeNameToMetaVictims"]["single"]
        assert [one["UID"] for one in victims["Pods"]] == [victim_uid, "uid-beside"]
