"""ResourcePolicies in the extender's verbs, with requests in kube-scheduler's format."""

import asyncio

import pytest

from gpushare.api import names
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.plugins.resource_policy import plugin
from gpushare.scheduler.plugins.resource_policy.model.unit_selection import PREEMPTION_S
from gpushare.scheduler.plugins.resource_policy.plugin import LOOK_AGAIN_S, PROMISED_S
from gpushare.scheduler.requeue.requeuer import Requeuer
from tests.unit.scheduler.preemption.test_preemption import look
from tests.unit.scheduler.resource_policy.policy_world import NODES, PolicyWorld, meta
from tests.unit.scheduler.world import gpu_node, pod_object

PAIR = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}


@pytest.fixture
async def rules() -> PolicyWorld:
    return PolicyWorld()


async def test_without_policies_and_for_unselected_pods_nothing_changes(rules: PolicyWorld) -> None:
    rules.make("p")
    assert rules.ask("p") == (list(NODES), {}, {})
    rules.rules({}, selector={"app": "other"})
    assert rules.ask("p") == (list(NODES), {}, {})
    assert rules.victims("p", "a1", "n1") == ["a1", "n1"]
    await rules.bind("p", "n1")
    assert rules.api.bindings == [("default/p", "n1")]


async def test_pods_without_gpus_take_the_units_in_order_before_any_binding_was_seen(
    rules: PolicyWorld,
) -> None:
    rules.rules({"max": 1}, {"max": 1}, {})
    for name in "pqr":
        rules.make(name)
    assert rules.ask("p")[0] == ["a1", "a2"]
    assert rules.ask("q") == (["b1"], {}, {})
    assert rules.ask("r")[0] == ["c1"]
    assert rules.ask("r", "a1", "b1", "n1") == (
        [],
        {},
        {
            "a1": "ResourcePolicy default/p: unit 1: it has 1 of at most 1 pod",
            "b1": "ResourcePolicy default/p: unit 2: it has 1 of at most 1 pod",
            "n1": "ResourcePolicy default/p: the node is in none of its units",
        },
    )


async def test_pods_with_gpus_take_the_first_unit_with_room_on_a_gpu(rules: PolicyWorld) -> None:
    rules.add_node(gpu_node("a1", 16384))
    rules.add_node(gpu_node("b1", 16384))
    rules.rules({}, {})
    rules.make("p", 10)
    rules.make("q", 10)
    assert rules.ask("p", "a1", "b1")[0] == ["a1"]
    await rules.bind("p", "a1")
    rules.look("p")
    fits, refused, _ = rules.ask("q", "a1", "b1")
    assert fits == ["b1"]
    assert "no single GPU has 10 GiB free" in refused["a1"]
    record = meta(rules, "p")["annotations"]
    assert names.ANN_SHARE in record
    assert (record[names.ANN_DELETION_COST], record[names.ANN_COST_WRITTEN]) == ("200", "200")


async def test_an_unused_promise_expires(rules: PolicyWorld) -> None:
    rules.rules({"max": 1}, {})
    rules.make("p")
    rules.make("q")
    assert rules.ask("p")[0] == ["a1", "a2"]
    assert rules.policies.overdue() == []
    await rules.clock.turn(PROMISED_S)
    assert rules.policies.overdue() == []
    assert rules.ask("q")[0] == ["a1", "a2"]
    rules.gone("q")
    rules.policies.prolong("uid-q")
    assert not rules.policies.promises


async def test_pods_wait_while_the_pods_of_their_namespace_are_not_read(rules: PolicyWorld) -> None:
    rules.rules({})
    rules.make("p")
    rules.policies.unread.add("default")
    fits, _, hopeless = rules.ask("p")
    assert not fits
    assert set(hopeless.values()) == {"ResourcePolicy default/p: its pods have not been loaded yet"}
    with pytest.raises(BindRefused, match="not been loaded yet"):
        await rules.bind("p", "a1")
    assert rules.victims("p", "a1") == []
    await rules.clock.turn(1.0)
    rules.policies.hurry()
    assert rules.again == ["uid-p"]


async def test_a_pod_without_the_key_of_its_group_is_refused_with_a_reason(rules: PolicyWorld) -> None:
    rules.rules({"max": 1}, matchLabelKeys=["hash"])
    rules.make("p")
    _, refused, hopeless = rules.ask("p")
    assert not refused
    assert "counts pods by label hash, which this pod does not have" in hopeless["a1"]
    assert rules.victims("p", "a1") == []


async def test_a_pods_waiting_time_comes_from_its_condition_and_it_is_retried_in_time(
    rules: PolicyWorld,
) -> None:
    rules.rules({"max": 5}, {}, whenTryNextUnits={"policy": "TimeoutOrExceedMax", "timeout": "1m"})
    rules.make("p")
    fits, _, hopeless = rules.ask("p", "b1")
    assert not fits
    assert hopeless["b1"] == "ResourcePolicy default/p: unit 2: unit 1 comes before it"
    since = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    rules.api.pods["default/p"]["status"]["conditions"] = [since]
    await rules.clock.turn(50.0)
    assert rules.ask("p", "b1")[0] == []
    rules.policies.hurry()
    assert not rules.again
    await rules.clock.turn(10.1)
    rules.policies.hurry()
    assert rules.again == ["uid-p"]
    # Until kube-scheduler has tried it, it is retried.
    await rules.clock.turn(LOOK_AGAIN_S)
    rules.policies.hurry()
    assert rules.again == ["uid-p", "uid-p"]
    assert rules.ask("p", "b1")[0] == ["b1"]
    await rules.clock.turn(LOOK_AGAIN_S)
    rules.policies.hurry()
    assert len(rules.again) == 2


async def test_if_kube_scheduler_may_have_offered_only_some_nodes_a_waiting_pod_is_retried(
    rules: PolicyWorld,
) -> None:
    many = [f"b-{number}" for number in range(120)]
    for name in many:
        rules.policies.census.set_node(name, {"pool": "b"})
    rules.rules({"max": 5}, {}, whenTryNextUnits={"policy": "ExceedMax"})
    rules.make("p")
    rules.ask("p", *many[:50])
    await rules.clock.turn(LOOK_AGAIN_S)
    rules.policies.hurry()
    assert not rules.again
    rules.ask("p", *many[:100])
    await rules.clock.turn(LOOK_AGAIN_S)
    rules.policies.hurry()
    assert rules.again == ["uid-p"]


async def test_a_waiting_pod_is_retried_when_a_policy_changes_or_is_deleted(rules: PolicyWorld) -> None:
    rules.rules({"max": 0})
    rules.make("p")
    rules.make("other", labels={"app": "y"})
    assert rules.ask("p")[0] == []
    rules.rules({"max": 1}, generation=2)
    rules.policies.hurry()
    assert rules.again == ["uid-p"]
    assert rules.ask("p")[0] == ["a1", "a2"]
    rules.policies.remove_policy("default/p")
    assert rules.policies.strays == {"default"}
    rules.policies.hurry()
    assert rules.again == ["uid-p", "uid-p"]
    await rules.clock.turn(LOOK_AGAIN_S)
    rules.policies.hurry()
    assert not rules.policies.waiting
    assert rules.ask("p") == (list(NODES), {}, {})


async def test_a_pod_that_leaves_its_policy_no_longer_waits_for_it(rules: PolicyWorld) -> None:
    rules.rules({"max": 0})
    rules.make("p")
    assert set(rules.policies.waiting) == {"uid-p"}
    rules.api.pods["default/p"]["metadata"]["labels"] = {}
    rules.look("p")
    assert not rules.policies.waiting


async def test_evictions_happen_only_if_all_units_failed_and_in_the_first_with_victims(
    rules: PolicyWorld,
) -> None:
    rules.rules({"max": 1}, {}, {})
    rules.make("held", node="a1")
    rules.make("p", priority=5)
    assert rules.victims("p", "a1", "b1", "c1", "n1") == ["b1"]
    assert rules.victims("p", "c1") == ["c1"]
    assert rules.victims("p", "a1", "n1") == []
    rules.rules({"max": 5}, {}, generation=2, whenTryNextUnits={"policy": "ExceedMax"})
    assert rules.victims("p", "a1", "b1") == []


async def test_room_on_gpus_is_made_in_the_first_unit_where_it_helps_not_the_cheapest(
    rules: PolicyWorld,
) -> None:
    for name in ("a1", "b1", "c1"):
        rules.add_node(gpu_node(name, 16384))
    rules.rules({"max": 2}, {}, {})
    for name, node, priority in (("high", "a1", 90), ("middle", "b1", 10), ("low", "c1", 0)):
        rules.make(name, 16, priority=priority)
        await rules.bind(name, node)
        rules.look(name)
    rules.make("asks", 16, priority=50)
    rules.make("important", 16, priority=100)
    assert list(rules.ask("asks", "c1", "b1", "a1")[1]) == ["c1", "b1", "a1"]
    await look(rules)
    assert rules.api.evicted == ["middle"]
    assert rules.victims("important", "a1", "b1", "c1") == ["a1"]
    rules.ask("important", "c1", "b1", "a1")
    await look(rules)
    assert rules.api.evicted == ["middle", "high"]


async def test_room_for_each_pod_of_a_gang_is_made_in_the_first_unit_where_it_helps(
    rules: PolicyWorld,
) -> None:
    for name in ("a1", "b1", "c1"):
        rules.add_node(gpu_node(name, 16384))
    rules.rules({}, {}, {})
    for name, node, priority in (("first", "a1", 20), ("second", "b1", 10), ("third", "c1", 0)):
        rules.make(name, 16, priority=priority)
        await rules.bind(name, node)
        rules.look(name)
    for name in "pq":
        rules.make(name, 16, labels=PAIR, priority=50)
    for name in "pq":
        assert rules.ask(name, "c1", "b1", "a1")[0] == []
    await look(rules)
    assert sorted(rules.api.evicted) == ["first", "second"]


async def test_no_pod_is_evicted_in_a_unit_that_is_full_by_then(rules: PolicyWorld) -> None:
    for name in ("a1", "b1"):
        rules.add_node(gpu_node(name, 16384))
    rules.rules({"max": 2}, {})
    for name, node, priority in (("one", "a1", 0), ("other", "b1", 9)):
        rules.make(name, 16, priority=priority)
        await rules.bind(name, node)
        rules.look(name)
    rules.make("asks", 16, priority=50)
    rules.ask("asks", "a1", "b1")
    rules.make("came", node="a1")
    await look(rules)
    assert rules.api.evicted == ["other"]


async def test_before_the_next_unit_pods_are_evicted_in_this_one_if_the_policy_requires_it(
    rules: PolicyWorld,
) -> None:
    rules.add_node(gpu_node("a1", 16384))
    rules.add_node(gpu_node("b1", 16384))
    rules.rules({}, {}, preemptPolicy="BeforeNextUnit")
    rules.make("low", 10)
    await rules.bind("low", "a1")
    rules.look("low")
    rules.make("high", 10, priority=5)
    fits, refused, hopeless = rules.ask("high", "a1", "b1")
    assert (fits, list(refused), list(hopeless)) == ([], ["a1"], ["b1"])
    # After a refusal, kube-scheduler immediately requests victims.
    assert rules.victims("high", "a1", "b1") == ["a1"]
    await rules.clock.turn(PREEMPTION_S)
    rules.policies.hurry()
    assert rules.again == ["uid-high"]
    # While room is reserved for it, it does not proceed; otherwise it does.
    rules.kept_on = lambda uid: "a1"
    assert rules.ask("high", "a1", "b1")[0] == []
    rules.kept_on = lambda uid: ""
    assert rules.ask("high", "a1", "b1")[0] == ["b1"]
    rules.make("meek", 10, never=True)
    assert rules.ask("meek", "a1", "b1")[0] == ["b1"]


async def test_a_pod_refused_shortly_before_a_place_became_free_is_retried(rules: PolicyWorld) -> None:
    retries = Requeuer(rules.policies.waiting, rules.api, rules.clock)
    rules.policies.pod_refused.subscribe(retries.refused)
    rules.policies.capacity_freed.subscribe(retries.freed)
    rules.rules({"max": 1})
    rules.make("p", node="a1")
    rules.make("q")
    rules.ask("q")
    rules.gone("p")
    assert [record.uid for record in retries._to_touch(rules.clock.now_s)] == ["uid-q"]


async def test_gang_labels_of_a_pod_without_a_gpu_have_no_effect(rules: PolicyWorld) -> None:
    rules.make("p", labels={names.LABEL_GANG_NAME: "g"})
    assert rules.ask("p") == (list(NODES), {}, {})
    await rules.bind("p", "n1")
    assert rules.api.bindings == [("default/p", "n1")]


async def test_pods_of_another_scheduler_count_and_are_not_touched(rules: PolicyWorld) -> None:
    rules.rules({"max": 1})
    other = pod_object("other", labels={"app": "x"})
    other["spec"]["schedulerName"] = "default-scheduler"
    rules.api.create(other)
    rules.look("other")
    assert not rules.policies.waiting
    other["spec"]["nodeName"] = "a1"
    rules.look("other")
    rules.make("p")
    assert rules.ask("p")[0] == []


async def test_an_unchanged_policy_and_one_of_another_namespace_retry_no_pod(
    rules: PolicyWorld,
) -> None:
    rules.rules({"max": 0})
    rules.make("p")
    rules.ask("p")
    rules.rules({"max": 0})
    rules.rules({"max": 0}, name="second", made="2026-03-01T00:00:00Z")
    rules.policies.hurry()
    assert rules.again == ["uid-p"]
    rules.policies.remove_policy("default/second")
    assert not rules.policies.strays
    rules.policies.refresh("elsewhere")


async def test_memory_of_waiting_pods_is_bounded(rules: PolicyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_REMEMBERED", 2)
    rules.rules({}, {}, preemptPolicy="BeforeNextUnit")
    for name in "pqr":
        rules.make(name)
        rules.ask(name, "b1")
    assert len(rules.policies._tried) == 2
    # The retry time of each pending pod is remembered; of pods that no watch has shown yet, only of some.
    for name in "stu":
        rules.api.create(pod_object(name, labels={"app": "x"}))
        rules.ask(name, "b1")
    assert list(rules.policies._due) == [f"uid-{name}" for name in "pqrtu"]


async def test_a_gang_is_planned_only_on_nodes_of_units_with_room(rules: PolicyWorld) -> None:
    rules.gangs._patience_s = 0.05
    for name in ("a1", "b1", "n1"):
        rules.add_node(gpu_node(name, 16384))
    rules.rules({"max": 0}, {})
    for name in "pq":
        rules.make(name, 8, labels=PAIR)
    fits, _, hopeless = rules.ask("p", "a1", "n1")
    assert not fits
    assert hopeless == {
        "a1": "ResourcePolicy default/p: unit 1: it has 0 of at most 0 pods",
        "n1": "ResourcePolicy default/p: the node is in none of its units",
    }
    assert rules.ask("p", "a1", "b1", "n1")[0] == ["b1"]
    assert rules.ask("q", "a1", "b1", "n1")[0] == ["b1"]
    await asyncio.gather(rules.bind("p", "b1"), rules.bind("q", "b1"))
    assert len(rules.api.bindings) == 2


async def test_pods_of_a_gang_have_their_own_policy_or_none(rules: PolicyWorld) -> None:
    rules.add_node(gpu_node("a1", 16384))
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "1"}
    rules.rules({"max": 1}, selector={"app": "y"}, matchLabelKeys=["hash"])
    rules.make("p", 8, labels=gang)
    assert rules.ask("p", "a1")[0] == ["a1"]
    rules.make("q", 8, labels={**gang, "app": "y"})
    assert "counts pods by label hash" in rules.ask("q", "a1")[2]["a1"]


async def test_a_gang_goes_to_the_first_unit_though_a_later_one_would_be_better(
    rules: PolicyWorld,
) -> None:
    rules.gangs._patience_s = 0.05
    for name in ("a1", "b1"):
        rules.add_node(gpu_node(name, 32768))
    rules.rules({"max": 5}, {}, whenTryNextUnits={"policy": "ExceedMax"})
    rules.make("before", 8, labels={"app": "y"})
    await rules.bind("before", "b1")
    rules.look("before")
    for name in "pq":
        rules.make(name, 8, labels=PAIR)
    for name in "pq":
        assert rules.ask(name, "a1", "b1")[0] == ["a1"]
    await asyncio.gather(rules.bind("p", "a1"), rules.bind("q", "a1"))
    assert sorted(rules.api.bindings[1:]) == [("default/p", "a1"), ("default/q", "a1")]


async def test_a_gang_proceeds_where_its_policy_allows_and_its_plan_there_stays(rules: PolicyWorld) -> None:
    rules.gangs._patience_s = 0.05
    for name in ("a1", "b1"):
        rules.add_node(gpu_node(name, 16384))
    rules.rules({"max": 5}, {})
    rules.make("filler", 9)
    await rules.bind("filler", "a1")
    rules.look("filler")
    for name in "pq":
        rules.make(name, 8, labels=PAIR)
    assert rules.ask("p", "a1", "b1")[0] == ["b1"]
    binding = asyncio.create_task(rules.bind("p", "b1"))
    await asyncio.sleep(0)
    # A pod waiting to be bound continues to wait: offering another starts no other plan.
    assert rules.ask("q", "a1", "b1")[0] == ["b1"]
    await asyncio.gather(binding, rules.bind("q", "b1"))
    assert sorted(rules.api.bindings[1:]) == [("default/p", "b1"), ("default/q", "b1")]


async def test_a_gang_whose_policy_denies_it_the_planned_node_releases_the_room(rules: PolicyWorld) -> None:
    rules.add_node(gpu_node("a1", 16384))
    rules.rules({})
    for name in "pq":
        rules.make(name, 8, labels=PAIR)
    assert rules.ask("p", "a1")[0] == ["a1"]
    assert rules.used_mib("a1") == [16384]
    rules.policies.unread.add("default")
    assert rules.ask("q", "a1")[0] == []
    assert rules.used_mib("a1") == [0]


async def test_the_rest_of_a_partly_running_gang_keeps_its_room_while_its_policy_is_not_read(
    rules: PolicyWorld,
) -> None:
    rules.gangs._patience_s = 0.01
    rules.add_node(gpu_node("a1", 16384))
    rules.rules({})
    for name in "pq":
        rules.make(name, 8, labels=PAIR)
    for name in "pq":
        assert rules.ask(name, "a1")[0] == ["a1"]
    with pytest.raises(BindRefused, match="1 of 2 pods is ready"):
        await rules.bind("p", "a1")
    await rules.bind("q", "a1")
    rules.look("q")
    rules.policies.unread.add("default")
    assert rules.ask("p", "a1")[0] == []
    assert rules.used_mib("a1") == [16384]
    rules.policies.unread.clear()
    assert rules.ask("p", "a1")[0] == ["a1"]
    await rules.bind("p", "a1")


async def test_a_gang_with_a_time_for_each_unit_proceeds_once_it_is_over(rules: PolicyWorld) -> None:
    for name in ("a1", "b1"):
        rules.add_node(gpu_node(name, 16384))
    rules.rules({"max": 5}, {}, whenTryNextUnits={"policy": "TimeoutOrExceedMax", "timeout": "1m"})
    rules.make("filler", 16)
    await rules.bind("filler", "a1")
    rules.look("filler")
    since = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for name in "pq":
        rules.make(name, 8, labels=PAIR, status={"conditions": [since]})
    assert rules.ask("p", "a1", "b1")[0] == []
    assert rules.used_mib("b1") == [0]
    await rules.clock.turn(60.1)
    for name in "pq":
        assert rules.ask(name, "a1", "b1")[0] == ["b1"]
