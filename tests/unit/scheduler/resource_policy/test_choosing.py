"""The next unit: each of the four ways to proceed, and what is waited for."""

from typing import Any

import pytest

from gpushare.scheduler.plugins.resource_policy.model.unit_selection import (
    PREEMPTION_S,
    Choice,
    Standing,
    choose,
)
from tests.unit.scheduler.resource_policy.policy_samples import policy

TAKES = Standing("", takes=True)
LACKS = Standing("", takes=False)
FULL = Standing("it has 2 of at most 2 pods", takes=True)
CAPPED = {"max": 2}


def decide(
    when: str, units: list[dict[str, Any]], standings: list[Standing], waited_s: float = 0.0, **spec: Any
) -> Choice:
    tried = spec.pop("tried", ())
    policies = policy(*units, whenTryNextUnits={"policy": when, "timeout": "1m"}, **spec)
    return choose(policies, standings, waited_s, tried)


@pytest.mark.parametrize(
    "when", ["LackResourceOrExceedMax", "ExceedMax", "TimeoutOrExceedMax", "LackResourceAndNoTerminating"]
)
def test_the_first_unit_with_a_node_for_the_pod_takes_it_whatever_the_policy(when: str) -> None:
    found = decide(when, [CAPPED, {}], [TAKES, TAKES])
    assert (found.unit, found.reasons) == (0, ("", "unit 1 comes before it and has capacity for the pod"))
    found = decide(when, [CAPPED, {}, {}], [FULL, TAKES, LACKS])
    assert found.unit == 1
    assert found.reasons[0] == "it has 2 of at most 2 pods"


def test_by_default_a_pod_proceeds_from_a_unit_without_room_or_above_its_max() -> None:
    assert decide("LackResourceOrExceedMax", [CAPPED, {}], [LACKS, TAKES]).unit == 1
    assert decide("LackResourceOrExceedMax", [CAPPED, {}], [FULL, TAKES]).unit == 1


def test_if_only_the_max_counts_a_pod_waits_for_nodes_of_a_capped_unit() -> None:
    found = decide("ExceedMax", [CAPPED, {}], [LACKS, TAKES])
    assert (found.unit, found.wait_s) == (None, None)
    assert found.reasons == (
        "the pod fits none of its nodes; the pod waits until the unit is full",
        "unit 1 comes before it",
    )
    assert decide("ExceedMax", [CAPPED, {}], [FULL, TAKES]).unit == 1


def test_if_only_the_max_counts_a_unit_without_one_is_skipped() -> None:
    assert decide("ExceedMax", [{}, {}], [LACKS, TAKES]).unit == 1


@pytest.mark.parametrize(
    "unit",
    [
        {"resource": "elastic"},
        {"podLabels": {"k8s.aliyun.com/resource-policy-wait-for-ecs-scaling": "true"}},
    ],
)
def test_a_unit_whose_nodes_are_still_to_come_is_waited_for_without_a_max(unit: dict[str, Any]) -> None:
    assert decide("ExceedMax", [unit, {}], [LACKS, TAKES]).unit is None
    assert decide("TimeoutOrExceedMax", [unit, {}], [LACKS, TAKES]).wait_s == 60.0


def test_with_a_timeout_a_pod_waits_that_long_in_each_bounded_unit() -> None:
    units = [CAPPED, CAPPED, {}]
    first = decide("TimeoutOrExceedMax", units, [LACKS, LACKS, TAKES], 10.0)
    assert (first.unit, first.wait_s) == (None, 50.0)
    assert first.reasons[0] == "the pod fits none of its nodes; the pod waits up to 60 s for it"
    second = decide("TimeoutOrExceedMax", units, [LACKS, LACKS, TAKES], 70.0)
    assert (second.unit, second.wait_s) == (None, 50.0)
    assert second.reasons[1].endswith("up to 60 s for it")
    assert decide("TimeoutOrExceedMax", units, [LACKS, LACKS, TAKES], 120.0).unit == 2


def test_with_a_timeout_a_full_unit_and_one_without_an_end_cost_no_time() -> None:
    assert decide("TimeoutOrExceedMax", [CAPPED, {}], [FULL, TAKES]).unit == 1
    assert decide("TimeoutOrExceedMax", [{}, {}], [LACKS, TAKES]).unit == 1


def test_terminating_pods_in_a_unit_are_waited_for_if_the_policy_requires_it() -> None:
    for unit_state in (LACKS, FULL):
        found = decide("LackResourceAndNoTerminating", [{}, {}], [unit_state._replace(leaving=1), TAKES])
        assert found.unit is None
        assert found.reasons[0].endswith("; waiting for 1 of its pods to terminate")
        assert decide("LackResourceAndNoTerminating", [{}, {}], [unit_state, TAKES]).unit == 1
    assert decide("LackResourceOrExceedMax", [{}, {}], [LACKS._replace(leaving=1), TAKES]).unit == 1


def test_in_the_last_unit_there_is_no_wait_and_victims_are_allowed_wherever_there_is_room() -> None:
    found = decide("TimeoutOrExceedMax", [{}, CAPPED, CAPPED], [LACKS, FULL, LACKS])
    assert (found.unit, found.wait_s, found.ending) == (None, None, {0, 2})


def test_while_waiting_for_a_unit_no_pod_is_evicted() -> None:
    assert decide("ExceedMax", [CAPPED, {}], [LACKS, TAKES]).ending == frozenset()


def test_victims_are_allowed_in_each_unit_before_the_next_if_the_policy_requires_it() -> None:
    spec = {"preemptPolicy": "BeforeNextUnit"}
    first = decide("LackResourceOrExceedMax", [{}, {}], [LACKS, TAKES], **spec)
    assert (first.unit, first.wait_s, first.ending, first.tries) == (None, PREEMPTION_S, {0}, 0)
    assert first.reasons[0] == "the pod fits none of its nodes; preemption is tried there first"
    assert decide("LackResourceOrExceedMax", [{}, {}], [LACKS, TAKES], tried={0}, **spec).unit == 1
    last = decide("LackResourceOrExceedMax", [{}, {}], [LACKS, LACKS], tried={0, 1}, **spec)
    assert (last.unit, last.ending) == (None, {0, 1})
    waiting = decide("ExceedMax", [CAPPED, {}], [LACKS, TAKES], tried={0}, **spec)
    assert waiting.ending == {0}
