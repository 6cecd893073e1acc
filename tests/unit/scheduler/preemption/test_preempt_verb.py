"""The verb preempt adds no protected pod if another node has room, and counts those that it has to add."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.framework.preemption_results import GUARDED
from gpushare.scheduler.plugins.preemption import extender_preempt
from tests.unit.scheduler.preemption.test_preemption import bound, budget
from tests.unit.scheduler.world import World, gpu_node

DB = {"app": "db"}


async def victims_of(
    world: World, victims: dict[str, list[str]], violations: dict[str, int] | None = None
) -> dict[str, tuple[list[str], int]]:
    """The victims returned to kube-scheduler for each node, and the number of PDB violations."""
    named = {
        node: {
            "Pods": [{"UID": f"uid-{name}"} for name in names],
            "NumPDBViolations": (violations or {}).get(node, 0),
        }
        for node, names in victims.items()
    }
    body = {"Pod": world.api.pods["default/high"], "NodeNameToMetaVictims": named}
    answer = await world.verb(decisions=world.decisions).preempt(msgspec.json.encode(body))
    answered: dict[str, Any] = msgspec.json.decode(answer)["NodeNameToMetaVictims"]
    return {
        node: ([each["UID"].removeprefix("uid-") for each in one["Pods"]], one["NumPDBViolations"])
        for node, one in answered.items()
    }


@pytest.fixture
async def two(world: World) -> World:
    """On each of two nodes a pod that kube-scheduler would evict for its CPU, and a further victim: on n1 of a database."""
    world.add_node(gpu_node("n2", 16384))
    await bound(world, "hog-1", 4, "n1", priority=1)
    await bound(world, "db-1", 12, "n1", priority=1, labels=DB)
    await bound(world, "hog-2", 4, "n2", priority=1)
    await bound(world, "free", 12, "n2", priority=5)
    world.create("high", 10, priority=9)
    return world


BOTH = {"n1": ["hog-1"], "n2": ["hog-2"]}


async def test_a_node_that_needs_a_protected_victim_is_left_out_if_another_has_capacity(
    two: World,
) -> None:
    two.api.budgets = [budget("db", 0, app="db")]
    assert await victims_of(two, BOTH) == {"n2": (["hog-2", "free"], 0)}
    answer = two.decisions.get("uid-high")
    assert answer is not None
    assert answer.preemption is not None
    assert {one.reason: one.examples for one in answer.preemption.refused} == {GUARDED: ("n1",)}


async def test_if_no_other_node_has_room_a_protected_pod_counts_as_a_violation(two: World) -> None:
    two.api.budgets = [budget("db", 0, app="db")]
    assert await victims_of(two, {"n1": ["hog-1"]}, {"n1": 2}) == {"n1": (["hog-1", "db-1"], 3)}


async def test_a_node_with_kube_schedulers_own_violations_is_no_better(two: World) -> None:
    two.api.budgets = [budget("db", 0, app="db")]
    found = await victims_of(two, BOTH, {"n2": 2})
    assert found == {"n1": (["hog-1", "db-1"], 1), "n2": (["hog-2", "free"], 2)}


async def test_victims_allowed_by_budgets_are_added_freely_and_kube_schedulers_count_first(
    two: World,
) -> None:
    two.api.budgets = [budget("db", 1, app="db")]
    assert await victims_of(two, {"n1": ["hog-1"]}) == {"n1": (["hog-1", "db-1"], 0)}
    two.api.pods["default/hog-1"]["metadata"]["labels"] = DB
    assert await victims_of(two, {"n1": ["hog-1"]}) == {"n1": (["hog-1", "db-1"], 1)}


async def test_of_possible_additional_victims_the_protected_one_stays(two: World) -> None:
    """Although it has the lowest priority of all."""
    two.add_node(gpu_node("n3", 16384, 16384))
    await bound(two, "db-3", 12, "n3", priority=1, labels=DB)
    await bound(two, "other-3", 12, "n3", priority=7)
    two.api.budgets = [budget("db", 0, app="db")]
    assert await victims_of(two, {"n3": []}) == {"n3": (["other-3"], 0)}
    two.api.budgets = []
    assert await victims_of(two, {"n3": []}) == {"n3": (["db-3"], 0)}


async def test_budgets_are_not_read_if_no_victim_is_added(two: World) -> None:
    def read() -> None:
        raise AssertionError("kube-scheduler waits for nothing")

    two.api.reading.append(read)
    two.add_node(gpu_node("n3", 16384))
    await bound(two, "hog-3", 16, "n3", priority=1)
    assert await victims_of(two, {"n3": ["hog-3"]}) == {"n3": (["hog-3"], 0)}


async def test_pods_of_namespaces_without_a_budget_are_not_read(two: World) -> None:
    reads: list[str] = []
    two.api.reading += [lambda: reads.append("budgets"), lambda: reads.append("a pod")]
    assert len(await victims_of(two, BOTH)) == 2
    assert reads == ["budgets"]


@pytest.mark.parametrize("how", ["refused", "late"])
async def test_unreadable_budgets_protect_every_pod(
    two: World, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "refused":

        def refuse() -> None:
            raise ApiError(403, "Forbidden", "poddisruptionbudgets is forbidden", "")

        two.api.reading += [refuse] * 9
    else:
        monkeypatch.setattr(extender_preempt, "_PATIENCE_S", 0.01)

        async def hang() -> list[Any]:
            await asyncio.Event().wait()
            return []

        monkeypatch.setattr(two.api, "list_budgets", hang)
    assert await victims_of(two, BOTH) == {"n1": (["hog-1", "db-1"], 1), "n2": (["hog-2", "free"], 1)}
    assert len(caplog.records) == 1
    assert "pod default/high: PodDisruptionBudgets cannot be read" in caplog.text


async def test_a_budget_does_not_protect_a_pod_that_is_gone_or_was_recreated(two: World) -> None:
    two.api.budgets = [budget("db", 0, app="db")]
    two.api.pods["default/db-1"]["metadata"]["uid"] = "another"
    assert await victims_of(two, {"n1": ["hog-1"]}) == {"n1": (["hog-1", "db-1"], 0)}
    del two.api.pods["default/db-1"]
    assert await victims_of(two, {"n1": ["hog-1"]}) == {"n1": (["hog-1", "db-1"], 0)}
