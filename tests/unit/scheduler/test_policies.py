"""ResourcePolicies in the extender's verbs, over kube-scheduler's own words."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gpushare.kube.errors import ApiError, CredentialError, KubeError, Unreachable
from gpushare.model import names
from gpushare.model.objects import decode_pod
from gpushare.model.resource_policy import decode_policy, policy_pod_of
from gpushare.policy.choosing import PREEMPTION_S
from gpushare.scheduler import policies, wire
from gpushare.scheduler.bind import Binder, BindRefused
from gpushare.scheduler.extender import Bodies, filter_nodes, preempt_pods
from gpushare.scheduler.policies import LOOK_AGAIN_S, PROMISED_S, Policies
from gpushare.scheduler.policy_binding import PolicyBinding, surely_not_done
from gpushare.scheduler.retry import Retries
from gpushare.scheduler.wire import BindingArgs
from tests.unit.policy.policy_samples import written
from tests.unit.scheduler.world import World, gpu_node, pod_object

NODES = ("a1", "a2", "b1", "c1", "n1")
FIRST = 1_767_225_600  # 2026-01-01T00:00:00Z


class PolicyWorld(World):
    """A scheduler with policies; the pods of their namespace are seen as they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.clock.wall_off_s = FIRST - self.clock.now_s
        self.policies = Policies(self.clock)
        self.policies.kept_on = self.ledger.kept_on
        self.again: list[str] = []
        self.policies.on_due = self.again.extend
        self.policies.on_refused = lambda uid: None
        self.binding = PolicyBinding(self.api, self.policies, self.clock)
        self.binder = Binder(self.view, self.binding, self.reservations, self.clock)
        for name in NODES:
            self.policies.census.set_node(name, {"pool": name[0]})

    def rules(self, *units: dict[str, Any], generation: int = 1, **spec: Any) -> None:
        policy = decode_policy(written(*units, **spec))
        self.policies.upsert_policy(msgspec.structs.replace(policy, generation=generation))
        self.policies.unread.clear()

    def make(self, name: str, mem: Any = None, **more: Any) -> None:
        labels = {"app": "x", **more.pop("labels", {})}
        status = more.pop("status", {})
        made = pod_object(name, mem, labels=labels, **more)
        made["status"] |= status
        self.api.create(made)
        self.look(name)

    def look(self, name: str) -> None:
        """Let the informers see a pod."""
        self.see(name)
        self.policies.upsert_pod(policy_pod_of(decode_pod(self.api.pods[f"default/{name}"])))

    def gone(self, name: str) -> None:
        self.policies.remove_pod(policy_pod_of(decode_pod(self.api.pods.pop(f"default/{name}"))))

    def ask(self, name: str, *nodes: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """(Nodes that fit, reasons where others could be ended, reasons elsewhere)."""
        body = {"Pod": self.api.pods[f"default/{name}"], "Nodes": None, "NodeNames": list(nodes or NODES)}
        raw = filter_nodes(self.view, Bodies().read(json.dumps(body).encode()), self.refused, self.policies)
        read = msgspec.json.decode(raw)
        return read["NodeNames"] or [], read["FailedNodes"] or {}, read["FailedAndUnresolvableNodes"] or {}

    async def bind(self, name: str, node: str) -> None:
        await self.binder.bind(BindingArgs("default", name, f"uid-{name}", node))

    def victims(self, name: str, *nodes: str) -> list[str]:
        """On which nodes kube-scheduler may end somebody for the pod."""
        offered = {node: {"Pods": [{"UID": "v"}], "NumPDBViolations": 0} for node in nodes}
        body = {"Pod": self.api.pods[f"default/{name}"], "NodeNameToMetaVictims": offered}
        args = wire.read_preemption(json.dumps(body).encode())
        answer = preempt_pods(self.view, args, lambda uid: None, self.policies)
        return list(msgspec.json.decode(answer)["NodeNameToMetaVictims"])


@pytest.fixture
async def rules() -> PolicyWorld:
    return PolicyWorld()


def meta(world: PolicyWorld, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.api.pods[f"default/{name}"]["metadata"]
    return found


async def test_without_policies_and_for_pods_of_none_all_is_as_it_was(rules: PolicyWorld) -> None:
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
    fits, refused, hopeless = rules.ask("q")
    assert (fits, refused) == (["b1"], {})
    assert hopeless == {
        "a1": "ResourcePolicy default/p: unit 1: it holds 1 of at most 1 pods",
        "a2": "ResourcePolicy default/p: unit 1: it holds 1 of at most 1 pods",
        "c1": "ResourcePolicy default/p: unit 3: unit 2 comes before it and takes the pod",
        "n1": "ResourcePolicy default/p: the node is in none of its units",
    }
    assert rules.ask("r")[0] == ["c1"]
    assert rules.ask("r", "a1", "n1")[0] == []


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


async def test_two_bindings_in_a_row_do_not_exceed_a_max_whatever_was_offered(rules: PolicyWorld) -> None:
    rules.rules({"max": 1})
    for name in "pq":
        rules.make(name)
    await rules.bind("p", "a1")
    with pytest.raises(BindRefused, match="no unit has room for the pod on node a2"):
        await rules.bind("q", "a2")
    assert rules.api.bindings == [("default/p", "a1")]
    rules.look("p")
    assert not rules.policies.promises
    assert rules.ask("q")[0] == []


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
    # Another unit takes back what the first had put on the pod.
    rules.make("q", labels={"tier": "1"}, annotations={names.ANN_UNIT_LABELS: "tier"})
    await rules.bind("q", "b1")
    assert patched[1] == {"annotations": {names.ANN_UNIT_LABELS: "t"}, "labels": {"tier": None, "t": "2"}}


async def test_a_pod_whose_labels_cannot_be_written_is_not_bound_and_gives_its_place_back(
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


async def test_a_binding_of_which_nobody_knows_keeps_its_place_until_the_pod_was_read(
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
    with pytest.raises(BindRefused, match="may be bound to node a1 any moment"):
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


async def test_what_became_of_a_binding_is_learnt_by_reading_the_pod(rules: PolicyWorld) -> None:
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


async def test_a_binding_that_the_api_server_refuses_gives_the_place_back_at_once(rules: PolicyWorld) -> None:
    def refuse() -> None:
        raise ApiError(403, "Forbidden", "not here", "")

    rules.rules({"max": 1}, {})
    rules.make("p")
    rules.make("q")
    rules.api.before = [refuse]
    with pytest.raises(BindRefused, match="not here"):
        await rules.bind("p", "a1")
    assert rules.ask("q")[0] == ["a1", "a2"]


async def test_a_promise_that_nobody_acts_on_ends_by_itself(rules: PolicyWorld) -> None:
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


async def test_a_pod_that_the_informer_has_not_seen_is_read_when_it_is_bound(rules: PolicyWorld) -> None:
    rules.rules({"max": 1})
    rules.api.create(pod_object("p", labels={"app": "x"}))
    await rules.bind("p", "a1")
    rules.api.create(pod_object("q", labels={"app": "x"}))
    with pytest.raises(BindRefused):
        await rules.bind("q", "a1")
    with pytest.raises(BindRefused, match="not found"):
        await rules.bind("r", "a1")


async def test_pods_wait_while_those_of_their_namespace_are_not_read(rules: PolicyWorld) -> None:
    rules.rules({})
    rules.make("p")
    rules.policies.unread.add("default")
    fits, _, hopeless = rules.ask("p")
    assert not fits
    assert set(hopeless.values()) == {"ResourcePolicy default/p: its pods are not read yet"}
    with pytest.raises(BindRefused, match="not read yet"):
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
    assert "counts pods by label hash, which this pod has not" in hopeless["a1"]
    assert rules.victims("p", "a1") == []


async def test_the_time_that_a_pod_waits_is_that_of_its_condition_and_it_is_asked_about_in_time(
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
    # Until it was asked about it is told again.
    await rules.clock.turn(LOOK_AGAIN_S)
    rules.policies.hurry()
    assert rules.again == ["uid-p", "uid-p"]
    assert rules.ask("p", "b1")[0] == ["b1"]
    await rules.clock.turn(LOOK_AGAIN_S)
    rules.policies.hurry()
    assert len(rules.again) == 2


async def test_where_kube_scheduler_may_have_shown_some_nodes_only_a_waiting_pod_is_asked_about_again(
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


async def test_who_waits_is_tried_again_when_a_policy_changes_or_goes(rules: PolicyWorld) -> None:
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


async def test_a_pod_that_leaves_its_policy_waits_for_it_no_more(rules: PolicyWorld) -> None:
    rules.rules({"max": 0})
    rules.make("p")
    assert set(rules.policies.waiting) == {"uid-p"}
    rules.api.pods["default/p"]["metadata"]["labels"] = {}
    rules.look("p")
    assert not rules.policies.waiting


async def test_a_place_that_comes_free_is_told(rules: PolicyWorld) -> None:
    freed: list[str] = []
    rules.policies.on_freed = lambda: freed.append("freed")
    rules.rules({"max": 1})
    rules.make("p", node="a1")
    rules.make("q")
    assert rules.ask("q")[0] == []
    rules.gone("p")
    assert freed == ["freed"]
    assert rules.ask("q")[0] == ["a1", "a2"]


async def test_others_are_ended_only_where_all_units_have_failed_and_in_the_first_with_victims(
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


async def test_before_the_next_unit_others_are_ended_in_this_one_where_the_policy_says_so(
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
    # Refused, kube-scheduler asks at once whom it may end.
    assert rules.victims("high", "a1", "b1") == ["a1"]
    await rules.clock.turn(PREEMPTION_S)
    rules.policies.hurry()
    assert rules.again == ["uid-high"]
    # While room is kept for it, it does not go on; without, it does.
    rules.policies.kept_on = lambda uid: "a1"
    assert rules.ask("high", "a1", "b1")[0] == []
    rules.policies.kept_on = lambda uid: ""
    assert rules.ask("high", "a1", "b1")[0] == ["b1"]
    rules.make("meek", 10, never=True)
    assert rules.ask("meek", "a1", "b1")[0] == ["b1"]


async def test_who_was_refused_shortly_before_a_place_came_free_is_tried_again(rules: PolicyWorld) -> None:
    retries = Retries(rules.policies.waiting, rules.api, rules.clock)
    rules.policies.on_refused = retries.refused
    rules.policies.on_freed = retries.freed
    rules.rules({"max": 1})
    rules.make("p", node="a1")
    rules.make("q")
    rules.ask("q")
    rules.gone("p")
    assert [record.uid for record in retries._left_behind(rules.clock.now_s)] == ["uid-q"]


async def test_a_pod_without_a_gpu_says_what_it_likes_of_a_gang(rules: PolicyWorld) -> None:
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


async def test_a_policy_that_says_the_same_again_and_one_of_another_namespace_wake_nobody(
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


async def test_what_is_remembered_of_waiting_pods_has_a_bound(
    rules: PolicyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_REMEMBERED", 2)
    rules.rules({}, {}, preemptPolicy="BeforeNextUnit")
    for name in "pqr":
        rules.make(name)
        rules.ask(name, "b1")
    assert len(rules.policies._tried) == 2
    assert len(rules.policies._due) == 2


async def test_overdue_promises_are_looked_at_every_second(rules: PolicyWorld) -> None:
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
def test_only_what_surely_did_not_happen_gives_a_place_back_at_once(error: KubeError, sure: bool) -> None:
    assert surely_not_done(error) is sure


async def test_a_gang_is_planned_on_nodes_of_units_with_room_alone(rules: PolicyWorld) -> None:
    rules.view.gangs._patience_s = 0.05
    for name in ("a1", "b1", "n1"):
        rules.add_node(gpu_node(name, 16384))
    rules.rules({"max": 0}, {})
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
    for name in "pq":
        rules.make(name, 8, labels=gang)
    fits, refused, hopeless = rules.ask("p", "a1", "b1", "n1")
    assert (fits, refused) == (["b1"], {})
    assert hopeless == {
        "a1": "ResourcePolicy default/p: unit 1: it holds 0 of at most 0 pods",
        "n1": "ResourcePolicy default/p: the node is in none of its units",
    }
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
