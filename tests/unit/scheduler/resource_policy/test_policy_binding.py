"""Bindings within a unit's caps, labels set by the unit, and unknown outcomes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.api import names
from gpushare.kube.client.errors import ApiError, CredentialError, KubeError, Unreachable
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.plugins.resource_policy.plugin import PROMISED_S
from gpushare.scheduler.plugins.resource_policy.prebind import surely_not_done
from tests.unit.scheduler.resource_policy.policy_world import PolicyWorld, meta
from tests.unit.scheduler.world import pod_object


@pytest.fixture
async def rules() -> PolicyWorld:
    return PolicyWorld()


async def test_two_bindings_in_a_row_do_not_exceed_a_max_whatever_was_offered(rules: PolicyWorld) -> None:
    rules.rules({"max": 1})
    for name in "pq":
        rules.make(name)
    await rules.bind("p", "a1")
    with pytest.raises(BindRefused, match="no unit has capacity for the pod on node a2"):
        await rules.bind("q", "a2")
    assert rules.api.bindings == [("default/p", "a1")]
    rules.look("p")
    assert not rules.policies.promises
    assert rules.ask("q")[0] == []


async def test_a_pod_being_bound_counts_in_the_next_policy_before_its_watch_shows_it(
    rules: PolicyWorld,
) -> None:
    rules.rules({"max": 1})
    rules.api.create(pod_object("p", labels={"app": "x"}))
    rules.make("q")
    await rules.bind("p", "a1")  # shown by no watch, neither before nor after
    rules.rules({"max": 1}, generation=2)
    with pytest.raises(BindRefused, match="no unit has capacity for the pod on node a1"):
        await rules.bind("q", "a1")
    rules.rules({"max": 1}, name="older", made="2025-01-01T00:00:00Z")
    with pytest.raises(BindRefused, match="no unit has capacity for the pod on node a1"):
        await rules.bind("q", "a1")
    books = {book.policy.name: book.booked for book in rules.policies.census.books()}
    assert {name: set(booked) for name, booked in books.items()} == {"older": {"uid-p"}, "p": set()}
    rules.policies.remove_policy("default/older")
    with pytest.raises(BindRefused, match="no unit has capacity for the pod on node a1"):
        await rules.bind("q", "a1")
    # If the new one has no room for it there is nothing to count; nor if no policy decides any more.
    rules.rules({"max": 0}, generation=3)
    rules.policies.remove_policy("default/p")
    await rules.bind("q", "a1")


async def test_the_unit_s_labels_and_annotations_are_on_the_pod_when_it_is_bound(rules: PolicyWorld) -> None:
    rules.rules(
        {"max": 1, "podLabels": {"tier": "1"}, "podAnnotations": {"note": "first"}}, {"podLabels": {"t": "2"}}
    )
    rules.make("p")
    patched: list[dict[str, Any]] = []

    async def annotate(namespace: str, name: str, annotations: Any, *, uid: str, labels: Any = None) -> None:
        if rules.api.before:
            rules.api.before.pop(0)()
        assert (
            "nodeName" not in rules.api.pods[f"{namespace}/{name}"]["spec"]
            or not (rules.api.pods[f"{namespace}/{name}"]["spec"]["nodeName"])
        )
        patched.append({"annotations": annotations, "labels": labels})

    rules.api.annotate_pod = annotate  # type: ignore[method-assign]
    await rules.bind("p", "a1")
    assert patched == [{"annotations": {names.ANN_UNIT_LABELS: "tier"}, "labels": {"tier": "1"}}]
    assert meta(rules, "p")["annotations"]["note"] == "first"
    # Another unit removes what the first had set on the pod.
    rules.make("q", labels={"tier": "1"}, annotations={names.ANN_UNIT_LABELS: "tier"})
    await rules.bind("q", "b1")
    assert patched[1] == {"annotations": {names.ANN_UNIT_LABELS: "t"}, "labels": {"tier": None, "t": "2"}}


async def test_a_pod_whose_labels_cannot_be_written_is_not_bound_and_releases_its_place(
    rules: PolicyWorld,
) -> None:
    rules.rules({"max": 1, "podLabels": {"tier": "1"}})
    rules.make("p")

    async def refuse(*args: Any, **kwargs: Any) -> None:
        raise ApiError(422, "Invalid", "no such label", "")

    rules.api.annotate_pod = refuse  # type: ignore[method-assign]
    with pytest.raises(BindRefused, match="no such label"):
        await rules.bind("p", "a1")
    assert not rules.policies.promises
    assert rules.ask("p")[0] == ["a1", "a2"]


async def test_a_deletion_cost_of_the_user_stays(rules: PolicyWorld) -> None:
    rules.rules({})
    rules.make("p", annotations={names.ANN_DELETION_COST: "7"})
    await rules.bind("p", "a1")
    assert meta(rules, "p")["annotations"] == {names.ANN_DELETION_COST: "7"}


async def test_a_binding_with_unknown_outcome_keeps_its_place_until_the_pod_was_read(
    rules: PolicyWorld,
) -> None:
    def lost() -> None:
        raise Unreachable("POST", "no answer", sent=None)

    rules.rules({"max": 1}, {})
    rules.make("p")
    rules.make("q")
    rules.api.before = [lost]
    with pytest.raises(BindRefused):
        await rules.bind("p", "a1")
    assert rules.ask("p")[0] == ["a1"]
    with pytest.raises(BindRefused, match="may be bound to node a1 at any moment"):
        await rules.bind("p", "b1")
    assert rules.ask("q")[0] == ["b1"]
    await rules.clock.turn(PROMISED_S)
    # Read without an answer, then as unbound.
    rules.api.reading = [lost]
    [promise] = rules.policies.overdue()
    await rules.binding._settle(promise)
    assert rules.ask("q")[0] == ["b1"]
    await rules.clock.turn(PROMISED_S)
    [promise] = rules.policies.overdue()
    await rules.binding._settle(promise)
    assert rules.ask("q")[0] == ["a1", "a2"]


async def test_the_outcome_of_a_binding_is_learnt_by_reading_the_pod(rules: PolicyWorld) -> None:
    def lost() -> None:
        raise Unreachable("POST", "no answer", sent=None)

    rules.rules({"max": 1}, {})
    rules.make("p")
    rules.api.after = [lost]
    await rules.bind("p", "a1")
    await rules.clock.turn(PROMISED_S)
    [promise] = rules.policies.overdue()
    await rules.binding._settle(promise)
    assert "uid-p" in rules.policies.promises
    await rules.clock.turn(PROMISED_S)
    del rules.api.pods["default/p"]
    [promise] = rules.policies.overdue()
    await rules.binding._settle(promise)
    assert not rules.policies.promises


async def test_a_binding_refused_by_the_api_server_releases_the_place_immediately(rules: PolicyWorld) -> None:
    def refuse() -> None:
        raise ApiError(403, "Forbidden", "not here", "")

    rules.rules({"max": 1}, {})
    rules.make("p")
    rules.make("q")
    rules.api.before = [refuse]
    with pytest.raises(BindRefused, match="not here"):
        await rules.bind("p", "a1")
    assert rules.ask("q")[0] == ["a1", "a2"]


async def test_a_pod_that_the_informer_has_not_seen_is_read_when_it_is_bound(rules: PolicyWorld) -> None:
    rules.rules({"max": 1})
    rules.api.create(pod_object("p", labels={"app": "x"}))
    await rules.bind("p", "a1")
    rules.api.create(pod_object("q", labels={"app": "x"}))
    with pytest.raises(BindRefused):
        await rules.bind("q", "a1")
    with pytest.raises(BindRefused, match="not found"):
        await rules.bind("r", "a1")


async def test_overdue_promises_are_checked_every_second(rules: PolicyWorld) -> None:
    rules.rules({"max": 1}, {})
    rules.make("p")
    rules.api.before = [_lost]
    with pytest.raises(BindRefused):
        await rules.bind("p", "a1")
    sweeping = asyncio.create_task(rules.binding.run())
    for _ in range(3):
        await asyncio.sleep(0)
    await rules.clock.turn(PROMISED_S + 1)
    async with asyncio.timeout(10.0):
        while rules.policies.promises:
            await asyncio.sleep(0)
    sweeping.cancel()


async def test_a_slow_binding_keeps_its_place(rules: PolicyWorld) -> None:
    rules.rules({"max": 1}, {})
    for name in "pq":
        rules.make(name)
    rules.api.gate = asyncio.Event()
    binding = asyncio.create_task(rules.bind("p", "a1"))
    await _until(lambda: "uid-p" in rules.policies.promises)
    await rules.clock.turn(PROMISED_S)
    [promise] = rules.policies.overdue()
    await rules.binding._settle(promise)
    assert rules.ask("q")[0] == ["b1"]
    rules.api.gate.set()
    await binding
    assert rules.api.bindings == [("default/p", "a1")]


async def test_a_read_from_before_the_next_binding_does_not_free_its_place(rules: PolicyWorld) -> None:
    rules.rules({"max": 1}, {})
    for name in "pq":
        rules.make(name)
    rules.api.before = [_lost]
    with pytest.raises(BindRefused):
        await rules.bind("p", "a1")
    await rules.clock.turn(PROMISED_S)
    [promise] = rules.policies.overdue()
    read, requested, answered = rules.api.get_pod, asyncio.Event(), asyncio.Event()

    async def slowly(namespace: str, name: str) -> Any:
        found = await read(namespace, name)
        requested.set()
        await answered.wait()
        return found

    rules.api.get_pod = slowly  # type: ignore[method-assign]
    settling = asyncio.create_task(rules.binding._settle(promise))
    await requested.wait()
    rules.api.get_pod = read  # type: ignore[method-assign]
    rules.api.gate = asyncio.Event()
    binding = asyncio.create_task(rules.bind("p", "a1"))
    await _until(lambda: rules.policies.promises["uid-p"] is not promise)
    answered.set()
    await settling
    assert rules.ask("q")[0] == ["b1"]
    rules.api.gate.set()
    await binding
    assert rules.api.bindings == [("default/p", "a1")]


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not reached():
            await asyncio.sleep(0)


def _lost() -> None:
    raise Unreachable("POST", "no answer", sent=None)


@pytest.mark.parametrize(
    ("error", "sure"),
    [
        (ApiError(409, "", "", ""), True),
        (ApiError(408, "", "", ""), False),
        (ApiError(500, "", "", ""), False),
        (CredentialError("", ""), True),
        (Unreachable("", "", sent=False), True),
        (Unreachable("", "", sent=None), False),
    ],
)
def test_only_what_certainly_did_not_happen_releases_a_place_immediately(
    error: KubeError, sure: bool
) -> None:
    assert surely_not_done(error) is sure


async def test_a_binding_that_fails_after_its_policy_changed_releases_the_place_in_the_new_one(
    rules: PolicyWorld,
) -> None:
    def changed_and_refused() -> None:
        rules.rules({"max": 1, "nodeSelector": {"pool": "a"}}, generation=2)
        raise ApiError(403, "Forbidden", "not here", "")

    rules.rules({"max": 1})
    for name in "pq":
        rules.make(name)
    rules.api.before = [changed_and_refused]
    with pytest.raises(BindRefused, match="not here"):
        await rules.bind("p", "a1")
    assert rules.ask("q")[0] == ["a1", "a2"]


async def test_a_binding_with_unknown_outcome_is_settled_in_the_changed_policy(
    rules: PolicyWorld,
) -> None:
    def changed_and_lost() -> None:
        rules.rules({"max": 1, "nodeSelector": {"pool": "a"}}, generation=2)
        raise Unreachable("POST", "no answer", sent=None)

    rules.rules({"max": 1})
    for name in "pq":
        rules.make(name)
    rules.api.before = [changed_and_lost]
    with pytest.raises(BindRefused):
        await rules.bind("p", "a1")
    assert rules.ask("q")[0] == []
    await rules.clock.turn(PROMISED_S)
    [promise] = rules.policies.overdue()
    await rules.binding._settle(promise)
    assert rules.ask("q")[0] == ["a1", "a2"]


async def test_a_place_that_no_longer_exists_in_its_changed_policy_is_not_followed(
    rules: PolicyWorld,
) -> None:
    def changed_and_lost() -> None:
        rules.rules({"max": 1, "nodeSelector": {"pool": "b"}}, generation=2)
        raise Unreachable("POST", "no answer", sent=None)

    rules.rules({"max": 1})
    for name in "pq":
        rules.make(name)
    rules.api.before = [changed_and_lost]
    with pytest.raises(BindRefused):
        await rules.bind("p", "a1")
    assert rules.ask("q")[0] == ["b1"]
    await rules.clock.turn(PROMISED_S)
    assert not rules.policies.overdue()
    assert not rules.policies.promises.get("uid-p")
