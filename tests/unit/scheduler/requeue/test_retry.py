"""A pod that was refused just before capacity came free is retried, and no other is touched."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.objects import decode_pod
from gpushare.api.request.pod_group import Gang
from gpushare.api.request.request import Request
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.preemption.ranks import lesser
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.gangs.test_gangs import gang
from tests.unit.scheduler.world import World, gpu_node, pod_object


@pytest.fixture
async def retrying(world: World) -> AsyncIterator[World]:
    world.create("full", 16)
    await world.binder.bind(_args("full"))
    world.see("full")
    task = asyncio.create_task(world.retries.run())
    yield world
    task.cancel()


def _args(name: str) -> BindingArgs:
    return BindingArgs("default", name, f"uid-{name}", "n1")


def end(world: World, name: str) -> None:
    """The pod is gone, and the watch delivers that."""
    record = record_of(decode_pod(world.api.pods.pop(f"default/{name}")))
    assert record is not None
    world.view.remove_pod(record)


async def turns(world: World, reached: Callable[[], bool], seconds: int = 4) -> bool:
    """Let time pass until ``reached``; whether it was."""
    for _ in range(seconds * 4):
        for _ in range(20):
            await asyncio.sleep(0)
        if reached():
            return True
        await world.clock.turn(0.25)
    return reached()


async def test_a_pod_refused_just_before_the_room_came_is_touched_once(retrying: World) -> None:
    retrying.create("late", 4)
    retrying.retries.refused("uid-late")
    end(retrying, "full")
    assert await turns(retrying, lambda: len(retrying.api.annotated) == 1)
    assert not await turns(retrying, lambda: len(retrying.api.annotated) > 1)
    name, annotations = retrying.api.annotated[0]
    assert (name, list(annotations)) == ("late", [names.ANN_RETRY])


def ask(world: World, name: str, units: object) -> None:
    """As kube-scheduler does; the pod is refused."""
    body = {"Pod": pod_object(name, units), "NodeNames": ["n1"]}
    answer = json.loads(filter_nodes(world.view, Bodies().read(json.dumps(body).encode()), world.framework()))
    assert answer["NodeNames"] == []


async def test_a_pod_that_no_eviction_could_help_is_retried_when_its_node_recovers(
    retrying: World,
) -> None:
    well = gpu_node("n1", 16384)
    (gpu,) = well.devices
    end(retrying, "full")
    lost = msgspec.structs.replace(gpu, healthy=False, reason="no CDI description")
    retrying.add_node(msgspec.structs.replace(well, devices=(lost,)))
    retrying.create("late", 4)
    ask(retrying, "late", 4)
    retrying.add_node(well)
    assert await turns(retrying, lambda: [name for name, _ in retrying.api.annotated] == ["late"])


async def test_an_invalid_request_is_not_retried_for_any_room(retrying: World) -> None:
    retrying.create("odd", "2.5")
    ask(retrying, "odd", "2.5")
    end(retrying, "full")
    assert not await turns(retrying, lambda: bool(retrying.api.annotated))


async def test_a_pod_that_was_retried_since_is_left_alone(retrying: World) -> None:
    retrying.create("late", 4)
    retrying.retries.refused("uid-late")
    end(retrying, "full")
    for _ in range(20):
        await asyncio.sleep(0)
    await retrying.clock.turn(0.5)
    retrying.retries.refused("uid-late")
    assert not await turns(retrying, lambda: bool(retrying.api.annotated))


async def test_a_pod_that_found_its_place_or_was_refused_long_ago_is_left_alone(retrying: World) -> None:
    retrying.create("placed", 4)
    retrying.create("patient", 4)
    retrying.retries.refused("uid-patient")
    await retrying.clock.turn(60)
    retrying.retries.refused("uid-placed")
    end(retrying, "full")
    await retrying.binder.bind(_args("placed"))
    retrying.see("placed")
    assert not await turns(retrying, lambda: bool(retrying.api.annotated))


async def test_a_changed_node_counts_as_room_and_without_a_refusal_nothing_happens(retrying: World) -> None:
    retrying.add_node(gpu_node("n2", 8192))
    assert not await turns(retrying, lambda: bool(retrying.api.annotated))
    retrying.create("late", 4)
    retrying.retries.refused("uid-late")
    retrying.add_node(gpu_node("n3", 8192))
    assert await turns(retrying, lambda: len(retrying.api.annotated) == 1)


async def test_an_unreachable_api_server_costs_only_time(retrying: World) -> None:
    def away() -> None:
        raise Unreachable("https://api", "connection refused", sent=False)

    for name in ("one", "two"):
        retrying.create(name, 4)
        retrying.retries.refused(f"uid-{name}")
    retrying.api.before.append(away)
    end(retrying, "full")
    assert await turns(retrying, lambda: len(retrying.api.annotated) == 1)
    assert await turns(retrying, lambda: len(retrying.api.annotated) == 2)
    assert {name for name, _ in retrying.api.annotated} == {"one", "two"}


async def test_a_deleted_pod_is_not_retried(retrying: World) -> None:
    def gone() -> None:
        raise ApiError(404, "NotFound", "no such pod", "")

    retrying.create("late", 4)
    retrying.retries.refused("uid-late")
    retrying.api.before.append(gone)
    end(retrying, "full")
    assert not await turns(retrying, lambda: bool(retrying.api.annotated), 8)


def test_refusals_are_remembered_within_a_bound(world: World) -> None:
    for number in range(5000):
        world.retries.refused(f"uid-{number}")
    assert len(world.retries._refused) == 4096


async def test_all_pods_of_a_gang_are_retried_however_many_they_are(retrying: World) -> None:
    """They were refused one by one before the last was there, and nothing else would have them retried."""
    pods = [f"p{number}" for number in range(200)]
    for name in pods:
        retrying.create(name, 4)
    retrying.retries.refused("uid-p0")
    retrying.retries.hurry([f"uid-{name}" for name in pods])
    retrying.retries.placed("uid-p7")  # it came meanwhile, and has its room
    assert await turns(retrying, lambda: len(retrying.api.annotated) == 199)
    assert not await turns(retrying, lambda: len(retrying.api.annotated) > 199)
    assert {name for name, _ in retrying.api.annotated} == {*pods} - {"p7"}


def test_no_hurried_pod_is_forgotten_because_of_others(world: World) -> None:
    """For example by a tree of quotas that admits them: nothing else has them retried for minutes."""
    pods = [f"uid-{number}" for number in range(5000)]
    world.retries.hurry(pods)
    for number in range(5000):
        world.retries.refused(f"other-{number}")
    assert list(world.retries._hurried) == pods
    assert len(world.retries._refused) == 4096


async def test_a_pod_retried_and_refused_since_is_left_alone(retrying: World) -> None:
    retrying.create("late", 4)
    retrying.retries.hurry(["uid-late"])
    for _ in range(20):
        await asyncio.sleep(0)
    await retrying.clock.turn(0.5)
    retrying.retries.refused("uid-late")
    assert not await turns(retrying, lambda: bool(retrying.api.annotated))
    await retrying.clock.turn(60)
    retrying.retries.freed()
    assert not await turns(retrying, lambda: bool(retrying.api.annotated))


async def test_of_those_that_the_same_room_could_help_some_are_retried(retrying: World) -> None:
    for number in range(100):
        retrying.create(f"p{number}", 4)
        retrying.retries.refused(f"uid-p{number}")
    end(retrying, "full")
    assert await turns(retrying, lambda: len(retrying.api.annotated) == 64)
    assert not await turns(retrying, lambda: len(retrying.api.annotated) > 64)


async def test_a_pod_refused_for_a_share_whose_binding_never_came_is_retried_when_it_is_free(
    retrying: World,
) -> None:
    end(retrying, "full")
    retrying.create("lost", 16)
    retrying.api.before.append(_no_answer)
    with pytest.raises(BindRefused):
        await retrying.binder.bind(_args("lost"))
    retrying.create("late", 4)
    ask(retrying, "late", 4)
    await retrying.clock.turn(15.0)
    await retrying.binder.settle("uid-lost", "default/lost")
    assert await turns(retrying, lambda: "late" in [name for name, _ in retrying.api.annotated])


async def test_a_released_reservation_has_those_retried_that_were_refused_for_it(retrying: World) -> None:
    for number in range(3):
        retrying.create(f"refused{number}", 4)
        ask(retrying, f"refused{number}", 4)
    retrying.api.counted_in = ["default"]
    for number in range(64):
        without_gpu = pod_object(f"other{number}")
        without_gpu["spec"]["schedulerName"] = names.SCHEDULER_NAME
        retrying.api.create(without_gpu)
        retrying.see(f"other{number}")
    retrying.create("unasked", 4)
    await retrying.clock.turn(30.0)
    # What is freed beside it helps others, and old refusals are not forgotten.
    retrying.create("late", 4)
    ask(retrying, "late", 4)
    retrying.retries.freed()
    assert await turns(retrying, lambda: [name for name, _ in retrying.api.annotated] == ["late"])
    retrying.view.reservation_released()
    assert await turns(retrying, lambda: len(retrying.api.annotated) == 65)
    touched = [name for name, _ in retrying.api.annotated[1:]]
    assert touched[:5] == ["refused2", "refused1", "refused0", "unasked", "late"]
    assert len(set(touched)) == 64


async def test_others_are_tried_while_a_gang_gives_way_to_them(retrying: World) -> None:
    end(retrying, "full")
    for name in "ab":
        retrying.create(name, 8, labels=gang("g", 2))
    retrying.gangs.verdict("uid-a", "default/a", *_gang_of(retrying, "uid-a"), ["n1"])
    retrying.create("late", 4)
    ask(retrying, "late", 4)
    await retrying.clock.turn(15.0)
    await retrying.binder.settle("uid-a", "default/a")
    assert await turns(retrying, lambda: "late" in [name for name, _ in retrying.api.annotated])


async def test_others_are_retried_when_a_gang_with_a_reservation_is_deleted(retrying: World) -> None:
    end(retrying, "full")
    for name in "abc":
        retrying.create(name, 8, labels=gang("g", 3))
    retrying.add_node(gpu_node("n2", 8192))
    retrying.gangs.verdict("uid-a", "default/a", *_gang_of(retrying, "uid-a"), ["n1", "n2"])
    retrying.create("late", 4)
    ask(retrying, "late", 4)
    await retrying.clock.turn(30.0)
    end(retrying, "b")
    assert await turns(retrying, lambda: "late" in [name for name, _ in retrying.api.annotated])


async def test_others_are_retried_when_a_pod_with_freed_room_is_deleted(retrying: World) -> None:
    retrying.create("high", 16, priority=9)
    record = retrying.view.waiting["uid-high"]
    assert record.request is not None
    plan = retrying.ledger.evictions.plan(record.request, ("n1",), lesser(retrying.view, 9))
    assert plan is not None
    retrying.ledger.nominations.add("uid-high", record.request, plan)
    end(retrying, "full")
    retrying.create("late", 4)
    ask(retrying, "late", 4)
    await retrying.clock.turn(30.0)
    end(retrying, "high")
    assert await turns(retrying, lambda: "late" in [name for name, _ in retrying.api.annotated])


async def test_no_pod_is_retried_because_one_without_a_reservation_ended(retrying: World) -> None:
    for name in ("late", "patient"):
        retrying.create(name, 4)
        ask(retrying, name, 4)
    await retrying.clock.turn(30.0)
    end(retrying, "patient")
    assert not await turns(retrying, lambda: bool(retrying.api.annotated))


def _gang_of(world: World, uid: str) -> tuple[Gang, Request]:
    record = world.view.waiting[uid]
    assert record.gang is not None
    assert record.request is not None
    return record.gang, record.request


def _no_answer() -> None:
    raise Unreachable("https://api", "no answer in time", sent=None)
