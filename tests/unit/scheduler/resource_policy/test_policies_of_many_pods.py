"""However many pods their policies keep pending, and however late the watch shows one, each is retried in time."""

import pytest

from gpushare.scheduler.plugins.resource_policy import plugin as policies_module
from gpushare.scheduler.plugins.resource_policy.plugin import LOOK_AGAIN_S
from tests.unit.scheduler.resource_policy.policy_world import PolicyWorld
from tests.unit.scheduler.world import pod_object


@pytest.fixture
async def rules() -> PolicyWorld:
    return PolicyWorld()


async def test_pods_that_kube_scheduler_never_tries_do_not_take_the_turn_of_others(
    rules: PolicyWorld,
) -> None:
    """As where kube-scheduler's own rules leave no node for the first of them."""
    rules.rules({"max": 0})
    pods = [f"p{number}" for number in range(1200)]
    for name in pods:
        rules.make(name)
    rules.rules({"max": 1}, generation=2)
    for _ in range(2 * int(LOOK_AGAIN_S)):
        await rules.clock.turn(1.0)
        rules.policies.hurry()
    assert set(rules.again) == {f"uid-{name}" for name in pods}


async def test_a_pod_that_waits_for_its_time_is_not_forgotten_for_others(
    rules: PolicyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies_module, "_REMEMBERED", 2)
    rules.rules({"max": 1}, {}, whenTryNextUnits={"policy": "TimeoutOrExceedMax", "timeout": "60s"})
    pods = [f"p{number}" for number in range(5)]
    for name in pods:
        rules.make(name)
        assert rules.ask(name, "n1")[0] == []
    await rules.clock.turn(60.0)
    rules.policies.hurry()
    assert set(rules.again) == {f"uid-{name}" for name in pods}


async def test_a_pod_tried_before_the_watch_shows_it_is_retried(
    rules: PolicyWorld,
) -> None:
    rules.rules({"max": 1}, {})
    rules.policies.unread.add("default")
    for name in "pq":
        rules.api.create(pod_object(name, labels={"app": "x"}))
        assert rules.ask(name)[0] == []
    rules.policies.unread.clear()
    for _ in range(3):
        await rules.clock.turn(1.0)
        rules.policies.hurry()
    assert not rules.again
    rules.look("p")
    rules.policies.hurry()
    assert rules.again == ["uid-p"]
    # The other one never comes.
    await rules.clock.turn(11.0)
    rules.policies.hurry()
    assert list(rules.policies._due) == ["uid-p"]
