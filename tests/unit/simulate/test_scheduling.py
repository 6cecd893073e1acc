"""Where pods are placed, in what order they are scheduled, and what is reported about pending ones."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.node.device import Placement
from gpushare.kubescheduler.resources import requests_of
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.snapshot import ClusterState, read_snapshot, snapshot_of, state_of
from tests.unit.simulate.objects import node, placed, pod, ran, template, whys, workload

T4 = 16160


def test_pods_fill_one_gpu_before_another_and_the_rest_is_pending_with_a_reason() -> None:
    state = ClusterState((node("one", T4, T4),))
    counted = Settings(ignored_by_scheduler=False)
    result = ran(state, workload("Deployment", "web", 4, template(6)), pod("big", 8), settings=counted)
    assert placed(result) == {"web-0": "one", "web-1": "one", "web-2": "one", "web-3": "one", "big": ""}
    assert [fate.gpus[0].index for fate in result.fates if fate.gpus] == [0, 0, 1, 1]
    assert "Insufficient aliyun.com/gpu-mem" in whys(result)["big"]
    alone = ran(
        state,
        workload("Deployment", "web", 4, template(6)),
        pod("big", 8),
    )
    assert "no single GPU has 8 GiB free (largest free: 3 GiB on GPU 0)" in whys(alone)["big"]
    assert [moment.waiting for moment in result.curve] == [0, 0, 0, 0, 0, 1]
    assert result.curve[0].allocated_mib == 0
    assert result.curve[-1].allocated_mib == sum(share.mib for fate in result.fates for share in fate.gpus)


def test_placeholder_pods_are_left_out() -> None:
    placeholder = _pending("placeholder", 8) | {"kind": "Pod"}
    placeholder["spec"]["schedulerName"] = names.PLACEHOLDER_SCHEDULER
    state = state_of([node("a", T4), _pending("w", 8) | {"kind": "Pod"}, placeholder], "x")
    assert placed(ran(state)) == {"w": "a"}


def test_resources_of_the_whole_pod_are_in_a_snapshot() -> None:
    running = _pending("p", 1) | {"kind": "Pod"}
    running["spec"] |= {"nodeName": "a", "resources": {"requests": {"cpu": "30"}}}
    state = read_snapshot(snapshot_of(state_of([node("a", T4), running], "x")), "file")
    assert requests_of(state.pods[0])["cpu"] == requests_of(running)["cpu"] == 30000


def test_the_policy_decides_between_nodes() -> None:
    state = ClusterState((node("a", T4), node("b", T4)))
    two = workload("Deployment", "web", 2, template(3))
    packed = placed(ran(state, two, settings=Settings(Placement.BINPACK)))
    assert len(set(packed.values())) == 1
    spread = placed(ran(state, two, settings=Settings(Placement.SPREAD)))
    assert set(spread.values()) == {"a", "b"}
    fragments = ran(state, two, settings=Settings(Placement.FRAGMENTATION))
    assert not fragments.waiting


def test_higher_priorities_come_first_and_pods_already_pending_before_equal_ones() -> None:
    state = ClusterState((node("a", T4),), pods=(_pending("old", 15),))
    urgent = pod("urgent", 15, priority=10)
    assert placed(ran(state, pod("new", 15))) == {"old": "a", "new": ""}
    assert placed(ran(state, urgent)) == {"old": "", "urgent": "a"}


def _pending(name: str, mem: int) -> dict[str, Any]:
    made = pod(name, mem, schedulerName=names.SCHEDULER_NAME)
    meta = {
        **made["metadata"],
        "namespace": "default",
        "uid": name,
        "creationTimestamp": "2026-11-22T10:00:00Z",
    }
    return {**made, "metadata": meta, "status": {"phase": "Pending"}}


def test_a_gang_is_placed_entirely_or_not_at_all() -> None:
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "3"}
    three = workload("StatefulSet", "gang", 3, template(10, labels=gang))
    assert set(placed(ran(ClusterState((node("a", T4, T4, T4),)), three)).values()) == {"a"}
    short = ran(ClusterState((node("a", T4, T4),)), three)
    assert set(placed(short).values()) == {""}
    assert "gang default/g" in whys(short)["gang-0"]
    assert short.curve[-1].allocated_mib == 0


def test_a_gang_that_kube_scheduler_cannot_place_is_pending_and_takes_no_time() -> None:
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
    state = ClusterState((node("a", T4, T4, cpu="1"),))
    limits = {names.GPU_MEM: 2, "cpu": "1"}
    made = template(2, labels=gang)
    made["spec"]["containers"][0]["resources"]["limits"] = limits
    result = ran(state, workload("Job", "gang", 2, made))
    assert set(placed(result).values()) == {""}
    assert any("1 of 2 pods is ready to be bound" in why for why in whys(result).values())


def test_several_gpus_whole_gpus_and_compute_are_simulated() -> None:
    state = ClusterState((node("a", T4, T4), node("c", T4, mode="core_mem")))
    result = ran(
        state,
        pod("core", 2, 30),
        pod("pair", 8, labels={names.LABEL_POD_GPU_COUNT: "2"}),
        pod("whole", 1, labels={names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}),
    )
    assert placed(result) == {"core": "c", "pair": "a", "whole": ""}
    by_name = {fate.pod: fate for fate in result.fates}
    assert [share.units for share in by_name["default/pair"].gpus] == [4, 4]
    assert by_name["default/core"].asks == "2 GiB + 30%"
    assert by_name["default/pair"].asks == "2 × 4 GiB"


def test_resource_policies_are_respected() -> None:
    policy = {
        "apiVersion": "scheduling.alibabacloud.com/v1alpha1",
        "kind": "ResourcePolicy",
        "metadata": {"name": "order"},
        "spec": {
            "strategy": "prefer",
            "units": [
                {"resource": "ecs", "max": 1, "nodeSelector": {"kind": "first"}},
                {"resource": "ecs", "nodeSelector": {"kind": "second"}, "podLabels": {"unit": "two"}},
            ],
        },
    }
    state = ClusterState((node("a", T4, kind="first"), node("b", T4, kind="second"), node("c", T4)))
    result = ran(state, policy, workload("Deployment", "web", 3, template(3, labels={"app": "web"})))
    assert sorted(placed(result).values()) == ["a", "b", "b"]


def test_a_policy_or_a_quota_that_cannot_be_read_is_rejected() -> None:
    state = ClusterState((node("a", T4),))
    policy = {"kind": "ResourcePolicy", "metadata": {"name": "p"}, "spec": {"units": []}}
    with pytest.raises(SimulateError, match="name 1 to"):
        ran(state, policy, pod("p", 1))
    tree = {
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "t"},
        "spec": {"root": {"name": "x", "min": {"cpu": 2}, "max": {"cpu": 1}}},
    }
    with pytest.raises(SimulateError, match="ElasticQuotaTree t"):
        ran(state, tree, pod("p", 1))


def test_the_max_of_an_elastic_quota_keeps_pods_pending() -> None:
    tree = {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": "tree"},
        "spec": {
            "root": {
                "name": "root",
                "min": {names.GPU_MEM: 30},
                "max": {names.GPU_MEM: 30},
                "children": [
                    {
                        "name": "team",
                        "namespaces": ["default"],
                        "min": {names.GPU_MEM: 4},
                        "max": {names.GPU_MEM: 5},
                    }
                ],
            }
        },
    }
    result = ran(ClusterState((node("a", T4, T4),)), tree, workload("Deployment", "web", 3, template(2)))
    assert [bool(fate.node) for fate in result.fates] == [True, True, False]
    assert "team" in whys(result)["web-2"]


def test_a_cpu_quota_counts_every_pod_and_keeps_only_pods_of_this_scheduler_pending() -> None:
    leaf = {"name": "team", "namespaces": ["default"], "max": {"cpu": 2}}
    tree = {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": "tree"},
        "spec": {"root": {"name": "root", "max": {"cpu": 9}, "children": [leaf]}},
    }

    def plain(name: str, **more: Any) -> dict[str, Any]:
        made = pod(name, **more)
        made["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1"}
        return made

    others = [plain(f"other-{number}") for number in range(2)]
    ours = plain("ours", schedulerName=names.SCHEDULER_NAME)
    state = ClusterState((node("a", T4),))
    assert placed(ran(state, tree, others[0], ours)) == {"other-0": "a", "ours": "a"}
    result = ran(state, tree, *others, ours)
    assert placed(result) == {"other-0": "a", "other-1": "a", "ours": ""}
    assert "elastic quota root/team: 2 of 2 cpu used (max), 1 requested" in whys(result)["ours"]
    assert placed(ran(state, tree, ours, *others))["other-1"] == "a", "another scheduler's are not held back"


@pytest.mark.parametrize("more", [{}, {"priority": 10}])
def test_a_gpu_pod_of_another_scheduler_is_pending_and_takes_nothing_from_others(
    more: dict[str, Any],
) -> None:
    running = _pending("running", 15)
    running["spec"]["nodeName"] = "a"
    elsewhere = pod("elsewhere", 15, schedulerName="other-sched", **more)
    result = ran(ClusterState((node("a", T4),), pods=(running,)), elsewhere)
    assert whys(result) == {
        "elsewhere": "no scheduler has handled it: none seems to run for schedulerName other-sched"
    }
    assert not result.evictions
    plain = pod("plain", schedulerName="other-sched")
    assert placed(ran(ClusterState((node("a", T4),)), elsewhere, pod("ours", 15), plain)) == {
        "elsewhere": "",
        "ours": "a",
        "plain": "a",
    }


def test_pods_without_gpus_are_scheduled_by_kube_scheduler_alone() -> None:
    state = ClusterState((node("plain", cpu="1"), node("a", T4, cpu="1")))
    plain = template()
    plain["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1"}
    result = ran(state, workload("Deployment", "web", 3, plain))
    assert sorted(placed(result).values()) == ["", "a", "plain"]
    assert whys(result) == {"web-2": "0/2 nodes are available: 2 Insufficient cpu."}
    assert {fate.asks for fate in result.fates} == {"no GPU"}


def test_pods_that_are_not_simulated_are_reported_by_kind() -> None:
    state = ClusterState((node("a", T4),))
    result = ran(
        state,
        pod("gated", 1, schedulingGates=[{"name": "x"}]),
        pod("placed", 1, nodeName="a"),
        pod("spread", 1, topologySpreadConstraints=[{"topologyKey": "zone"}]),
        pod("wrong", 1, 33),
    )
    assert placed(result) == {"gated": "", "placed": "a", "spread": "a", "wrong": ""}
    assert "scheduling gates" in whys(result)["gated"]
    assert whys(result)["wrong"].startswith("admission rejects it: aliyun.com/gpu-core.percentage must be")
    assert result.ignored == ("topologySpreadConstraints",)
    assert "no nodes available" in whys(ran(ClusterState(()), pod("p", 1)))["p"]


def test_ignored_features_are_named_from_a_saved_state_too() -> None:
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    pods = [_pending("runs", 1), _pending("kept", 1), _pending("own", 1), _pending("claims", 1)]
    pods[0]["spec"] |= {"nodeName": "a", "affinity": apart}
    pods[1]["spec"] |= {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "secret"}}]}
    pods[2]["spec"] |= {
        "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}, {"name": "e", "emptyDir": {}}]
    }
    pods[3]["spec"] |= {"resourceClaims": [{"name": "r", "resourceClaimName": "unread"}]}
    state = ClusterState((node("a", T4),), tuple(pods))
    expected = (
        "persistentVolumeClaim",
        "affinity.podAntiAffinity of 1 pod with a node already",
        "ResourceClaims of 1 pod, which were not read",
    )
    assert ran(state).ignored == expected
    saved = snapshot_of(state)
    assert b"secret" not in saved
    assert ran(read_snapshot(saved, "saved")).ignored == expected


def test_a_name_that_is_taken_is_rejected() -> None:
    state = ClusterState((node("a", T4),), pods=(_pending("p", 1),))
    with pytest.raises(SimulateError, match="pod default/p: exists already"):
        ran(state, pod("p", 1))


def test_running_pods_are_counted_and_can_be_placed_again() -> None:
    state = ClusterState((node("a", T4), node("b", T4)))
    first = ran(state, workload("Deployment", "web", 2, template(6)), settings=Settings(Placement.SPREAD))
    assert set(placed(first).values()) == {"a", "b"}
    scheduled = _as_bound(state, first)
    unmoved = ran(scheduled, pod("big", 12))
    assert whys(unmoved)
    rescheduled = ran(scheduled, pod("big", 12), reschedule=True)
    assert not rescheduled.waiting
    assert len({node for name, node in placed(rescheduled).items() if name != "big"}) == 1
    restored = read_snapshot(snapshot_of(scheduled), "snapshot")
    assert placed(ran(restored, pod("big", 12))) == placed(unmoved)


def _as_bound(state: ClusterState, result: object) -> ClusterState:
    """The state once the simulated pods are bound."""
    from gpushare.simulate.engine.engine import Scheduling
    from gpushare.simulate.engine.virtual_clock import JumpingClock, run
    from gpushare.simulate.input.manifests import manifests_of
    from gpushare.simulate.snapshot import counting_of

    async def bound() -> ClusterState:
        scheduling = Scheduling(state, Settings(Placement.SPREAD), JumpingClock(0))
        manifests = manifests_of(
            [("test", workload("Deployment", "web", 2, template(6)))], state, counting_of(state)
        )
        for one in manifests.pods:
            scheduling.arrive(one.pod)
        assert not await scheduling.schedule(list(scheduling.pods))
        return ClusterState(state.nodes, tuple(scheduling.pods.values()))

    return run(bound())
