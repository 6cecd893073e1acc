"""A pod's time in a unit of a ResourcePolicy begins when it is first refused, whatever its condition says."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.api import names
from gpushare.scheduler.requeue import refused_since
from gpushare.scheduler.requeue.requeuer import Requeuer
from tests.unit.scheduler.resource_policy.policy_world import FIRST, PolicyWorld, meta

GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
CREATION = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
NULL: dict[str, Any] = {"lastTransitionTime": None}


@pytest.fixture
async def rules() -> PolicyWorld:
    return world()


def world() -> PolicyWorld:
    made = PolicyWorld()
    made.rules({"max": 5}, {}, whenTryNextUnits={"policy": "TimeoutOrExceedMax", "timeout": "15m"})
    return made


def set_condition(rules: PolicyWorld, name: str, condition: dict[str, Any], *, seen: bool = True) -> None:
    rules.api.pods[f"default/{name}"]["status"]["conditions"] = [condition]
    if seen:
        rules.look(name)


def goes_on(rules: PolicyWorld, name: str = "p") -> bool:
    """Whether the pod may go from unit 1, where no node takes it, to unit 2."""
    return rules.ask(name, "b1")[0] == ["b1"]


@pytest.fixture(params=[CREATION, NULL], ids=["of-its-creation", "none"])
def time(request: pytest.FixtureRequest) -> Any:
    """The time in the condition of a pod with gates."""
    return request.param


async def test_time_behind_scheduling_gates_is_not_counted(rules: PolicyWorld, time: dict[str, Any]) -> None:
    rules.make("p", status={"conditions": [GATED | time]})
    await rules.clock.turn(20 * 60)
    # The gates are gone; the condition is as it was until kube-scheduler has refused the pod.
    assert not goes_on(rules)
    set_condition(rules, "p", REFUSED | time)
    await rules.clock.turn(15 * 60 - 1)
    assert not goes_on(rules)
    await rules.clock.turn(2)
    assert goes_on(rules)


async def test_a_pod_offered_before_it_was_seen_has_its_whole_time_too(rules: PolicyWorld) -> None:
    rules.make("p", status={"conditions": [GATED | CREATION]})
    rules.policies.remove_pod(next(iter(rules.policies.census.pods_of("default"))))
    await rules.clock.turn(20 * 60)
    assert not goes_on(rules)
    rules.policies.hurry()
    set_condition(rules, "p", REFUSED | CREATION)
    assert not goes_on(rules)


async def test_a_refusal_by_kube_scheduler_alone_begins_the_time(rules: PolicyWorld) -> None:
    rules.make("p", status={"conditions": [GATED | CREATION]})
    await rules.clock.turn(20 * 60)
    set_condition(rules, "p", REFUSED | CREATION)
    await rules.clock.turn(14 * 60)
    assert not goes_on(rules)
    await rules.clock.turn(61)
    assert goes_on(rules)


async def test_the_time_is_noted_on_the_pod_for_the_next_leader(time: dict[str, Any]) -> None:
    rules = world()
    retries = Requeuer(rules.policies.waiting, rules.api, rules.clock, stamp=rules.policies.since.stamp)
    rules.policies.retry_wanted.subscribe(retries.hurry)
    rules.make("p", status={"conditions": [GATED | time]})
    await rules.clock.turn(20 * 60)
    assert not goes_on(rules)
    rules.policies.hurry()
    touching = asyncio.create_task(retries.run())
    await asyncio.sleep(0)
    await rules.clock.turn(1)
    for _ in range(20):
        await asyncio.sleep(0)
    touching.cancel()
    ((_, annotations),) = rules.api.annotated
    noted = annotations[names.ANN_REFUSED_SINCE]
    assert noted == datetime.fromtimestamp(FIRST + 20 * 60, UTC).isoformat().replace("+00:00", "Z")
    # What was only remembered is lost.
    after = world()
    after.make("p", annotations={names.ANN_REFUSED_SINCE: noted}, status={"conditions": [REFUSED | time]})
    await after.clock.turn(34 * 60)
    assert not goes_on(after)
    await after.clock.turn(61)
    assert goes_on(after)


async def test_without_a_recorded_time_a_restart_starts_the_wait_again(
    rules: PolicyWorld,
) -> None:
    rules.make("p", status={"conditions": [REFUSED | NULL]})
    await rules.clock.turn(60 * 60)
    assert not goes_on(rules)
    await rules.clock.turn(15 * 60 + 1)
    assert goes_on(rules)


async def test_a_note_older_than_its_pod_came_with_a_manifest_and_is_ignored(rules: PolicyWorld) -> None:
    rules.make("p", annotations={names.ANN_REFUSED_SINCE: "2025-01-01T00:00:00Z"})
    meta(rules, "p")["creationTimestamp"] = "2026-01-01T00:00:00Z"
    set_condition(rules, "p", REFUSED | NULL)
    assert not goes_on(rules)
    await rules.clock.turn(15 * 60 + 1)
    assert goes_on(rules)


async def test_pods_that_were_never_gated_are_neither_remembered_nor_touched(rules: PolicyWorld) -> None:
    rules.make("p")
    assert not goes_on(rules)
    set_condition(rules, "p", REFUSED | CREATION)
    assert not goes_on(rules)
    rules.policies.hurry()
    assert not rules.again
    assert rules.policies.since.stamp("uid-p") == {}


async def test_without_a_timeout_no_pod_is_retried_for_it(rules: PolicyWorld) -> None:
    rules.rules({"max": 0}, generation=2)
    rules.policies.hurry()
    rules.make("p", status={"conditions": [GATED | CREATION]})
    assert not goes_on(rules)
    rules.policies.hurry()
    assert not rules.again


async def test_a_pod_that_no_longer_waits_is_forgotten_and_memory_is_bounded(
    rules: PolicyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_since, "_REMEMBERED", 2)
    for name in "pqr":
        rules.make(name, status={"conditions": [GATED | CREATION]})
        assert not goes_on(rules, name)
    assert [bool(rules.policies.since.stamp(f"uid-{name}")) for name in "pqr"] == [False, True, True]
    rules.gone("q")
    await rules.bind("r", "a1")
    rules.look("r")
    assert rules.policies.since.stamp("uid-q") == rules.policies.since.stamp("uid-r") == {}
