"""Races between a bind's awaits: a share in use is never allocated again, and none stays reserved forever."""

import asyncio
import copy

import pytest

from gpushare.api import names
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.objects import Pod, decode_pod
from gpushare.api.request.request import request_of
from gpushare.kube.client.errors import ApiError, CredentialError
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.framework.binder import BindRefused
from tests.unit.scheduler.framework.test_bind import BROKEN, LOST, NEVER_SENT, args, fail
from tests.unit.scheduler.gangs.test_gangs import gang
from tests.unit.scheduler.preemption.test_preemption import ask
from tests.unit.scheduler.world import World, gpu_node, pod_object


class SlowRead:
    """Stands in for ``get_pod``: the answer is that of the moment of the request, and is returned when released."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read = world.api.get_pod
        self.requested = asyncio.Event()
        self.answer = asyncio.Event()
        world.api.get_pod = self  # type: ignore[method-assign]

    async def __call__(self, namespace: str, name: str) -> Pod:
        pod = copy.deepcopy(await self._read(namespace, name))
        self._world.api.get_pod = self._read  # type: ignore[method-assign]
        self.requested.set()
        await self.answer.wait()
        return pod


async def lose_a_binding(world: World, name: str, error: Exception = LOST) -> None:
    """Bind ``name``, with the outcome of the Binding unknown."""
    world.api.before.append(fail(error))
    with pytest.raises(BindRefused):
        await world.binder.bind(args(name))


async def test_settling_does_not_end_a_reservation_under_a_repeated_bind(world: World) -> None:
    world.create("a", 16)
    await lose_a_binding(world, "a")
    read = SlowRead(world)
    settling = asyncio.create_task(world.binder.settle("uid-a", "default/a"))
    await read.requested.wait()  # the answer: not bound
    world.api.gate = asyncio.Event()
    repeating = asyncio.create_task(world.binder.bind(args("a")))
    await asyncio.sleep(0)
    read.answer.set()
    await settling
    world.create("b", 16)
    other = asyncio.create_task(world.binder.bind(args("b")))
    await asyncio.sleep(0)
    world.api.gate.set()
    await asyncio.gather(repeating, other, return_exceptions=True)
    world.api.gate = None
    bound = [pod["metadata"]["name"] for pod in world.api.pods.values() if pod["spec"]["nodeName"]]
    assert len(bound) == 1
    assert world.used_mib("n1") == [16384]


@pytest.mark.parametrize(
    "error",
    [
        NEVER_SENT,
        ApiError(429, "TooManyRequests", "come back later", "/binding"),
        CredentialError("token", "cannot be read"),
    ],
)
async def test_a_lost_binding_keeps_its_share_though_a_repeated_one_is_refused(
    world: World, error: Exception
) -> None:
    world.create("a", 4)
    await lose_a_binding(world, "a")
    await lose_a_binding(world, "a", error)
    assert world.used_mib("n1") == [4096]  # the first may still arrive
    await world.clock.turn(16)
    assert world.reservations.due(world.clock.now_s) == [("uid-a", "default/a")]
    await world.binder.settle("uid-a", "default/a")
    assert world.used_mib("n1") == [0]
    assert (world.reservations.deadlines, world.reservations.doubtful) == ({}, set())


async def test_a_bound_pod_that_ends_before_our_watch_ever_saw_it_leaks_nothing(world: World) -> None:
    world.api.create(pod_object("a", 4))
    await world.binder.bind(args("a"))
    await world.binder.settle("uid-a", "default/a")  # bound, according to the API server
    assert world.used_mib("n1") == [4096]
    del world.api.pods["default/a"]  # in a gap of the watch: its deletion is never delivered
    assert list(world.reservations.deadlines) == ["uid-a"]
    await world.binder.settle("uid-a", "default/a")
    assert world.used_mib("n1") == [0]
    assert world.reservations.deadlines == {}


async def test_a_read_that_is_older_than_the_watch_leaks_nothing(world: World) -> None:
    world.create("a", 4)
    read = SlowRead(world)
    world.api.after.append(fail(LOST))
    binding = asyncio.create_task(world.binder.bind(args("a")))
    await read.requested.wait()  # the answer: bound
    record = record_of(decode_pod(world.api.pods["default/a"]))
    assert record is not None
    world.view.upsert_pod(record)
    del world.api.pods["default/a"]
    world.view.remove_pod(record)  # the watch is faster than the answer
    read.answer.set()
    await binding
    assert list(world.reservations.deadlines) == ["uid-a"]  # it will be read
    await world.binder.settle("uid-a", "default/a")
    assert world.used_mib("n1") == [0]
    assert world.reservations.deadlines == {}


async def test_an_older_read_does_not_undo_what_the_watch_has_confirmed(world: World) -> None:
    world.add_node(gpu_node("n1", 16384, 16384))
    world.create("a", 4)
    read = SlowRead(world)
    world.api.after.append(fail(LOST))
    binding = asyncio.create_task(world.binder.bind(args("a")))
    await read.requested.wait()
    annotations = world.api.pods["default/a"]["metadata"]["annotations"]
    annotations[names.ANN_SHARE] = annotations[names.ANN_SHARE].replace("GPU-n1-0", "GPU-n1-1")
    world.see("a")  # the node agent has corrected the record
    read.answer.set()
    await binding
    assert world.used_mib("n1") == [0, 4096]
    assert world.reservations.deadlines == {}


async def test_a_pod_that_fails_while_its_bind_is_in_flight_holds_nothing(world: World) -> None:
    world.create("a", 4)
    world.api.gate = asyncio.Event()
    binding = asyncio.create_task(world.binder.bind(args("a")))
    await asyncio.sleep(0)
    world.api.pods["default/a"]["status"]["phase"] = "Failed"
    world.see("a")
    world.api.after.append(fail(LOST))
    world.api.gate.set()
    await binding  # bound and failed
    world.see("a")
    assert world.used_mib("n1") == [0]
    assert world.reservations.deadlines == {}


async def test_a_pod_that_is_gone_for_the_watch_is_not_reserved_again_by_a_lost_answer(world: World) -> None:
    world.create("a", 4)
    world.api.gate = asyncio.Event()
    world.api.before.append(fail(BROKEN))
    world.api.reading.append(fail(LOST))
    binding = asyncio.create_task(world.binder.bind(args("a")))
    await asyncio.sleep(0)
    record = record_of(decode_pod(world.api.pods.pop("default/a")))
    assert record is not None
    world.view.remove_pod(record)
    world.api.gate.set()
    with pytest.raises(BindRefused):
        await binding
    assert world.used_mib("n1") == [0]
    assert (world.reservations.deadlines, world.reservations.doubtful) == ({}, set())


async def test_a_pod_bound_elsewhere_without_a_share_frees_ours(world: World) -> None:
    world.create("a", 4)
    await lose_a_binding(world, "a")
    world.api.pods["default/a"]["spec"]["nodeName"] = "n7"
    await world.binder.settle("uid-a", "default/a")
    assert world.used_mib("n1") == [0]
    assert world.reservations.deadlines == {}


async def test_reservations_are_settled_concurrently(world: World) -> None:
    for name in ("a", "b"):
        world.create(name, 4)
        await lose_a_binding(world, name)
    read = SlowRead(world)  # the first answer does not come
    sweeping = asyncio.create_task(world.binder.sweep())

    async def turn_until_one_is_free() -> None:
        while world.used_mib("n1") != [4096]:
            await world.clock.turn(1)
            await asyncio.sleep(0)

    await asyncio.wait_for(turn_until_one_is_free(), 5)
    assert read.requested.is_set()
    sweeping.cancel()


@pytest.mark.parametrize(
    ("annotations", "node", "used_mib"),
    [
        ({names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "2", names.ANN_MEM_DEVICE: "16"}, "n1", 2048),
        ({names.ANN_MEM_INDEX: "5", names.ANN_MEM_POD: "2"}, "n1", 4096),  # unreadable: what we reserved
        ({names.ANN_MEM_INDEX: "0", names.ANN_MEM_POD: "2"}, "n7", 0),  # a node that is not known
    ],
)
async def test_a_pod_that_another_scheduler_bound_meanwhile_counts_as_that_one_wrote(
    world: World, annotations: dict[str, str], node: str, used_mib: int
) -> None:
    world.create("a", 4)
    await lose_a_binding(world, "a")
    pod = world.api.pods["default/a"]
    pod["spec"]["nodeName"], pod["metadata"]["annotations"] = node, annotations
    await world.binder.settle("uid-a", "default/a")
    assert world.used_mib("n1") == [used_mib]
    assert world.events.notes == []  # the watch will report it
    world.see("a")
    assert world.reservations.deadlines == {}


async def test_reservations_from_before_another_led_are_not_posted_again(world: World) -> None:
    """The other knew nothing of it, and has allocated the same: seen by a replica that led before and after it."""
    world.create("a", 16)
    await lose_a_binding(world, "a")
    other = world.create("b", 16)
    share = world.ledger.held("uid-a")
    assert share is not None
    stamp = Stamp(1, assigned=False)
    annotations = allocation_annotations(share.allocation, request_of(other), stamp)
    await world.api.bind(namespace="default", name="b", uid="uid-b", node="n1", annotations=annotations)
    world.see("b")
    world.binder.forget_reservations()
    with pytest.raises(BindRefused, match="rescheduled within 15 s"):
        await world.binder.bind(args("a"))
    assert world.api.bindings == [("default/b", "n1")]
    await world.binder.settle("uid-a", "default/a")
    assert world.ledger.held("uid-a") is None
    with pytest.raises(BindRefused, match="node n1"):
        await world.binder.bind(args("a"))
    world.add_node(gpu_node("n2", 16384))
    await world.binder.bind(args("a", node="n2"))
    assert world.api.pods["default/a"]["spec"]["nodeName"] == "n2"


async def test_an_earlier_binding_that_arrives_is_what_counts(world: World) -> None:
    world.create("a", 16)
    world.api.after.append(fail(LOST))
    world.api.reading.append(fail(LOST))
    with pytest.raises(BindRefused):
        await world.binder.bind(args("a"))
    world.binder.forget_reservations()
    world.see("a")
    await world.binder.bind(args("a"))
    assert world.reservations.of_before == set()


async def test_a_gang_is_placed_again_after_its_reservations_were_dropped(world: World) -> None:
    for name in ("g-0", "g-1"):
        labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
        world.create(name, 8, labels=labels)
    assert ask(world, "g-0") == ["n1"]
    assert world.ledger.totals().reserved == 2
    world.gangs.give_up_all()
    world.binder.forget_reservations()
    assert world.ledger.totals().reserved == 0
    assert not world.reservations.deadlines


async def test_the_room_of_a_gang_stays_while_one_of_its_reservations_is_settled(
    world: World,
) -> None:
    for name in "ab":
        world.create(name, 8, labels=gang("g", 2))
    assert ask(world, "a") == ["n1"]
    await world.clock.turn(15.0)
    read = SlowRead(world)
    settling = asyncio.create_task(world.binder.settle("uid-a", "default/a"))
    await read.requested.wait()  # the answer: not bound
    assert ask(world, "b") == ["n1"]
    read.answer.set()
    await settling
    await asyncio.gather(*(world.binder.bind(args(name)) for name in "ab"))
    assert {name for name, _ in world.api.bindings} == {"default/a", "default/b"}
