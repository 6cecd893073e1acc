"""Preemption for pods of higher priority: which pods are evicted, what becomes of them, and that it terminates."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.json_objects import Json
from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.eviction import MOST_TIMES, Eviction
from gpushare.simulate.engine.simulation import Result
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.output import report
from gpushare.simulate.snapshot import ClusterState, read_snapshot, snapshot_of
from tests.unit.simulate.objects import node, placed, pod, ran, template, whys, workload

T4 = 16160


def low(count: int, mem: int, **more: Any) -> Json:
    return workload("Deployment", "low", count, template(mem, labels={"app": "low"}, **more))


def victims(result: Result) -> list[tuple[str, str, str]]:
    return [(one.victim.partition("/")[2], one.node, one.by.partition("/")[2]) for one in result.evictions]


def cluster_with(*documents: Json, nodes: int = 1, gpus: int = 1, cpu: str = "16") -> ClusterState:
    """A cluster of T4 nodes on which these pods are placed."""
    from gpushare.simulate.engine.engine import Scheduling
    from gpushare.simulate.engine.virtual_clock import JumpingClock, run
    from gpushare.simulate.input.manifests import manifests_of
    from gpushare.simulate.snapshot import counting_of

    empty = ClusterState(tuple(node(f"n{number}", *[T4] * gpus, cpu=cpu) for number in range(nodes)))

    async def bound() -> ClusterState:
        scheduling = Scheduling(empty, Settings(), JumpingClock(0))
        for one in manifests_of([("test", one) for one in documents], empty, counting_of(empty)).pods:
            scheduling.arrive(one.pod)
        assert not await scheduling.schedule(list(scheduling.pods))
        return ClusterState(empty.nodes, tuple(scheduling.pods.values()))

    return run(bound())


def test_a_pod_of_higher_priority_evicts_others_and_its_victims_are_pending_again() -> None:
    state = cluster_with(low(2, 7))
    result = ran(state, pod("urgent", 8, priority=1000))
    assert victims(result) == [("low-1", "n0", "urgent")]
    assert placed(result) == {"urgent": "n0", "low-1": ""}
    assert "no single GPU has 7 GiB free" in whys(result)["low-1"]
    text = report.tables(result)
    assert "default/urgent lands on n0 by evicting default/low-1 (recreated, pending)" in text
    assert "1 evicted for higher-priority pods, 1 of them recreated." in text
    document = report.structured(result)
    assert document["evictions"] == [
        {"pod": "default/low-1", "node": "n0", "for": "default/urgent", "recreated": True}
    ]
    assert [one["evictedFor"] for one in document["pods"]] == [None, "default/urgent"]
    assert [(one.arrived, one.waiting) for one in result.curve][-1] == (2, 1)


def test_without_preemption_and_with_policy_never_no_pod_is_evicted() -> None:
    state = cluster_with(low(2, 7))
    without = ran(state, pod("urgent", 8, priority=1000), settings=Settings(preemption=False))
    assert placed(without) == {"urgent": ""}
    never = ran(state, pod("urgent", 8, priority=1000, preemptionPolicy="Never"))
    assert placed(never) == {"urgent": ""}
    assert not never.evictions
    assert not ran(state, pod("equal", 8)).evictions
    by_cpu = pod("cpu", priority=1000, preemptionPolicy="Never")
    by_cpu["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "40"}}
    assert not ran(state, by_cpu).evictions


def test_a_victim_is_placed_on_another_node_where_one_fits() -> None:
    state = cluster_with(low(2, 7), nodes=1)
    more = ClusterState((*state.nodes, node("other", T4, special="no")), state.pods)
    urgent = pod("urgent", 8, priority=1000, nodeSelector={"kubernetes.io/hostname": "n0"})
    result = ran(more, urgent)
    assert placed(result) == {"urgent": "n0", "low-1": "other"}
    assert "by evicting default/low-1 (recreated, lands on other)" in report.tables(result)
    assert not result.waiting


def test_a_pod_without_an_owner_is_not_recreated() -> None:
    state = cluster_with(pod("bare", 15))
    result = ran(state, pod("urgent", 8, priority=1000))
    assert placed(result) == {"urgent": "n0", "bare": ""}
    assert whys(result)["bare"] == "evicted; no owner recreates it (the last time for default/urgent)"
    assert "by evicting default/bare (not recreated)" in report.tables(result)


def budget(spec: Json, **status: int) -> Json:
    selector = {"matchLabels": {"app": "low"}}
    made = {"kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {**spec, "selector": selector}}
    return {**made, "status": status} if status else made


@pytest.mark.parametrize(
    ("protecting", "evicted"),
    [
        (budget({"minAvailable": 2}), 0),
        (budget({"minAvailable": 1}), 1),
        (budget({"maxUnavailable": 1}), 1),
        (budget({"maxUnavailable": "0%"}), 0),
        (budget({"minAvailable": "50%"}), 1),
        (budget({}), 0),
        (budget({"minAvailable": 2}, disruptionsAllowed=1), 1),
        (budget({"minAvailable": 1}, disruptionsAllowed=0), 0),
    ],
)
def test_disruption_budgets_are_respected(protecting: Json, evicted: int) -> None:
    state = cluster_with(low(2, 7))
    assert len(ran(state, protecting, pod("urgent", 8, priority=1000)).evictions) == evicted


def test_a_budget_allows_no_more_evictions_in_sequence_than_it_has() -> None:
    state = cluster_with(low(4, 7), nodes=2)
    two = [pod(f"urgent-{number}", 8, priority=1000) for number in range(2)]
    assert len(ran(state, *two).evictions) == 2
    assert len(ran(state, budget({"maxUnavailable": 1}), *two).evictions) == 1
    saved = ClusterState(
        state.nodes, state.pods, budgets=({**budget({"minAvailable": 4}, disruptionsAllowed=0)},)
    )
    saved.budgets[0]["metadata"]["namespace"] = "default"
    assert not ran(read_snapshot(snapshot_of(saved), "saved"), *two).evictions


def test_a_pod_pending_because_of_a_budget_gets_that_reason() -> None:
    reasons = whys(ran(cluster_with(low(2, 7)), budget({"minAvailable": 2}), pod("urgent", 8, priority=1000)))
    assert reasons["urgent"].startswith("0/1 nodes are available: 1 no single GPU has 8 GiB free")
    assert reasons["urgent"].endswith(
        "). Only evicting pods that are currently protected by a PodDisruptionBudget would free enough."
    )


def test_a_budget_that_cannot_be_read_is_rejected() -> None:
    with pytest.raises(SimulateError, match="PodDisruptionBudget default/b: cannot be read"):
        ran(cluster_with(low(1, 7)), budget({"minAvailable": "many"}), pod("p", 1))
    with pytest.raises(SimulateError, match="neither a number nor a percentage"):
        ran(cluster_with(low(1, 7)), budget({"maxUnavailable": True}), pod("p", 1))


def cpu_pod(name: str, cpu: str, mem: int | None = None, **more: Any) -> Json:
    made = pod(name, mem, **more)
    made["spec"]["containers"][0]["resources"].setdefault("requests", {})["cpu"] = cpu
    return made


def cpu_low(count: int, cpu: str, mem: int | None = None) -> Json:
    made = low(count, mem) if mem else workload("Deployment", "low", count, template(labels={"app": "low"}))
    made["spec"]["template"]["spec"]["containers"][0]["resources"].setdefault("requests", {})["cpu"] = cpu
    return made


def test_where_cpu_is_short_kube_scheduler_evicts_as_few_pods_as_possible() -> None:
    state = cluster_with(cpu_low(3, "5"))
    result = ran(state, cpu_pod("urgent", "6", priority=1000))
    assert victims(result) == [("low-2", "n0", "urgent")]
    assert placed(result) == {"urgent": "n0", "low-2": ""}
    assert whys(result)["low-2"] == "0/1 nodes are available: 1 Insufficient cpu."
    # As a last resort it violates a budget.
    assert len(ran(state, budget({"minAvailable": 3}), cpu_pod("urgent", "6", priority=1000)).evictions) == 1


def test_the_extender_gets_kube_schedulers_victims_and_adds_others() -> None:
    state = cluster_with(cpu_low(3, "5", 5))
    result = ran(state, cpu_pod("urgent", "6", 8, priority=1000))
    assert sorted(victims(result)) == [("low-1", "n0", "urgent"), ("low-2", "n0", "urgent")]
    assert placed(result)["urgent"] == "n0"
    # Where that would free too little on one GPU, no pod is evicted.
    hopeless = ran(state, cpu_pod("urgent", "6", 15, priority=1000, nodeSelector={"no": "where"}))
    assert not hopeless.evictions


def test_of_two_nodes_the_one_with_pods_of_lower_priority_is_emptied() -> None:
    first = cpu_low(1, "12")
    first["spec"]["template"]["spec"]["priority"] = 5
    second = cpu_pod("lower", "12", priority=1)
    state = cluster_with(first, second, nodes=2)
    result = ran(state, cpu_pod("urgent", "12", priority=1000))
    assert [one for one, _, _ in victims(result)] == ["lower"]


def test_pods_that_were_terminating_in_the_read_cluster_go_before_any_is_evicted() -> None:
    state = cluster_with(low(2, 7))
    first, second = state.pods
    terminating = {**first, "metadata": {**first["metadata"], "deletionTimestamp": "2026-11-22T10:00:00Z"}}
    result = ran(ClusterState(state.nodes, (terminating, second)), pod("urgent", 8, priority=1000))
    assert placed(result) == {"urgent": "n0"}
    assert not result.evictions


def test_a_gang_evicts_others_for_all_of_its_pods_or_for_none() -> None:
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
    two = workload("StatefulSet", "gang", 2, template(12, labels=gang, priority=1000))
    result = ran(cluster_with(low(2, 7), gpus=2), two)
    assert placed(result)["gang-0"] == placed(result)["gang-1"] == "n0"
    assert len(result.evictions) >= 1
    alone = ran(cluster_with(low(2, 7)), two)
    assert not alone.evictions


def test_a_quota_reclaims_its_min() -> None:
    tree = {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": "tree"},
        "spec": {
            "root": {
                "name": "root",
                "min": {names.GPU_MEM: 15},
                "max": {names.GPU_MEM: 15},
                "children": [
                    {"name": one, "namespaces": [one], "min": {names.GPU_MEM: 7}, "max": {names.GPU_MEM: 15}}
                    for one in ("default", "other")
                ],
            }
        },
    }
    claiming = pod("claims", 7)
    claiming["metadata"]["namespace"] = "other"
    result = ran(cluster_with(low(2, 7)), tree, claiming)
    assert placed(result)["claims"] == "n0"
    assert [one for one, _, _ in victims(result)] == ["low-1"]


def test_pods_are_evicted_although_many_others_are_unschedulable(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpushare.simulate.engine import eviction

    monkeypatch.setattr(eviction, "MOST_REFUSED", 3)
    state = cluster_with(low(2, 7))
    documents = [workload("Deployment", "many", 8, template(8, priority=10)), pod("urgent", 8, priority=20)]
    result = ran(state, *documents)
    assert placed(result)["urgent"] == "n0"
    assert len(result.evictions) == 1


def test_the_simulation_terminates_however_often_a_pod_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpushare.simulate.engine import eviction

    monkeypatch.setattr(eviction, "MOST_TIMES", 1)
    result = ran(cluster_with(low(1, 15)), pod("urgent", 8, priority=1000))
    assert result.evictions == (Eviction("default/low-0", "n0", "default/urgent", again=False),)
    assert whys(result)["low-0"] == "evicted 1 time, not tried again (the last time for default/urgent)"
    assert MOST_TIMES > 1


def test_long_lists_of_evictions_are_cut() -> None:
    state = cluster_with(low(44, 7), nodes=22)
    result = ran(state, workload("Deployment", "urgent", 22, template(8, priority=9)))
    assert len(result.evictions) == 22
    assert "… and 2 more pods have others evicted: -d names them" in report.tables(result)
    assert "and 2 more pods" not in report.tables(result, details=True)
