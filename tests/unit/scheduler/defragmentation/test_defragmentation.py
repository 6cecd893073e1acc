"""Pods move so that a pending one fits: the cheapest, within budgets, to a place reserved for them, and not too often."""

import asyncio
from typing import Any

import pytest

from gpushare.api import names
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.plugins.defragmentation.plugin import RESERVED_S, Limits
from gpushare.scheduler.plugins.preemption.plugin import SETTLE_S
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.defragmentation.moving import INTERVAL_S, WAIT_S, Moving
from tests.unit.scheduler.world import Api, pod_object


async def test_a_moved_pod_has_a_reserved_place_and_the_pending_one_gets_the_room(moving: Moving) -> None:
    moving.node("m", 16)
    await moving.bound("c", 6, "m", owner="")
    moving.made("wide", 12, "")
    assert not moving.ask("wide")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    assert moving.outcomes == ["made"]
    assert {note[:2] for note in moving.events.notes} == {
        ("a", "EvictedForDefragmentation"),
        ("wide", "DefragmentationSucceeded"),
    }
    assert [name for name, _ in moving.api.annotated] == ["wide"]
    # No other pod gets the room or the place, before and after the victim has ended.
    moving.made("thief", 7, "")
    assert not moving.ask("thief")
    moving.see("a")
    moving.end("a")
    assert not moving.ask("thief")
    with pytest.raises(BindRefused):
        await moving.binder.bind(BindingArgs("default", "thief", "uid-thief", "m"))
    await moving.look()
    assert moving.hurried == ["uid-wide"]
    assert moving.ask("wide") == ["n"]
    # kube-scheduler may try the successor before our watch shows it.
    moving.api.create(
        pod_object("a2", 10)
        | {"metadata": {**pod_object("a2", 10)["metadata"], "ownerReferences": owner_of("rs")}}
    )
    assert not moving.ask("a2")
    moving.see("a2")
    assert moving.hurried == ["uid-wide", "uid-a2"]
    assert moving.ask("a2") == ["m"]
    for name, node in (("a2", "m"), ("wide", "n")):
        await moving.binder.bind(BindingArgs("default", name, f"uid-{name}", node))
        moving.see(name)
    assert moving.used_mib("n") == [12288, 10240]
    assert moving.used_mib("m") == [16384]
    await moving.look()
    assert not moving.mover._reservations
    assert not moving.mover._places


def owner_of(uid: str) -> list[dict[str, Any]]:
    return [{"uid": uid, "kind": "ReplicaSet", "controller": True}]


async def test_a_pod_moves_within_its_node_where_it_can() -> None:
    moving = Moving()
    moving.node("n", 16, 16)
    for name, units in (("a", 8), ("b", 4), ("c", 6)):
        await moving.bound(name, units, "n")
    assert moving.used_mib("n") == [12288, 6144]
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    assert [place.node for place in moving.mover._places] == ["n"]
    assert moving.events.notes[0] == (
        "a",
        "EvictedForDefragmentation",
        "evicted so that pod default/wide fits on GPU 0 of n; capacity for its replacement is reserved on node n",
    )


async def test_no_pod_moves_before_the_pod_has_waited_and_the_interval_is_over(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    # "m" takes it; only "n" was offered.
    assert not moving.ask("wide", "n")
    await moving.look(WAIT_S)
    assert not moving.api.evicted, "the process has not run for an interval"
    await moving.look(INTERVAL_S)
    assert len(moving.api.evicted) == 1
    moving.node("k", 16, 16)
    moving.node("l", 16)
    for name in ("d", "e"):
        await moving.bound(name, 10, "k")
    moving.made("next", 12, "")
    assert not moving.ask("next", "k")
    await moving.look(WAIT_S)
    assert len(moving.api.evicted) == 1
    await moving.look(INTERVAL_S)
    assert moving.api.evicted[1:] == ["d"]


async def test_a_new_leader_waits_as_the_previous_one_may_have_moved_pods(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S - 2)
    moving.mover.took_over()
    await moving.look(10)
    assert not moving.api.evicted
    await moving.look(INTERVAL_S)
    assert moving.api.evicted


async def test_annotations_that_tenants_write_delay_no_move(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S - 2)
    moving.made("other", 16, "", annotations={names.ANN_ROOM_MADE: str(moving.clock.time_ns())})
    await moving.look(10)
    assert moving.api.evicted


async def test_a_protected_pod_stays_and_another_moves_or_none_does(moving: Moving) -> None:
    moving.node("m", 16)
    moving.api.pods["default/a"]["metadata"]["labels"] = {"app": "a"}
    moving.budget(0, app="a")
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["b"]

    moving = Moving()
    moving.node("n", 16, 16)
    moving.node("m", 16)
    for name in ("a", "b"):
        await moving.bound(name, 10, "n", labels={"app": "x"})
    moving.budget(0, app="x")
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    assert moving.outcomes == ["protected"]
    assert moving.events.notes[-1][:2] == ("wide", "DefragmentationRefused")
    assert not moving.api.annotated


async def test_pods_of_higher_priority_leaving_or_without_owner_stay() -> None:
    moving = Moving()
    moving.node("n", 16, 16, 16)
    moving.node("m", 16)
    await moving.bound("high", 10, "n", priority=5)
    await moving.bound("bare", 10, "n", owner="")
    await moving.bound("kept", 10, "n", annotations={names.ANN_DEFRAGMENTATION: "false"})
    moving.made("wide", 12, "", priority=4)
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    assert not moving.outcomes


async def test_a_pod_that_the_target_does_not_take_stays(moving: Moving) -> None:
    moving.node("m", 16)
    moving.api.hosts["m"]["spec"] = {"unschedulable": True}
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    del moving.api.hosts["m"]
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    moving.node("m", 16)
    await moving.look(INTERVAL_S)
    assert moving.api.evicted


async def test_a_budget_that_forbids_the_move_meanwhile_releases_everything(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")

    def nothing() -> None:
        """The note on the pending pod."""

    def forbidden() -> None:
        raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's budget", "")

    moving.api.before += [nothing, forbidden]
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    assert moving.outcomes == ["protected"]
    assert moving.ledger.nominations.node_of("uid-wide") == ""
    assert not moving.mover._places
    moving.made("other", 16, "")
    assert moving.ask("other", "m") == ["m"]


async def test_a_failing_api_server_releases_everything_too(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")

    def broken() -> None:
        raise ApiError(500, "InternalError", "no", "")

    moving.api.before.append(broken)
    await moving.look(INTERVAL_S)
    assert moving.outcomes == ["failed"]
    assert moving.ledger.nominations.node_of("uid-wide") == ""
    moving.api.reading.append(broken)
    await moving.look(INTERVAL_S)
    assert moving.outcomes == ["failed", "failed"]
    assert not moving.api.evicted


async def test_a_pod_gone_or_replaced_by_now_is_not_evicted_but_the_next(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    gone = moving.api.pods.pop("default/a")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["b"]
    moving.api.pods["default/a"] = gone


async def test_a_pod_that_vanishes_at_the_last_moment_counts_as_evicted(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")

    def vanished() -> None:
        raise ApiError(404, "NotFound", "pods a not found", "")

    moving.api.before += [lambda: None, vanished]
    await moving.look(INTERVAL_S)
    assert moving.outcomes == ["made"]
    assert moving.ledger.nominations.node_of("uid-wide") == "n"


async def test_unused_reservations_and_places_are_released(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    moving.see("a")
    moving.end("a")
    moving.made("other", 16, "")
    assert not moving.ask("other")
    await moving.look(RESERVED_S)
    assert moving.ask("other") == ["n", "m"]


async def test_a_successor_that_found_another_node_leaves_its_place(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    share = moving.api.pods["default/b"]["metadata"]["annotations"]
    moving.node("k", 16)
    pod = pod_object("a2", 10, node="k", annotations=dict(share))
    pod["metadata"]["ownerReferences"] = owner_of("rs")
    moving.api.create(pod)
    moving.see("b")  # a pod from before takes no place
    assert len(moving.mover._places) == 1
    moving.see("a2")
    assert not moving.mover._places
    moving.made("other", 16, "")
    assert moving.ask("other", "m") == ["m"]


async def test_a_successor_of_another_owner_or_one_that_fits_no_more_takes_no_place(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    moving.made("stranger", 1, "other-rs")
    assert len(moving.mover._places) == 1
    moving.made("grown", 17, "rs")
    assert not moving.mover._places
    assert moving.ledger.nominations.node_of("uid-grown") == ""


async def test_preemption_and_defragmentation_never_act_for_one_pod_at_once(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "", priority=9)
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    running = asyncio.create_task(moving.preemptor.run())
    await asyncio.sleep(0)
    await moving.clock.turn(SETTLE_S)
    for _ in range(60):
        await asyncio.sleep(0)
    running.cancel()
    assert moving.api.evicted == ["a"]
    # And the other way round: no pods are moved for a pod with a nomination.
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]


async def test_pods_that_are_already_terminating_are_waited_for(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    moving.api.pods["default/b"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    moving.see("b")
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted


async def test_a_change_during_planning_prevents_the_move(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")

    def taken() -> None:
        moving.ledger.reserve("uid-x", "default/x", pod_request(8), "m")

    moving.api.reading.append(taken)
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    assert moving.ledger.nominations.node_of("uid-wide") == ""

    def relabelled() -> None:
        labels = moving.api.pods["default/a"]["metadata"]["labels"]
        labels[names.LABEL_POD_PLACEMENT] = "nonsense"

    moving.ledger.release("uid-x")
    moving.api.reading.append(relabelled)
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted


def pod_request(units: int) -> Any:
    from gpushare.api.request.request import request_of

    return request_of(Api().create(pod_object("x", units)))


async def test_pods_waiting_for_several_gpus_or_in_a_gang_or_with_policy_never_are_not_helped(
    moving: Moving,
) -> None:
    moving.node("m", 16)
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "1"}
    moving.made("pair", 24, "", labels={names.LABEL_POD_GPU_COUNT: "2"})
    moving.made("member", 12, "", labels=gang)
    moving.made("polite", 12, "", never=True)
    for name in ("pair", "member", "polite"):
        assert not moving.ask(name, "n")
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted


async def test_a_pod_that_is_never_seen_is_forgotten_and_the_number_of_remembered_is_bounded(
    moving: Moving,
) -> None:
    moving.mover.post_filter("uid-unknown", [])
    assert not moving.mover._refused
    for number in range(300):
        moving.mover.post_filter(f"uid-{number}", ["n"])
    assert len(list(moving.mover._nodes)) == 256
    await moving.look(INTERVAL_S)
    assert not moving.mover._refused


async def test_two_pods_move_if_one_is_not_enough_and_only_if_two_may() -> None:
    for most, evicted in ((1, []), (2, ["a", "b"])):
        moving = Moving(Limits(INTERVAL_S, WAIT_S, most))
        moving.node("n", 16, 16)
        moving.node("m", 16)
        await moving.bound("a", 6, "n")
        await moving.bound("b", 6, "n")
        await moving.bound("c", 6, "n", owner="")
        moving.made("wide", 14, "")
        assert not moving.ask("wide", "n")
        await moving.look(INTERVAL_S)
        assert sorted(moving.api.evicted) == evicted


async def test_if_the_second_of_two_may_not_go_the_first_keeps_its_place() -> None:
    moving = Moving()
    moving.node("n", 16, 16)
    moving.node("m", 16)
    await moving.bound("a", 6, "n")
    await moving.bound("b", 6, "n")
    await moving.bound("c", 6, "n", owner="")
    moving.made("wide", 14, "")
    assert not moving.ask("wide", "n")

    def forbidden() -> None:
        raise ApiError(429, "TooManyRequests", "no", "")

    moving.api.before += [lambda: None, lambda: None, forbidden]
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    assert moving.ledger.nominations.node_of("uid-wide") == ""
    assert [place.key for place in moving.mover._places] == ["moved:uid-a"]


async def test_two_pods_that_move_to_one_node_must_both_find_room_there() -> None:
    for cpu, evicted in (("8", ["a", "b"]), ("1", [])):
        moving = Moving()
        moving.node("n", 16, 16, 16)
        moving.node("m", 16)
        moving.api.hosts["m"]["status"]["allocatable"]["cpu"] = cpu
        for name, units, owner in (("a", 5, "rs"), ("b", 5, "rs"), ("c", 12, ""), ("d", 12, "")):
            await moving.bound(name, units, "n", owner=owner)
        for name in ("a", "b"):
            resources = moving.api.pods[f"default/{name}"]["spec"]["containers"][0]["resources"]
            resources["requests"] = {"cpu": "1"}
        moving.made("wide", 14, "")
        assert not moving.ask("wide", "n")
        await moving.look(INTERVAL_S)
        assert sorted(moving.api.evicted) == evicted
        assert [place.node for place in moving.mover._places] == ["m"] * len(evicted)


async def test_the_number_of_combinations_tried_per_run_is_limited() -> None:
    moving = Moving()
    moving.node("n", *[16] * 6)
    moving.node("m", 16)
    moving.api.hosts["m"]["spec"] = {"unschedulable": True}
    for number in range(6):
        await moving.bound(f"p{number}", 10, "n")
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    del moving.api.hosts["m"]["spec"]["unschedulable"]
    reads: list[int] = []

    def gone() -> None:
        reads.append(1)
        raise ApiError(404, "NotFound", "gone", "")

    moving.api.reading += [gone] * 6
    await moving.look(INTERVAL_S)
    assert len(reads) == 5
    assert not moving.api.evicted
