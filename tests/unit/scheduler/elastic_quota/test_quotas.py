"""Elastic quotas in the scheduler: admission, reclaim, changes of the tree, and messages."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import QuotaTreeRecord, decode_quota_tree
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.elastic_quota.counted_pods import quota_record_of
from gpushare.scheduler.plugins.elastic_quota.quotas import (
    _MOST_OBSERVED,
    REASON_NOT_IN_FORCE,
    REASON_REFUSED,
)
from gpushare.scheduler.plugins.elastic_quota.watch import RETRY_S, QuotaReports, decode_tree, status_of
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.plugins.preemption.plugin import SETTLE_S
from gpushare.scheduler.server.protocol import BindingArgs, read_preemption
from tests.unit.scheduler.world import World, gpu_node, pod_object

MEM = names.GPU_MEM


def root(*, a: dict[str, Any], b: dict[str, Any], whole: int = 16) -> dict[str, Any]:
    """A root of ``whole`` with the quotas a (namespace x) and b (namespace z), in units of GPU memory."""

    def amounts(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: {MEM: value} for key, value in fields.items()}

    children = [
        {"name": "a", "namespaces": ["x"], **amounts(a)},
        {"name": "b", "namespaces": ["z"], **amounts(b)},
    ]
    return {"name": "root", **amounts({"min": whole, "max": whole}), "children": children}


HALVES = root(a={"min": 8}, b={"min": 8})
BAD = {"name": "root", "min": {MEM: 9}, "max": {MEM: 8}}


def tree(
    spec_root: Any,
    *,
    name: str = "tree",
    created: str = "2026-11-22T10:00:00Z",
    generation: int = 1,
    **status: Any,
) -> QuotaTreeRecord:
    meta = {"name": name, "uid": f"uid-{name}", "generation": generation, "creationTimestamp": created}
    return decode_quota_tree(
        json.dumps({"metadata": meta, "spec": {"root": spec_root}, "status": status}).encode()
    )


def create(world: World, namespace: str, name: str, units: int, **more: Any) -> dict[str, Any]:
    pod = pod_object(name, units, **more)
    pod["metadata"]["namespace"] = namespace
    world.api.create(pod)
    see(world, namespace, name)
    return pod


def see(world: World, namespace: str, name: str) -> None:
    record = quota_record_of(world.api_pod(namespace, name), world.quotas.followed)
    assert record is not None
    world.view.upsert_pod(record)


async def bind(world: World, namespace: str, name: str, node: str = "n1") -> None:
    await world.binder.bind(BindingArgs(namespace, name, f"uid-{name}", node))


async def bound(world: World, namespace: str, name: str, units: int, node: str = "n1", **more: Any) -> None:
    create(world, namespace, name, units, **more)
    await bind(world, namespace, name, node)
    see(world, namespace, name)


def ask(world: World, namespace: str, name: str, *nodes: str) -> tuple[list[str], dict[str, str]]:
    body = {"Pod": world.api.pods[f"{namespace}/{name}"], "NodeNames": list(nodes or ("n1",))}
    answer = msgspec.json.decode(
        filter_nodes(world.view, Bodies().read(msgspec.json.encode(body)), world.framework())
    )
    return answer["NodeNames"] or [], answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]


async def look(world: World) -> None:
    """Let the preemptor process the refusals once."""
    running = asyncio.create_task(world.preemptor.run())
    await asyncio.sleep(0)
    await world.clock.turn(SETTLE_S)
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()


def end(world: World, namespace: str, name: str) -> None:
    record = world.view.bound[f"uid-{name}"]
    del world.api.pods[f"{namespace}/{name}"]
    world.view.remove_pod(record)


# --- admission --------------------------------------------------------------------------------------


async def test_a_pod_above_the_max_is_refused_with_the_figures_until_another_ends(world: World) -> None:
    world.quotas.upsert(tree(root(a={"min": 4, "max": 6}, b={"min": 8})))
    await bound(world, "x", "p", 4)
    create(world, "x", "q", 3)
    fits, refused = ask(world, "x", "q")
    assert not fits
    assert refused == {"n1": f"elastic quota root/a: 4 of 6 {MEM} used (max), 3 requested"}
    with pytest.raises(BindRefused, match="elastic quota root/a: 4 of 6"):
        await bind(world, "x", "q")
    create(world, "elsewhere", "r", 3)
    assert ask(world, "elsewhere", "r")[0] == ["n1"]
    end(world, "x", "p")
    assert ask(world, "x", "q")[0] == ["n1"]


async def test_reservations_count_before_the_informer_shows_them(world: World) -> None:
    world.quotas.upsert(tree(root(a={"min": 4, "max": 6}, b={"min": 8})))
    create(world, "x", "p", 4)
    create(world, "x", "q", 4)
    await bind(world, "x", "p")
    assert not ask(world, "x", "q")[0]
    assert ask(world, "x", "p")[0] == ["n1"], "its own share does not stand against it"
    world.ledger.release("uid-p")
    assert ask(world, "x", "q")[0] == ["n1"]


async def test_a_pod_that_the_informer_has_not_shown_yet_is_limited_by_its_quota_too(world: World) -> None:
    world.quotas.upsert(tree(root(a={"min": 4, "max": 6}, b={"min": 8})))
    for name in ("p", "q"):
        pod = pod_object(name, 4)
        pod["metadata"]["namespace"] = "x"
        world.api.create(pod)
        ask(world, "x", name)
    await bind(world, "x", "p")
    with pytest.raises(BindRefused, match="4 of 6"):
        await bind(world, "x", "q")
    for number in range(_MOST_OBSERVED + 1):
        world.quotas.observe(f"uid-{number}", "x/p", {})
    assert world.quotas.refusal("uid-q") == "", "the oldest that no watch showed was forgotten"


async def test_a_gang_that_exceeds_the_max_is_refused_as_a_whole(world: World) -> None:
    world.quotas.upsert(tree(root(a={"min": 4, "max": 6}, b={"min": 8})))
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
    for name in ("g-0", "g-1"):
        create(world, "x", name, 4, labels=labels)
    fits, refused = ask(world, "x", "g-0")
    assert not fits
    assert "there is capacity for 1: elastic quota root/a: 4 of 6" in refused["n1"]
    assert world.used_mib("n1") == [0]
    assert world.quotas.books.held(0, MEM) == 0


async def test_pods_are_recounted_when_a_tree_is_added_and_none_counts_once_it_is_removed(
    world: World,
) -> None:
    hurried: list[str] = []
    world.quotas.retry_wanted.subscribe(hurried.extend)
    await bound(world, "x", "p", 4)
    create(world, "x", "q", 4)
    create(world, "x", "r", 4)
    create(world, "elsewhere", "s", 4)
    await bind(world, "x", "q")
    world.quotas.upsert(tree(HALVES))
    assert world.quotas.books.held(1, MEM) == 8000
    assert hurried == ["uid-q", "uid-r"]
    world.quotas.upsert(tree(HALVES, generation=2))
    assert len(hurried) == 2, "it says the same"
    world.quotas.remove("kube-system/tree", tree(HALVES))
    assert not world.quotas.in_use
    assert len(hurried) == 4


# --- reclaim ----------------------------------------------------------------------------------------


async def test_borrowed_capacity_is_reclaimed_and_reserved_for_the_claimant(world: World) -> None:
    world.quotas.upsert(tree(HALVES))
    await bound(world, "z", "low", 8, priority=0)
    await bound(world, "z", "high", 8, priority=9)
    create(world, "x", "mine", 8)
    assert not ask(world, "x", "mine")[0]
    await look(world)
    assert world.api.evicted == ["low"], "the least important, whose priority is that of the claimant"
    assert world.events.notes == [
        (
            "low",
            "Preempted",
            "evicted for pod x/mine (priority 0) on node n1: elastic quota root/a reclaims, within its min, what "
            "root/b borrowed",
        )
    ]
    # Its successor does not get the room, neither by the GPU nor by the quota.
    end(world, "z", "low")
    create(world, "z", "again", 8)
    assert not ask(world, "z", "again")[0]
    assert ask(world, "x", "mine")[0] == ["n1"]
    await bind(world, "x", "mine")
    see(world, "x", "mine")
    ask(world, "z", "again")
    await look(world)
    assert world.api.evicted == ["low"], "both are at their min now: nothing is borrowed"


async def test_two_simultaneous_claims_take_no_more_than_was_borrowed(world: World) -> None:
    world.add_node(gpu_node("n2", 16384))
    world.quotas.upsert(tree(root(a={"min": 16}, b={"min": 16}, whole=32)))
    for number in range(4):
        await bound(world, "z", f"b-{number}", 6, "n1" if number < 2 else "n2")
    for name in ("first", "second", "third"):
        create(world, "x", name, 8)
        ask(world, "x", name, "n1", "n2")
    await look(world)
    assert len(world.api.evicted) == 1, "b had 24 and is sure of 16: one of 6 may go, not two"


async def test_beyond_its_min_a_pod_waits_for_room(world: World) -> None:
    world.quotas.upsert(tree(HALVES))
    await bound(world, "z", "p", 8)
    await bound(world, "z", "q", 8)
    create(world, "x", "large", 9, priority=100)
    assert not ask(world, "x", "large")[0]
    await look(world)
    assert world.api.evicted == []


async def test_at_the_max_a_pod_of_higher_priority_evicts_one_of_its_own_quota(world: World) -> None:
    world.quotas.upsert(tree(root(a={"min": 4, "max": 6}, b={"min": 8})))
    await bound(world, "x", "low", 6, priority=1)
    create(world, "x", "same", 4, priority=1)
    ask(world, "x", "same")
    await look(world)
    assert world.api.evicted == []
    create(world, "x", "high", 4, priority=2)
    ask(world, "x", "high")
    await look(world)
    assert world.api.evicted == ["low"]
    assert world.events.notes[-1][2] == "evicted for pod x/high (priority 2) on node n1"
    assert not ask(world, "x", "high")[0], "low is there still"
    end(world, "x", "low")
    assert not ask(world, "x", "same")[0]
    assert ask(world, "x", "high")[0] == ["n1"]


async def test_a_terminating_pod_is_not_evicted_again_nor_another_in_its_place(world: World) -> None:
    world.quotas.upsert(tree(HALVES))
    await bound(world, "z", "p", 8)
    await bound(world, "z", "q", 8)
    world.api.pods["z/p"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    see(world, "z", "p")
    create(world, "x", "mine", 8)
    ask(world, "x", "mine")
    await look(world)
    assert world.api.evicted == []
    assert world.ledger.nominations.node_of("uid-mine") == "n1"


@pytest.mark.parametrize(("least", "evictions"), [(2, 2), (3, 0)])
async def test_a_gang_reclaims_for_all_its_pods_or_for_none(world: World, least: int, evictions: int) -> None:
    world.add_node(gpu_node("n2", 16384))
    world.quotas.upsert(tree(root(a={"min": 16}, b={"min": 16}, whole=32)))
    for number in range(4):
        await bound(world, "z", f"b-{number}", 8, "n1" if number < 2 else "n2")
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: str(least)}
    gang = [f"g-{number}" for number in range(least)]
    for name in gang:
        create(world, "x", name, 8, labels=labels)
    for name in gang:
        assert not ask(world, "x", name, "n1", "n2")[0]
    await look(world)
    assert len(world.api.evicted) == evictions
    for name in world.api.evicted:
        end(world, "z", name)
    found = [ask(world, "x", name, "n1", "n2")[0] for name in gang]
    assert all(found) == bool(evictions)
    await look(world)
    assert len(world.api.evicted) == evictions


async def test_the_end_of_an_unknown_pod_changes_nothing(world: World) -> None:
    world.quotas.upsert(tree(HALVES))
    world.quotas.ended("uid-unknown")
    await bound(world, "x", "unknown", 4)
    assert world.quotas.books.staying(1, MEM) == 4000


async def test_evicted_pods_are_forgotten_without_a_tree_too(world: World) -> None:
    await bound(world, "x", "evicted", 4)
    world.quotas.ended("uid-evicted")
    world.view.remove_pod(world.view.bound["uid-evicted"])
    assert not world.quotas._ended


def verb(world: World, namespace: str, name: str, *victims: str) -> dict[str, Any]:
    body = {
        "Pod": world.api.pods[f"{namespace}/{name}"],
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": f"uid-{one}"} for one in victims], "NumPDBViolations": 0}
        },
    }
    answer = preempt_pods(
        world.view, read_preemption(msgspec.json.encode(body)), lambda uid: None, quotas=world.quotas
    )
    found: dict[str, Any] = msgspec.json.decode(answer)["NodeNameToMetaVictims"]
    return found


async def test_kube_scheduler_may_evict_no_pod_within_its_quotas_min(world: World) -> None:
    world.quotas.upsert(tree(HALVES))
    await bound(world, "z", "p", 8, priority=1)
    await bound(world, "x", "q", 8, priority=1)
    create(world, "x", "high", 8, priority=9)
    assert verb(world, "x", "high", "p") == {}
    assert list(verb(world, "x", "high", "q")) == ["n1"]
    create(world, "elsewhere", "outside", 8, priority=9)
    assert verb(world, "elsewhere", "outside", "p") == {}


# --- trees ------------------------------------------------------------------------------------------


def test_an_invalid_change_leaves_the_previous_tree_in_force_and_is_reported_once(world: World) -> None:
    quotas = world.quotas
    quotas.upsert(tree(HALVES))
    before = quotas.books.tree
    quotas.upsert(tree(BAD, generation=2))
    quotas.upsert(tree(BAD, generation=2, message="something else"))
    assert quotas.books.tree is before
    assert [(name, reason) for name, reason, _ in world.events.notes] == [("tree", REASON_REFUSED)]
    assert "is above its max (8)" in world.events.notes[0][2]
    status = status_of(quotas, quotas.trees["tree"])
    assert status["state"] == "Refused"
    assert status["message"].endswith("; the previous version stays in force")
    assert json.loads(status["inForce"]) == HALVES
    assert [one["name"] for one in status["quotas"]] == ["root", "a", "b"]


def test_the_next_leader_knows_from_the_status_what_was_in_force(world: World) -> None:
    world.quotas.upsert(tree(BAD, generation=2, inForce=json.dumps(HALVES)))
    assert [one.name for one in world.quotas.books.usage()] == ["root", "a", "b"]
    fresh = World()
    fresh.quotas.upsert(tree(BAD))
    assert not fresh.quotas.in_use
    status = status_of(fresh.quotas, fresh.quotas.trees["tree"])
    assert status["message"].endswith("; no quota is in force")
    assert (status["inForce"], status["quotas"]) == ("", [])


def test_a_harmless_oddity_is_in_the_status(world: World) -> None:
    odd = {**HALVES, "children": [{"name": "a", "namespaces": ["x"], "min": {"cpu": 2}}]}
    world.quotas.upsert(tree(odd))
    status = status_of(world.quotas, world.quotas.trees["tree"])
    assert status["state"] == "InForce"
    assert status["message"].startswith(
        "quota root: its children's min of cpu add up to 2, above its own min (0)"
    )
    assert world.events.notes == []


def test_of_two_trees_the_older_counts_and_the_other_is_reported(world: World) -> None:
    quotas = world.quotas
    quotas.upsert(tree(HALVES, name="young", created="2026-11-22T12:00:00Z"))
    quotas.upsert(tree(root(a={}, b={}), name="old"))
    assert quotas.books.usage()[1].min == {}
    assert [(name, reason) for name, reason, _ in world.events.notes] == [("young", REASON_NOT_IN_FORCE)]
    assert [occurrence for _, _, occurrence in world.events.recorded] == ["lasting"], (
        "another replica may have reported it"
    )
    status = status_of(quotas, quotas.trees["young"])
    assert status["state"] == "NotInForce"
    assert status["message"] == "tree old is older, and there is one tree; remove one of the two"
    quotas.remove("kube-system/old", quotas.trees["old"])
    assert quotas.books.usage()[1].min == {MEM: 8000}
    assert status_of(quotas, quotas.trees["young"])["state"] == "InForce"


# --- status -----------------------------------------------------------------------------------------


class Written:
    """An API server that takes statuses; ``failing`` is raised once."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, dict[str, Any]]] = []
        self.failing: list[Exception] = []

    async def report_quotas(self, namespace: str, name: str, status: dict[str, Any], *, uid: str) -> None:
        assert namespace == "kube-system"
        assert uid == f"uid-{name}"
        if self.failing:
            raise self.failing.pop()
        self.statuses.append((name, status))


async def turn(world: World, seconds: float) -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    await world.clock.turn(seconds)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_status_contains_the_use_and_is_written_if_it_differs(world: World) -> None:
    api = Written()
    reports = asyncio.create_task(QuotaReports(world.quotas, api, world.clock).run())
    await bound(world, "z", "p", 12)
    world.quotas.upsert(tree(HALVES))
    await turn(world, 0)
    ((name, status),) = api.statuses
    assert name == "tree"
    assert (status["state"], status["message"], status["observedGeneration"]) == ("InForce", "", 1)
    assert status["quotas"][2] == {
        "name": "b",
        "namespaces": ["z"],
        "used": {MEM: "12"},
        "min": {MEM: "8"},
        "max": {},
    }
    world.quotas.upsert(tree(HALVES, **status))
    await turn(world, RETRY_S)
    assert len(api.statuses) == 1
    api.failing = [Unreachable("x", "no answer", sent=None)]
    end(world, "z", "p")
    await turn(world, RETRY_S)
    assert len(api.statuses) == 1
    await turn(world, RETRY_S)
    assert api.statuses[-1][1]["quotas"][2]["used"] == {MEM: "0"}
    api.failing = [ApiError(404, "NotFound", "gone", "")]
    await bound(world, "z", "q", 1)
    await turn(world, RETRY_S)
    assert len(api.statuses) == 2
    reports.cancel()


def test_a_trees_json_is_identified_by_its_name() -> None:
    key, record = decode_tree(b'{"metadata":{"name":"t","uid":"u"},"spec":{"root":{"name":"r"}}}')
    assert (key, record.name, record.problem) == ("kube-system/t", "t", "")


# --- whole GPUs -------------------------------------------------------------------------------------

WHOLE = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}


async def test_a_whole_gpu_counts_with_all_of_its_units_however_few_are_requested(world: World) -> None:
    world.add_node(gpu_node("small", 4096))
    world.quotas.upsert(tree(root(a={"min": 4, "max": 10}, b={})))
    create(world, "x", "p", 1, labels=WHOLE)
    fits, refused = ask(world, "x", "p", "n1", "small")
    assert fits == ["small"]
    assert refused == {
        "n1": f"elastic quota root/a: 0 of 10 {MEM} used (max), 16 requested by GPUs of 16 that are allocated whole"
    }
    with pytest.raises(BindRefused, match="16 requested"):
        await bind(world, "x", "p")
    assert world.used_mib("n1") == [0]
    await bind(world, "x", "p", "small")
    assert world.quotas.books.held(1, MEM) == 4000
    see(world, "x", "p")
    assert world.quotas.books.held(1, MEM) == 4000
    assert ask(world, "x", "p", "small")[0] == ["small"]
    create(world, "elsewhere", "q", 1, labels=WHOLE)
    assert ask(world, "elsewhere", "q", "n1", "small")[0] == ["n1"]


async def test_a_whole_gpu_for_a_pod_that_the_informer_has_not_shown(world: World) -> None:
    world.quotas.upsert(tree(root(a={"min": 4, "max": 20}, b={})))
    for name in ("p", "q"):
        pod = pod_object(name, 1, labels=WHOLE)
        pod["metadata"]["namespace"] = "x"
        world.api.create(pod)
        ask(world, "x", name)
    await bind(world, "x", "p")
    assert world.quotas.books.held(1, MEM) == 16000


async def test_a_gang_of_whole_gpus_exceeds_no_max(world: World) -> None:
    world.add_node(gpu_node("n2", 16384))
    world.quotas.upsert(tree(root(a={"min": 4, "max": 20}, b={}, whole=40)))
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2", **WHOLE}
    for name in ("g-0", "g-1"):
        create(world, "x", name, 1, labels=labels)
    fits, refused = ask(world, "x", "g-0", "n1", "n2")
    assert not fits
    assert "there is capacity for 1: elastic quota root/a: 16 of 20" in refused["n1"]
    assert (world.used_mib("n1"), world.used_mib("n2")) == ([0], [0])
    assert world.quotas.books.held(1, MEM) == 0


async def test_a_pod_bound_before_the_watch_shows_it_is_limited_by_its_quota_too(
    world: World,
) -> None:
    """As when a new leader binds a pod that its predecessor has admitted."""
    world.quotas.upsert(tree(root(a={"min": 4, "max": 8}, b={"min": 4})))
    await bound(world, "x", "one", 8)
    pod = pod_object("two", 4, namespace="x")
    world.api.create(pod)
    with pytest.raises(BindRefused, match="max"):
        await bind(world, "x", "two")
    assert world.ledger.held("uid-two") is None
