"""Taints and events of Node objects."""

from gpushare_playground.controllers.nodelifecycle import taints_of
from gpushare_playground.objects import NODES, Json, spec_of
from tests.unit.playground.controllers.conftest import Cluster

NOW = "2026-01-01T00:00:00Z"
FOREIGN = {"key": "example.com/a", "value": "b", "effect": "NoSchedule"}


def a_node(*taints: Json, unschedulable: bool = False, **conditions: str) -> Json:
    listed = [{"type": kind, "status": status} for kind, status in conditions.items()]
    spec = {"taints": list(taints), "unschedulable": unschedulable}
    return {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": listed}}


def keys(taints: list[Json]) -> list[str]:
    return [one["key"] for one in taints]


def test_conditions_become_taints_and_those_of_others_stay() -> None:
    node = a_node(FOREIGN, unschedulable=True, Ready="Unknown", DiskPressure="True", MemoryPressure="False")
    prefix = "node.kubernetes.io/"
    assert keys(taints_of(node, NOW)) == [
        "example.com/a",
        f"{prefix}disk-pressure",
        f"{prefix}unreachable",
        f"{prefix}unschedulable",
    ]


def test_a_taint_goes_with_its_condition_but_its_namesake_with_another_effect_stays() -> None:
    ours = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    evicts = {**ours, "effect": "NoExecute"}
    assert taints_of(a_node(ours, evicts, FOREIGN, Ready="True"), NOW) == [evicts, FOREIGN]


def test_a_taint_that_exists_already_keeps_its_time() -> None:
    existing = {
        "key": "node.kubernetes.io/unschedulable",
        "effect": "NoSchedule",
        "timeAdded": "2020-01-01T00:00:00Z",
    }
    assert taints_of(a_node(existing, unschedulable=True), NOW) == [existing]


async def test_a_cordoned_node_is_tainted_and_freed_again(cluster: Cluster) -> None:
    await cluster.settled()
    cluster.api.change(NODES, "n1", spec={"unschedulable": True})
    await cluster.settled()
    taints = spec_of(cluster.api.get(NODES, "n1"))["taints"]
    assert keys(taints) == ["node.kubernetes.io/unschedulable"]
    cluster.api.change(NODES, "n1", spec={"unschedulable": None})
    await cluster.settled()
    assert not spec_of(cluster.api.get(NODES, "n1")).get("taints")


async def test_a_node_has_one_event_for_its_registration(cluster: Cluster) -> None:
    await cluster.settled()
    cluster.api.change(NODES, "n1", metadata={"labels": {"a": "b"}})
    await cluster.settled()
    registrations = [one for one in cluster.events.seen if "RegisteredNode" in one]
    assert len(registrations) == 1
