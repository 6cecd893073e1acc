"""Pods of a gang get their room together or not at all, and none of it is reserved forever."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpushare.api.objects import decode_pod
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.gangs import plugin as gangs_module
from gpushare.scheduler.plugins.gangs.backoff import REST_S
from gpushare.scheduler.plugins.gangs.reservations import KEPT_S
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import World, gpu_node, pod_object


def gang(name: str, least: object) -> dict[str, str]:
    return {
        "pod-group.scheduling.sigs.k8s.io/name": name,
        "pod-group.scheduling.sigs.k8s.io/min-available": str(least),
    }


def ask(world: World, name: str, *nodes: str) -> tuple[list[str], set[str]]:
    """(Nodes that fit, reasons of the others) of one filter call."""
    body = {"Pod": world.api.pods[f"default/{name}"], "NodeNames": list(nodes or ("n1", "n2"))}
    answer = filter_nodes(world.view, Bodies().read(msgspec.json.encode(body)), world.framework())
    read = msgspec.json.decode(answer)
    reasons = (read.get("FailedNodes") or {}) | (read.get("FailedAndUnresolvableNodes") or {})
    return read["NodeNames"] or [], set(reasons.values())


def args(name: str, node: str) -> BindingArgs:
    return BindingArgs("default", name, f"uid-{name}", node)


def used(world: World) -> int:
    return sum(world.used_mib("n1")) + sum(world.used_mib("n2"))


@pytest.fixture
def two(world: World) -> World:
    """Two nodes with one GPU of 16 GiB each."""
    world.add_node(gpu_node("n2", 16384))
    world.gangs._patience_s = 0.05
    return world


async def test_nothing_is_reserved_until_enough_pods_exist(two: World) -> None:
    two.create("a", 8, labels=gang("g", 3))
    two.create("b", 8, labels=gang("g", 3))
    assert ask(two, "a") == ([], {"gang default/g needs 3 pods together: there are 2"})
    assert used(two) == 0
    two.create("c", 8, labels=gang("g", 3))
    assert len(ask(two, "a")[0]) == 1
    assert used(two) == 3 * 8192


async def test_a_gang_without_room_for_all_reserves_none_and_every_pod_shows_why(two: World) -> None:
    for name in "abcde":
        two.create(name, 8, labels=gang("g", 5))
    for name in "abcde":
        fits, reasons = ask(two, name)
        assert not fits
        assert all(
            one.endswith(
                "gang default/g needs capacity for 5 pods at once, and there is capacity for 4: the capacity here is needed by other pods of the gang"
            )
            for one in reasons
        )
    assert used(two) == 0


async def test_of_two_gangs_that_each_would_fit_one_has_all_and_the_other_nothing(two: World) -> None:
    for name in ("a1", "b1", "a2", "b2", "a3", "b3"):
        two.create(name, 8, labels=gang(name[0], 3))
    taken = {name: ask(two, name)[0] for name in ("a1", "b1", "a2", "b2", "a3", "b3")}
    assert [name for name, nodes in taken.items() if nodes] == ["a1", "a2", "a3"]
    await asyncio.gather(*(two.binder.bind(args(name, taken[name][0])) for name in ("a1", "a2", "a3")))
    assert len(two.api.bindings) == 3
    for name in ("a1", "a2", "a3"):
        two.see(name)
        two.view.remove_pod(two.gangs._groups["default/a"].pods[f"uid-{name}"])
    assert all(len(ask(two, name)[0]) == 1 for name in ("b1", "b2", "b3"))


async def test_pods_of_one_template_are_a_gang_for_each_value_of_the_label_they_name(two: World) -> None:
    pods = [f"{group}{number}" for number in range(3) for group in "ab"]
    for name in pods:
        labels = gang("g", 3) | {"group": name[0]}
        two.create(name, 8, labels=labels, annotations={"gpushare.dev/gang-by": "group"})
    answers = {name: ask(two, name) for name in pods}
    assert [name for name, (nodes, _) in answers.items() if nodes] == ["a0", "a1", "a2"]
    head = "gang default/g/b needs capacity for 3 pods at once, and there is capacity for 1: "
    assert all(reason.startswith(head) for reason in answers["b2"][1])


async def test_pods_without_the_label_they_name_are_one_gang(two: World) -> None:
    for name in "ab":
        two.create(name, 8, labels=gang("g", 3), annotations={"gpushare.dev/gang-by": "group"})
    assert ask(two, "a") == ([], {"gang default/g needs 3 pods together: there are 2"})


async def test_no_pod_is_bound_before_the_last_has_arrived(two: World) -> None:
    for name in "abc":
        two.create(name, 8, labels=gang("g", 3))
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    with pytest.raises(BindRefused, match=r"gang default/g: 1 of 3 pods is ready to be bound"):
        await two.binder.bind(args("a", nodes["a"]))
    assert not two.api.bindings
    assert used(two) == 3 * 8192  # kept for the next try
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name])) for name in "abc"))
    assert len(two.api.bindings) == 3


async def test_arrived_pods_wait_longer_as_long_as_others_arrive(two: World) -> None:
    """kube-scheduler needs seconds to go through a gang of hundreds."""
    gangs, loop = two.gangs, asyncio.get_running_loop()
    gangs._patience_s = 0.05
    for name in "abc":
        two.create(name, 8, labels=gang("g", 3))
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    began_s = loop.time()
    first = asyncio.create_task(two.binder.bind(args("a", nodes["a"])))
    await asyncio.sleep(0)
    gangs._patience_s = (
        gangs._most_patience_s
    )  # the second's arrival counts from the remainder, and is long ago
    second = asyncio.create_task(two.binder.bind(args("b", nodes["b"])))
    while loop.time() < began_s + 0.1:
        await asyncio.sleep(0)
    assert not first.done()
    await two.binder.bind(args("c", nodes["c"]))
    await asyncio.gather(first, second)
    assert len(two.api.bindings) == 3


@pytest.mark.no_cover  # would take several times as long; other tests cover the same lines
async def test_a_pod_that_stopped_waiting_counts_as_arrived_and_follows_after_the_last(two: World) -> None:
    """A gang of more pods than kube-scheduler goes through while the first of them waits."""
    pods, nodes = [f"p{number}" for number in range(300)], [f"m{number}" for number in range(10)]
    for node in nodes:
        two.add_node(gpu_node(node, *[16384] * 8))
    for name in pods:
        two.create(name, 4, labels=gang("g", len(pods)))
    hurried: list[str] = []
    two.gangs.retry_wanted.subscribe(hurried.extend)
    where = {name: ask(two, name, *nodes)[0][0] for name in pods}
    hurried.clear()
    two.gangs._patience_s = 0.01

    async def come(names: list[str]) -> list[str]:
        """In the order of kube-scheduler; why the unbound ones were not bound."""
        done = await asyncio.gather(
            *(two.binder.bind(args(name, where[name])) for name in names), return_exceptions=True
        )
        return [str(one) for one in done if one is not None]

    for first in (0, 100):
        errors = await come(pods[first : first + 100])
        assert len(errors) == 100
        assert errors[-1].startswith(f"gang default/g: {first + 100} of 300 pods are ready to be bound, ")
    assert not two.api.bindings
    two.gangs._patience_s = 60.0
    assert await come(pods[200:]) == []
    assert len(two.api.bindings) == 100
    assert sorted(hurried) == sorted(f"uid-{name}" for name in pods[:200])
    # Their room is still theirs: they are offered again, and bound without waiting.
    for name in pods[:200]:
        assert ask(two, name, *nodes)[0] == [where[name]]
    assert await come(pods[:200]) == []
    assert len(two.api.bindings) == 300


async def test_an_arrival_does_not_count_for_a_later_plan(two: World) -> None:
    two.gangs._patience_s = 0.01
    for name in "abc":
        two.create(name, 8, labels=gang("g", 3))
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    for name in "ab":
        with pytest.raises(BindRefused, match=r"(is|are) ready"):
            await two.binder.bind(args(name, nodes[name]))
    other = "n2" if nodes["a"] == "n1" else "n1"
    nodes["a"] = ask(two, "a", other)[0][0]  # its node is taken by now: all is planned again
    with pytest.raises(BindRefused, match="1 of 3 pods is ready"):
        await two.binder.bind(args("a", nodes["a"]))
    assert not two.api.bindings


async def test_a_member_that_gave_up_is_placed_again_when_it_is_retried(two: World) -> None:
    two.gangs._patience_s = 0.01
    for name in "abc":
        two.create(name, 4, labels=gang("g", 3))
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    with pytest.raises(BindRefused):
        await two.binder.bind(args("a", nodes["a"]))
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name])) for name in "bc"))
    assert len(two.api.bindings) == 2
    for name in "bc":
        two.see(name)
    await two.clock.turn(KEPT_S + 20)
    for uid, key in two.reservations.due(two.clock.monotonic()):
        await two.binder.settle(uid, key)
    assert used(two) == 2 * 4096, "nothing is reserved for a pod that does not come"
    await two.clock.turn(REST_S)
    (node,), _ = ask(two, "a")
    await two.binder.bind(args("a", node))
    assert len(two.api.bindings) == 3


@pytest.mark.parametrize("settled", ["lost", "refused"])
async def test_members_whose_bindings_failed_while_others_were_bound_find_room_together(
    two: World, settled: str
) -> None:
    """Not only the first that is offered, which would wait for the other for a minute."""
    for name in "abcd":
        two.create(name, 4, labels=gang("g", 4))
    nodes = {name: ask(two, name)[0][0] for name in "abcd"}

    def fail() -> None:
        if settled == "lost":
            raise Unreachable("https://api", "connection reset", sent=None)
        raise ApiError(403, "Forbidden", "exceeded quota", "")

    two.api.before += [fail, fail]
    two.gangs._patience_s = 5
    done = await asyncio.gather(
        *(two.binder.bind(args(name, nodes[name])) for name in "abcd"), return_exceptions=True
    )
    failed = [name for name, one in zip("abcd", done, strict=True) if one is not None]
    assert len(failed) == 2
    for name in set("abcd") - {*failed}:
        two.see(name)
    if settled == "lost":
        await two.clock.turn(30)
        for uid, key in two.reservations.due(two.clock.monotonic()):
            await two.binder.settle(uid, key)
        await two.clock.turn(REST_S)
    found = {name: ask(two, name)[0] for name in failed}
    found |= {name: ask(two, name)[0] for name in failed}
    assert all(found.values()), found
    await asyncio.gather(*(two.binder.bind(args(name, found[name][0])) for name in failed))
    assert len(two.api.bindings) == 4


async def test_a_gang_whose_pods_come_one_by_one_times_out(two: World) -> None:
    two.gangs._patience_s = two.gangs._most_patience_s = 0.05
    for name in "abc":
        two.create(name, 8, labels=gang("g", 3))
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    first = asyncio.create_task(two.binder.bind(args("a", nodes["a"])))
    await asyncio.sleep(0)
    two.gangs._patience_s = 60
    with pytest.raises(BindRefused, match=r"gang default/g: 1 of 3 pods is ready to be bound"):
        await first
    assert not two.api.bindings


async def test_the_whole_gangs_reservations_are_released_when_its_pods_do_not_come(two: World) -> None:
    for name in "abc":
        two.create(name, 8, labels=gang("g", 3))
    node, *_ = [ask(two, name)[0][0] for name in "abc"]
    for _ in range(int(KEPT_S / 10)):
        await two.clock.turn(10)
        assert ask(two, "a")[0] == [node]
    await two.clock.turn(20)
    for uid, key in two.reservations.due(two.clock.monotonic())[:1]:
        await two.binder.settle(uid, key)
    assert used(two) == 0
    assert ask(two, "b")[1] == {
        "gang default/g: it did not complete in time and is backing off to let others run"
    }
    woken: list[str] = []
    two.gangs.retry_wanted.subscribe(woken.extend)
    two.gangs.wake()
    assert not woken
    await two.clock.turn(REST_S)
    two.gangs.wake()
    assert woken == ["uid-a", "uid-b", "uid-c"]
    assert ask(two, "b")[0]


async def test_a_deleted_pod_releases_the_room_of_its_gang(two: World) -> None:
    for name in "abc":
        two.create(name, 8, labels=gang("g", 3))
    ask(two, "a")
    two.view.remove_pod(two.view.waiting["uid-c"])
    assert used(two) == 0
    assert ask(two, "a")[1] == {"gang default/g needs 3 pods together: there are 2"}


async def test_when_a_running_member_ends_reservations_for_too_few_are_released(two: World) -> None:
    for name in "abc":
        two.create(name, 4, labels=gang("g", 3))
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    two.gangs._patience_s = 5
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name])) for name in "abc"))
    for name in "abc":
        two.see(name)
    two.view.remove_pod(two.view.bound["uid-c"])
    two.create("d", 4, labels=gang("g", 3))
    assert len(ask(two, "d")[0]) == 1
    assert used(two) == 3 * 4096
    two.view.remove_pod(two.view.bound["uid-b"])
    assert used(two) == 4096, "d alone would be too few"
    two.create("e", 4, labels=gang("g", 3))
    found = {name: ask(two, name)[0][0] for name in "de"}
    await asyncio.gather(*(two.binder.bind(args(name, found[name])) for name in "de"))
    assert len(two.api.bindings) == 5


async def test_a_pod_that_waits_to_be_bound_while_another_is_deleted_is_not_bound(two: World) -> None:
    two.gangs._patience_s = 5
    for name in "abc":
        two.create(name, 8, labels=gang("g", 3))
    nodes = {name: ask(two, name)[0][0] for name in "abc"}
    waiting = asyncio.create_task(two.binder.bind(args("a", nodes["a"])))
    await asyncio.sleep(0)
    two.view.remove_pod(two.view.waiting["uid-c"])
    with pytest.raises(BindRefused):
        await two.binder.bind(args("b", nodes["b"]))
    two.gangs._groups["default/g"].opened.set()
    with pytest.raises(BindRefused, match="its reservation was released"):
        await waiting
    assert not two.api.bindings


async def test_a_pod_that_another_plugin_keeps_from_its_node_has_the_gang_planned_again(two: World) -> None:
    two.create("a", 8, labels=gang("g", 2))
    two.create("b", 8, labels=gang("g", 2))
    (first,), _ = ask(two, "a")
    other = "n2" if first == "n1" else "n1"
    assert ask(two, "b", other)[0] == [other]
    assert ask(two, "a")[0]
    assert used(two) == 2 * 8192
    assert two.ledger.held("uid-b").node == other  # type: ignore[union-attr]


async def test_more_pods_than_must_run_together_follow_one_by_one(two: World) -> None:
    for name in "abc":
        two.create(name, 8, labels=gang("g", 2))
    nodes = {name: ask(two, name)[0] for name in "abc"}
    assert nodes["c"] == []
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name][0])) for name in "ab"))
    (node, *_), _ = ask(two, "c")
    await two.binder.bind(args("c", node))
    assert len(two.api.bindings) == 3


async def test_the_successor_of_a_running_gangs_pod_needs_no_other(two: World) -> None:
    for name in "ab":
        two.create(name, 8, labels=gang("g", 2))
    nodes = {name: ask(two, name)[0][0] for name in "ab"}
    await asyncio.gather(*(two.binder.bind(args(name, nodes[name])) for name in "ab"))
    two.see("a")
    two.see("b")
    two.api.pods["default/b"]["status"]["phase"] = "Failed"
    two.see("b")
    two.create("c", 8, labels=gang("g", 2))
    (node,), _ = ask(two, "c")
    await two.binder.bind(args("c", node))


async def test_pods_without_a_gpu_count_and_gated_ones_do_not(two: World) -> None:
    two.create("launcher", labels=gang("g", 2))
    gated: dict[str, Any] = pod_object("w", 8, labels=gang("g", 2))
    gated["spec"]["schedulingGates"] = [{"name": "later"}]
    two.api.create(gated)
    two.see("w")
    two.create("v", 8, labels=gang("g", 3))
    assert ask(two, "v")[1] == {"gang default/g needs 3 pods together: there are 2"}
    del gated["spec"]["schedulingGates"]
    two.see("w")
    (node,), _ = ask(two, "w")
    await two.binder.bind(args("w", node))


@pytest.mark.parametrize("least", ["", "0", "two", "-1", "1.5"])
async def test_an_invalid_number_is_refused_with_a_suggestion(two: World, least: str) -> None:
    two.create("a", 8, labels=gang("g", least))
    _, reasons = ask(two, "a")
    (reason,) = reasons
    assert "needs pod-group.scheduling.sigs.k8s.io/min-available as well" in reason
    assert two.events.notes[0][:2] == ("a", "InvalidGPURequest")


async def test_unschedulable_pods_are_retried_once_there_is_room(two: World) -> None:
    for name in "ab":
        two.create(name, 8, labels=gang("g", 2))
    ask(two, "a")
    running = asyncio.create_task(two.retries.run())
    while not two.api.annotated:
        await two.clock.turn(1)
        await asyncio.sleep(0)
    running.cancel()
    assert "b" in [name for name, _ in two.api.annotated]


async def test_pods_offered_before_the_last_was_known_are_retried(two: World) -> None:
    hurried: list[list[str]] = []
    two.gangs.retry_wanted.subscribe(lambda uids: hurried.append([*uids]))
    two.create("a", 8, labels=gang("g", 2))
    assert not ask(two, "a")[0]
    two.api.create(pod_object("b", 8, labels=gang("g", 2)))
    assert ask(two, "b")[1] == {"gang default/g: this pod is not known yet"}
    assert not hurried
    two.see("b")
    assert hurried == [["uid-a", "uid-b"]]
    two.create("c", 8, labels=gang("g", 2))
    two.see("c")
    assert hurried[1:] == [["uid-c"]]


async def test_a_pod_offered_before_it_was_known_is_retried_for_the_true_reason(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gangs_module, "_MOST_FILTERED_TOO_EARLY", 1)
    hurried: list[list[str]] = []
    two.gangs.retry_wanted.subscribe(lambda uids: hurried.append([*uids]))
    for name in ("forgotten", "early"):
        two.api.create(pod_object(name, 8, labels=gang("g", 4)))
        assert ask(two, name)[1] == {"gang default/g: this pod is not known yet"}
        assert not hurried
    two.see("early")
    assert hurried == [["uid-early"]]
    two.see("early")
    two.see("forgotten")
    two.create("later", 8, labels=gang("g", 4))
    assert len(hurried) == 1
    assert ask(two, "early")[1] == {"gang default/g needs 4 pods together: there are 3"}


async def test_a_new_leader_binds_no_part_of_a_gang_for_which_it_has_not_found_room(two: World) -> None:
    for name in "ab":
        two.create(name, 8, labels=gang("g", 2))
    with pytest.raises(BindRefused, match="capacity for all of its pods must be reserved first"):
        await two.binder.bind(args("a", "n1"))
    assert used(two) == 0


async def test_nothing_is_remembered_of_deleted_gangs(two: World) -> None:
    for name in "ab":
        two.create(name, 8, labels=gang("g", 2))
        ask(two, name)
    two.api.pods["default/a"]["metadata"]["labels"] = gang("h", 1)
    two.see("a")
    assert ask(two, "a")[0]
    for uid in ("uid-a", "uid-b"):
        two.view.remove_pod(two.view.waiting[uid])
    assert len(two.gangs) == 0
    assert used(two) == 0
    stranger = decode_pod(pod_object("z", 8, labels=gang("g", 1)))
    two.api.pods[stranger.key] = pod_object("z", 8, labels=gang("g", 1))
    assert ask(two, "z")[1] == {"gang default/g: this pod is not known yet"}
    assert len(two.gangs) == 0


async def test_if_policies_hold_pods_back_a_gang_waits_for_its_non_gpu_members(two: World) -> None:
    two.governs = lambda namespace: namespace == "default"
    hurried: list[list[str]] = []
    two.gangs.retry_wanted.subscribe(lambda uids: hurried.append(sorted(uids)))
    two.create("w", None, labels=gang("g", 3))
    for name in ("a", "b"):
        two.create(name, 8, labels=gang("g", 3))
    why = "gang default/g needs 3 pods together: its pods without a GPU must be bound first"
    assert ask(two, "a") == ([], {why})
    assert used(two) == 0
    hurried.clear()
    two.api.pods["default/w"]["spec"]["nodeName"] = "n1"
    two.see("w")
    two.see("w")
    assert hurried == [["uid-a", "uid-b"]]
    assert len(ask(two, "a")[0]) == len(ask(two, "b")[0]) == 1


async def test_a_pod_being_bound_keeps_its_share_when_another_of_its_gang_is_deleted(two: World) -> None:
    """Its Binding is under way: released capacity would be allocated twice."""
    for name in "ab":
        two.create(name, 8, labels=gang("g", 2))
    at = {name: ask(two, name)[0][0] for name in "ab"}
    two.api.gate = asyncio.Event()
    binding = [asyncio.create_task(two.binder.bind(args(name, at[name]))) for name in "ab"]
    while two.gangs._groups["default/g"].placed != {"uid-a", "uid-b"}:
        await asyncio.sleep(0)
    two.view.remove_pod(two.view.waiting["uid-b"])
    held = two.ledger.held("uid-a")
    assert held is not None
    assert held.node == at["a"]
    two.api.gate.set()
    await asyncio.gather(*binding, return_exceptions=True)
    assert ("default/a", at["a"]) in two.api.bindings
