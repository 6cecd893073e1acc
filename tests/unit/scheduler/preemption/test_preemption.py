"""Preemption where only we refused: on one GPU, with the fewest victims, only for that pod, and never needlessly."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from gpushare.api.disruption import DisruptionBudget, decode_budget
from gpushare.api.node.modes import NodeMode
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.framework import runtime
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.plugins.preemption.plugin import RESERVED_S, SETTLE_S
from gpushare.scheduler.plugins.preemption.ranks import lesser
from gpushare.scheduler.server.protocol import BindingArgs, read_preemption
from tests.unit.scheduler.world import World, framework_of, gpu_node, pod_object


def args(name: str, node: str = "n1") -> BindingArgs:
    return BindingArgs("default", name, f"uid-{name}", node)


async def bound(world: World, name: str, units: int, node: str = "n1", **more: object) -> None:
    world.create(name, units, **more)
    await world.binder.bind(args(name, node))
    world.see(name)


def ask(world: World, name: str, *nodes: str) -> list[str]:
    body = {"Pod": world.api.pods[f"default/{name}"], "NodeNames": list(nodes or ("n1",))}
    answer = filter_nodes(world.view, Bodies().read(msgspec.json.encode(body)), world.framework())
    found: list[str] = msgspec.json.decode(answer)["NodeNames"] or []
    return found


async def look(world: World) -> None:
    """Let the preemptor process the refusals once."""
    running = asyncio.create_task(world.preemptor.run())
    await asyncio.sleep(0)
    await world.clock.turn(SETTLE_S)
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()


def end(world: World, name: str) -> None:
    """A pod's deletion, as the informer delivers it."""
    record = world.view.bound[f"uid-{name}"]
    del world.api.pods[f"default/{name}"]
    world.view.remove_pod(record)


def budget(name: str, allowed: int, **labels: str) -> DisruptionBudget:
    written = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }
    return decode_budget(msgspec.json.encode(written))


async def test_the_lowest_priority_pod_is_evicted_and_its_room_reserved_for_the_pending_one(
    world: World,
) -> None:
    await bound(world, "low", 8, priority=1)
    await bound(world, "middle", 8, priority=5)
    world.create("high", 8, priority=9)
    assert not ask(world, "high")
    await look(world)
    assert world.api.evicted == ["low"]
    assert world.api.nominated == [("high", "n1")]
    assert world.events.notes == [
        ("low", "Preempted", "evicted for pod default/high (priority 9) on node n1")
    ]
    # Neither before nor after it has ended does another pod get a part of it.
    world.create("thief", 1, priority=0)
    assert not ask(world, "thief")
    world.see("low")
    assert not ask(world, "high")
    end(world, "low")
    assert not ask(world, "thief")
    with pytest.raises(BindRefused):
        await world.binder.bind(args("thief"))
    assert ask(world, "high") == ["n1"]
    await world.binder.bind(args("high"))
    world.see("high")
    assert world.used_mib("n1") == [16384]
    assert world.ledger.nominations.node_of("uid-high") == ""


async def test_a_pod_that_the_watch_shows_late_is_not_forgotten_and_one_that_never_comes_is(
    world: World,
) -> None:
    await bound(world, "low", 16, priority=1)
    for name in ("high", "never"):
        world.api.create(pod_object(name, 8, priority=9))
        assert not ask(world, name)
    for _ in range(5):
        await look(world)
    assert not world.api.evicted
    world.see("high")
    await look(world)
    assert world.api.evicted == ["low"]
    for _ in range(10):
        await look(world)
    assert not world.preemptor._asked


async def test_pods_of_equal_priority_stay_and_policy_never_evicts_none(world: World) -> None:
    await bound(world, "a", 16, priority=5)
    for name, more in (("same", {"priority": 5}), ("never", {"priority": 9, "never": True})):
        world.create(name, 8, **more)
        assert not ask(world, name)
    await look(world)
    assert not world.api.evicted


async def test_no_pod_is_evicted_while_terminating_ones_free_enough(world: World) -> None:
    await bound(world, "a", 8, priority=1)
    await bound(world, "b", 8, priority=1)
    world.api.pods["default/a"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("a")
    world.create("high", 8, priority=9)
    assert not ask(world, "high")
    await look(world)
    assert not world.api.evicted
    assert world.ledger.nominations.node_of("uid-high") == "n1"


async def test_one_pod_is_evicted_once_even_before_it_is_seen_terminating(world: World) -> None:
    await bound(world, "low", 16, priority=1)
    for name in ("first", "second"):
        world.create(name, 8, priority=9)
        assert not ask(world, name)
    await look(world)
    assert world.api.evicted == ["low"]
    assert [note[:2] for note in world.events.notes] == [("low", "Preempted")]
    end(world, "low")
    for name in ("first", "second"):
        assert ask(world, name) == ["n1"]
        await world.binder.bind(args(name))
        world.see(name)


async def test_if_kube_scheduler_makes_room_itself_we_do_not(world: World) -> None:
    await bound(world, "a", 16, priority=1)
    world.create("high", 8, priority=9)
    assert not ask(world, "high")
    body = {
        "Pod": world.api.pods["default/high"],
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0}},
    }
    preempt_pods(
        world.view,
        read_preemption(msgspec.json.encode(body)),
        world.preemptor.left_to_scheduler,
        quotas=world.quotas,
    )
    await look(world)
    assert not world.api.evicted


async def test_protected_pods_stay_and_others_are_evicted_or_none(world: World) -> None:
    world.add_node(gpu_node("n2", 16384))
    await bound(world, "guarded", 16, priority=1, labels={"app": "db"})
    world.api.budgets = [budget("db", 0, app="db")]
    world.create("high", 16, priority=9)
    assert not ask(world, "high", "n1")
    await look(world)
    assert not world.api.evicted
    assert world.events.notes[-1][:2] == ("high", "PreemptionRefused")
    await bound(world, "free", 16, "n2", priority=2)
    assert not ask(world, "high", "n1", "n2")
    await look(world)
    assert world.api.evicted == ["free"]


async def test_a_budget_that_forbids_it_meanwhile_releases_the_room(world: World) -> None:
    await bound(world, "a", 16, priority=1)
    world.create("high", 16, priority=9)
    assert not ask(world, "high")

    def forbidden() -> None:
        raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's budget", "")

    world.api.before.append(forbidden)
    await look(world)
    assert not world.api.evicted
    assert world.ledger.nominations.node_of("uid-high") == ""


async def test_an_unused_reservation_is_released(world: World) -> None:
    await bound(world, "a", 16, priority=1)
    world.create("high", 16, priority=9)
    ask(world, "high")
    await look(world)
    end(world, "a")
    world.create("other", 16)
    assert not ask(world, "other")
    await world.clock.turn(RESERVED_S)
    await look(world)
    hurried = set(world.retries._hurried)
    assert hurried == {"uid-high", "uid-other"}, "no event in the cluster makes kube-scheduler retry it"
    assert ask(world, "other") == ["n1"]


async def test_refused_pods_share_the_names_of_nodes(world: World) -> None:
    world.add_node(gpu_node("another-node", 16384))
    for node in ("n1", "another-node"):
        await bound(world, f"on-{node}", 16, node)
    for name in ("one", "two"):
        world.create(name, 8)
        assert not ask(world, name, "n1", "another-node")
    (_, first), (_, second) = world.preemptor._asked.values()
    assert first == second
    assert list(map(id, first)) == list(map(id, second))


def test_shared_names_of_nodes_are_limited() -> None:
    framework = framework_of()
    for number in range(3):
        framework.post_filter("uid-x", [f"{number}-{node}" for node in range(runtime._SHARED_NAMES)])
    assert len(framework._names) <= 2 * runtime._SHARED_NAMES


async def test_a_deleted_pod_releases_its_room(world: World) -> None:
    await bound(world, "a", 16, priority=1)
    world.create("high", 16, priority=9)
    ask(world, "high")
    await look(world)
    world.view.remove_pod(world.view.waiting["uid-high"])
    assert world.ledger.nominations.node_of("uid-high") == ""


@pytest.mark.parametrize("form", ["meta", "full"])
async def test_the_verb_adds_further_victims_and_leaves_out_hopeless_nodes(world: World, form: str) -> None:
    world.add_node(gpu_node("n2", 16384))
    world.add_node(gpu_node("n3", 4096))
    await bound(world, "a", 8, priority=1)
    await bound(world, "b", 8, priority=1)
    await bound(world, "c", 16, "n2", priority=1)
    pod = world.create("high", 16, priority=9)
    assert pod.spec.priority == 9
    victims = {"n1": ["a"], "n2": ["c"], "n3": []}
    if form == "meta":
        candidates: object = {
            node: {"Pods": [{"UID": f"uid-{name}"} for name in some], "NumPDBViolations": 1}
            for node, some in victims.items()
        }
        body = {"Pod": world.api.pods["default/high"], "NodeNameToMetaVictims": candidates}
    else:
        candidates = {
            node: {"Pods": [world.api.pods[f"default/{name}"] for name in some], "NumPDBViolations": 1}
            for node, some in victims.items()
        }
        body = {"Pod": world.api.pods["default/high"], "NodeNameToVictims": candidates}
    refused: list[str] = []
    answer = preempt_pods(
        world.view, read_preemption(msgspec.json.encode(body)), refused.append, quotas=world.quotas
    )
    assert msgspec.json.decode(answer) == {
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": "uid-a"}, {"UID": "uid-b"}], "NumPDBViolations": 1},
            "n2": {"Pods": [{"UID": "uid-c"}], "NumPDBViolations": 1},
        }
    }
    assert refused == ["uid-high"]


async def test_kube_scheduler_gets_victims_only_where_capacity_is_reserved(world: World) -> None:
    """It would try every candidate node, find no victim, and put a text for each into the pod's condition."""
    for name in ("n1", "n2", "n3"):
        world.add_node(gpu_node(name, 16384))
        await bound(world, f"on-{name}", 16, name)
    world.create("urgent", 16, priority=1000)
    body = {"Pod": world.api.pods["default/urgent"], "NodeNames": ["n1", "n2", "n3"]}
    refused_on: list[str] = []

    def asked() -> tuple[set[str], set[str]]:
        refused_on.clear()
        raw = filter_nodes(
            world.view,
            Bodies().read(msgspec.json.encode(body)),
            world.framework(refused=lambda uid, where: refused_on.extend(where)),
        )
        answer = msgspec.json.decode(raw)
        assert answer["NodeNames"] == []
        assert set(refused_on) == {"n1", "n2", "n3"}, "room can be made on any of them, by us"
        return set(answer["FailedNodes"]), set(answer["FailedAndUnresolvableNodes"])

    assert asked() == (set(), {"n1", "n2", "n3"})
    request = world.view.waiting["uid-urgent"].request
    assert request is not None
    plan = world.ledger.evictions.plan(request, ("n2",), lesser(world.view, 1000))
    assert plan is not None
    world.ledger.nominations.add("uid-urgent", request, plan)
    assert asked() == ({"n2"}, {"n1", "n3"}), "kube-scheduler leaves the nomination alone"


async def test_a_plan_made_obsolete_by_changes_is_soon_repeated(world: World) -> None:
    await bound(world, "a", 8, priority=1)
    await bound(world, "b", 8, priority=2)

    def changed() -> None:
        end(world, "a")
        world.create("c", 8, priority=3)
        request = world.view.waiting["uid-c"].request
        assert request is not None
        world.ledger.reserve("uid-c", "default/c", request, "n1")

    world.create("high", 8, priority=9)
    assert not ask(world, "high")
    world.api.reading.append(changed)
    await look(world)
    assert world.api.evicted == [], "the plan was to end a"
    await look(world)
    assert world.api.evicted == ["b"]


async def test_an_eviction_refused_by_the_api_server_is_retried_with_backoff(world: World) -> None:
    def busy() -> None:
        raise ApiError(429, "TooManyRequests", "wait a little", "")

    await bound(world, "low", 16, priority=1)
    world.create("high", 8, priority=9)
    assert not ask(world, "high")
    world.api.reading.append(busy)
    await look(world)
    assert (world.api.evicted, world.ledger.nominations.node_of("uid-high")) == ([], "")
    await world.clock.turn(60)
    world.api.reading.append(busy)
    await look(world)
    assert world.api.evicted == []
    await world.clock.turn(60)
    await look(world)
    assert world.api.evicted == ["low"]
    assert world.ledger.nominations.node_of("uid-high") == "n1"


async def test_a_pod_that_two_budgets_cover_is_protected_and_no_other_is_evicted_needlessly(
    world: World,
) -> None:
    """The eviction API refuses it, whatever the two budgets allow."""
    await bound(world, "other", 8, priority=2)
    await bound(world, "twice", 8, priority=1, labels={"app": "db"})
    world.api.budgets = [budget("db", 1, app="db"), budget("db-too", 1, app="db")]
    world.create("high", 16, priority=9)
    assert not ask(world, "high")
    await look(world)
    assert world.api.evicted == []
    assert world.events.notes[-1][:2] == ("high", "PreemptionRefused")


async def test_an_amount_beyond_any_node_is_refused_and_preemption_goes_on(world: World) -> None:
    pod = pod_object("huge", 1, priority=10)
    container = {
        **pod["spec"]["containers"][0],
        "resources": {"limits": {"aliyun.com/gpu-mem": str(2**63 - 1)}},
    }
    pod["spec"]["containers"] = [container, {**container, "name": "second"}]
    world.api.create(pod)
    world.see("huge")
    await bound(world, "low", 16, priority=1)
    world.create("high", 16, priority=9)

    assert not ask(world, "huge", "n1", "late")
    assert not ask(world, "high")
    world.add_node(gpu_node("late", 16 * 1024))
    await look(world)

    assert world.api.evicted == ["low"]


async def test_no_pod_is_evicted_for_one_that_is_being_deleted(world: World) -> None:
    """Before it is examined, or while budgets are read."""
    await bound(world, "low", 16, priority=1)
    for name in ("early", "late"):
        world.create(name, 8, priority=9)

    def deleted(name: str) -> None:
        world.api.pods[f"default/{name}"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
        world.see(name)

    ask(world, "early")
    deleted("early")
    await look(world)
    ask(world, "late")
    world.api.reading.append(lambda: deleted("late"))
    await look(world)
    await look(world)
    assert world.api.evicted == []
    assert not any(world.ledger.nominations.node_of(f"uid-{name}") for name in ("early", "late"))


async def test_room_for_a_lower_priority_pod_of_the_other_kind_gives_way_anywhere_on_the_node() -> None:
    world = World()
    world.add_node(gpu_node("n1", 4096, 16384, mode=NodeMode.CORE_MEM))
    world.create("memory", 4, priority=5)
    request = world.view.waiting["uid-memory"].request
    assert request is not None
    plan = world.ledger.evictions.plan(request, ("n1",), lesser(world.view, 5))
    assert plan is not None
    world.ledger.nominations.add("uid-memory", request, plan)
    world.preemptor.room_reserved("uid-memory")
    world.create("compute", 8, core=30, priority=9)
    assert not ask(world, "compute")
    await look(world)
    assert world.ledger.nominations.node_of("uid-compute") == "n1"
    assert world.ledger.nominations.node_of("uid-memory") == "", (
        "the node would refuse the one for which it was taken"
    )
    assert ask(world, "compute") == ["n1"]


def kube_scheduler_ends(world: World, name: str, victim: str, node: str) -> None:
    """The verb for the pod, with one victim of kube-scheduler's own."""
    body = {
        "Pod": world.api.pods[f"default/{name}"],
        "NodeNameToMetaVictims": {node: {"Pods": [{"UID": f"uid-{victim}"}], "NumPDBViolations": 0}},
    }
    preempt_pods(
        world.view,
        read_preemption(msgspec.json.encode(body)),
        world.preemptor.left_to_scheduler,
        quotas=world.quotas,
    )


async def test_a_pod_nominated_by_kube_scheduler_while_budgets_are_read_evicts_none(
    world: World,
) -> None:
    world.add_node(gpu_node("n2", 16384))
    await bound(world, "low-1", 16, "n1", priority=1)
    await bound(world, "low-2", 16, "n2", priority=1)
    world.create("high", 16, priority=9)
    assert not ask(world, "high", "n1")
    world.api.reading = [lambda: kube_scheduler_ends(world, "high", "low-2", "n2")]
    await look(world)
    assert not world.api.reading
    assert not world.api.evicted
    assert not world.api.nominated
    assert world.ledger.nominations.node_of("uid-high") == ""
    assert not ask(world, "high", "n1")
    await look(world)
    assert world.api.evicted == ["low-1"], "what was left to it once is not left to it for ever"


def gone(world: World) -> None:
    world.view.remove_pod(world.view.waiting["uid-high"])


def leaves(world: World) -> None:
    world.api.pods["default/high"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("high")


def bound_elsewhere(world: World) -> None:
    world.api.pods["default/high"]["spec"]["nodeName"] = "n2"
    world.see("high")


def gpu_fails(world: World) -> None:
    node = gpu_node("n1", 16384)
    ill = msgspec.structs.replace(node.devices[0], healthy=False)
    world.add_node(msgspec.structs.replace(node, devices=(ill,)))


def kube_scheduler_is_at_it(world: World) -> None:
    kube_scheduler_ends(world, "high", "low-1", "n1")


@pytest.mark.parametrize(
    "happens",
    [gone, leaves, bound_elsewhere, gpu_fails, kube_scheduler_is_at_it],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("evictions", [0, 1])
async def test_no_more_pods_are_evicted_once_the_pod_no_longer_needs_the_capacity(
    world: World, monkeypatch: pytest.MonkeyPatch, happens: Callable[[World], None], evictions: int
) -> None:
    """While the API server notes the node on the pod, or the first eviction is requested."""
    await bound(world, "low-1", 8, priority=1)
    await bound(world, "low-2", 8, priority=1)
    world.create("high", 16, priority=9)
    assert not ask(world, "high")

    async def nominate(namespace: str, name: str, node: str, *, uid: str) -> None:
        happens(world)

    if evictions:
        world.api.before = [lambda: happens(world)]
    else:
        monkeypatch.setattr(world.api, "nominate", nominate)
    await look(world)
    assert len(world.api.evicted) == evictions
    assert world.ledger.nominations.node_of("uid-high") == ""


async def test_room_is_made_for_compute_on_a_node_that_lacks_it(world: World) -> None:
    world.add_node(gpu_node("n1", 16384, mode=NodeMode.CORE_MEM))
    await bound(world, "low", 2, core=80, priority=1)
    await bound(world, "other", 2, core=10, priority=1)
    world.create("high", 2, core=50, priority=9)
    assert not ask(world, "high")
    await look(world)
    assert world.api.evicted == ["low"]
