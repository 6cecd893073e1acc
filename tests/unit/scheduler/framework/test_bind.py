"""Bind gives a share to one pod at most, whatever the API server answers, and leaks none."""

import asyncio
from collections.abc import Callable

import pytest

from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.kube.client.errors import ApiError, CredentialError, Unreachable
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import World, gpu_node, pod_object


def args(name: str, node: str = "n1", uid: str | None = None) -> BindingArgs:
    return BindingArgs("default", name, uid or f"uid-{name}", node)


def fail(error: Exception) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


LOST = Unreachable("https://api", "the connection was cut", sent=None)
NEVER_SENT = Unreachable("https://api", "connection refused", sent=False)
BROKEN = ApiError(500, "InternalError", "etcd is away", "/binding")
TIMED_OUT = ApiError(408, "Timeout", "too slow", "/binding")


async def test_one_write_carries_the_decision_and_the_informer_confirms_it(world: World) -> None:
    world.create("a", 4)
    await world.binder.bind(args("a"))
    written = world.api.pods["default/a"]["metadata"]["annotations"]
    allocation = read_allocation(written, None)
    assert allocation is not None
    assert allocation.gpus[0].mib == 4096
    assert written["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == str(int(1000e9))
    held = world.ledger.held("uid-a")
    assert held is not None
    assert (held.confirmed, list(world.reservations.deadlines)) == (False, ["uid-a"])
    world.see("a")
    held = world.ledger.held("uid-a")
    assert held is not None
    assert (held.confirmed, list(world.reservations.deadlines)) == (True, [])
    assert held.allocation == allocation


async def test_of_two_pods_that_race_for_the_last_unit_exactly_one_gets_it(world: World) -> None:
    world.create("big", 15)
    await world.binder.bind(args("big"))
    world.api.gate = asyncio.Event()
    world.create("a", 1)
    world.create("b", 1)
    racing = [asyncio.create_task(world.binder.bind(args(name))) for name in ("a", "b")]
    await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
    world.api.gate.set()
    results = await asyncio.gather(*racing, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), BindRefused]
    assert "no single GPU has 1 GiB free" in str(results[1])
    assert world.used_mib("n1") == [16384]


async def test_a_repeated_bind_of_a_bound_pod_succeeds_without_another_write(world: World) -> None:
    world.create("a", 4)
    await world.binder.bind(args("a"))
    world.see("a")
    await world.binder.bind(args("a"))
    assert world.api.bindings == [("default/a", "n1")]
    with pytest.raises(BindRefused, match="is already bound to node n1"):
        await world.binder.bind(args("a", "n2"))


async def test_a_bind_repeated_before_the_informer_saw_it_succeeds(world: World) -> None:
    world.create("a", 4)
    await world.binder.bind(args("a"))
    await world.binder.bind(args("a"))  # answered 409: already assigned, to the node that we want
    assert world.used_mib("n1") == [4096]


async def test_a_bind_written_without_an_answer_is_a_success(world: World) -> None:
    world.create("a", 4)
    world.api.after.append(fail(LOST))
    await world.binder.bind(args("a"))
    assert world.used_mib("n1") == [4096]
    world.see("a")
    held = world.ledger.held("uid-a")
    assert held is not None
    assert (held.confirmed, world.reservations.deadlines) == (True, {})


@pytest.mark.parametrize("error", [LOST, BROKEN, TIMED_OUT])
async def test_a_bind_of_unknown_outcome_keeps_the_share_until_it_is_settled(
    world: World, error: Exception
) -> None:
    world.create("a", 4)
    world.api.before.append(fail(error))
    world.api.reading.append(fail(LOST))
    with pytest.raises(BindRefused, match="was not bound to node n1"):
        await world.binder.bind(args("a"))
    assert world.used_mib("n1") == [4096]
    with pytest.raises(BindRefused, match="may be bound at any moment to node n1"):
        await world.binder.bind(args("a", "n2"))
    await world.binder.bind(args("a"))
    assert world.used_mib("n1") == [4096]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NEVER_SENT, "cannot reach the API server"),
        (ApiError(403, "Forbidden", "no right to bind", "/binding"), "no right to bind"),
        (CredentialError("token", "cannot be read"), "cannot be read"),
    ],
)
async def test_a_binding_that_certainly_did_not_arrive_frees_the_share_immediately(
    world: World, error: Exception, message: str
) -> None:
    world.create("a", 4)
    world.api.before.append(fail(error))
    with pytest.raises(BindRefused, match=message):
        await world.binder.bind(args("a"))
    assert world.used_mib("n1") == [0]
    assert world.reservations.deadlines == {}


async def test_a_pod_bound_elsewhere_meanwhile_holds_there_and_not_here(world: World) -> None:
    world.add_node(gpu_node("n2", 16384))
    world.create("a", 4)
    world.create("other", 4)
    await world.binder.bind(args("other", "n2"))
    stolen = world.api.pods["default/other"]["metadata"]["annotations"]
    world.api.pods["default/a"]["spec"]["nodeName"] = "n2"
    world.api.pods["default/a"]["metadata"]["annotations"] = dict(stolen)
    with pytest.raises(BindRefused, match="already bound to node n2"):
        await world.binder.bind(args("a"))
    assert (world.used_mib("n1"), world.used_mib("n2")) == ([0], [8192])


async def test_a_pod_that_is_gone_or_replaced_frees_the_share(world: World) -> None:
    world.create("a", 4)
    del world.api.pods["default/a"]
    with pytest.raises(BindRefused, match="pod default/a is gone"):
        await world.binder.bind(args("a"))
    world.api.create(pod_object("a", 4, uid="another"))
    with pytest.raises(BindRefused, match="was replaced: its UID is another"):
        await world.binder.bind(args("a"))
    assert world.used_mib("n1") == [0]
    assert world.reservations.deadlines == {}


async def test_a_pod_that_our_watch_has_not_seen_is_read(world: World) -> None:
    world.api.create(pod_object("new", 4))
    await world.binder.bind(args("new"))
    assert world.used_mib("n1") == [4096]


async def test_after_a_restart_a_repeated_bind_finds_the_pod_bound(world: World) -> None:
    world.create("a", 4)
    await world.binder.bind(args("a"))
    restarted = World()
    restarted.add_node(gpu_node("n1", 16384))
    restarted.api = world.api
    restarted.binder._pods = world.api
    await restarted.binder.bind(args("a"))
    assert restarted.used_mib("n1") == [4096]


@pytest.mark.parametrize("units", [None, 0])
async def test_a_pod_without_our_resources_is_bound_without_a_record(world: World, units: int | None) -> None:
    # kube-scheduler looks at the names of resources, not at their amounts, and leaves the binding to us.
    world.api.create(pod_object("p") if units is None else pod_object("p", units))
    await world.binder.bind(args("p"))
    assert world.api.bindings == [("default/p", "n1")]
    assert (
        "annotations" not in world.api.pods["default/p"]["metadata"]
        or not world.api.pods["default/p"]["metadata"]["annotations"]
    )
    assert world.used_mib("n1") == [0]


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (pod_object("p", "1.5"), "is not a whole number"),
        (pod_object("p", 4, phase="Failed"), "has ended"),
        (pod_object("p", 4, node="n7"), "already bound to node n7"),
        (None, "cannot be read"),
    ],
)
async def test_an_impossible_binding_is_refused_with_a_message(
    world: World, pod: dict[str, object] | None, message: str
) -> None:
    if pod is not None:
        world.api.create(pod)
    with pytest.raises(BindRefused, match=message):
        await world.binder.bind(args("p"))
    assert world.used_mib("n1") == [0]


async def test_an_invalid_waiting_pod_is_refused_with_its_problem(world: World) -> None:
    world.create("p", core=30)
    with pytest.raises(BindRefused, match="without aliyun"):
        await world.binder.bind(args("p"))


async def test_a_reservation_whose_binding_never_arrived_ends_by_itself(world: World) -> None:
    world.create("a", 4)
    world.api.before.append(fail(LOST))
    with pytest.raises(BindRefused):
        await world.binder.bind(args("a"))
    sweeping = asyncio.create_task(world.binder.sweep())
    await asyncio.wait_for(_turn_until(world, lambda: world.used_mib("n1") == [0]), 5)
    assert world.reservations.deadlines == {}
    assert world.clock.now_s >= 1015
    sweeping.cancel()


async def _turn_until(world: World, reached: Callable[[], bool]) -> None:
    while not reached():
        await world.clock.turn(1)
        await asyncio.sleep(0)


async def test_settling_trusts_the_api_server(world: World) -> None:
    world.create("a", 4)
    await world.binder.bind(args("a"))
    await world.binder.settle("uid-a", "default/a")  # bound, though our watch has not seen it
    assert world.used_mib("n1") == [4096]
    world.see("a")
    await world.binder.settle("uid-a", "default/a")
    assert world.used_mib("n1") == [4096]
    assert world.reservations.deadlines == {}


async def test_settling_a_pod_that_is_gone_or_replaced_frees_its_share(world: World) -> None:
    for replacement in (None, pod_object("a", 4, uid="another", node="n1")):
        world.create("a", 4)
        world.api.before.append(fail(LOST))
        with pytest.raises(BindRefused):
            await world.binder.bind(args("a"))
        del world.api.pods["default/a"]
        if replacement is not None:
            world.api.create(replacement)
        await world.binder.settle("uid-a", "default/a")
        assert world.used_mib("n1") == [0]


@pytest.mark.parametrize("jump_s", [3.0e8, -500.0])
async def test_a_clock_that_jumps_neither_ends_nor_lengthens_a_reservation(
    world: World, jump_s: float
) -> None:
    world.create("a", 4)
    world.api.before.append(fail(LOST))
    with pytest.raises(BindRefused):
        await world.binder.bind(args("a"))
    before = dict(world.reservations.deadlines)
    world.clock.wall_off_s = jump_s
    assert dict(world.reservations.deadlines) == before
    world.create("b", 4)
    await world.binder.bind(args("b"))
    stamp = int(world.api.pods["default/b"]["metadata"]["annotations"][names.ANN_ASSUME_TIME])
    assert stamp == world.clock.time_ns()
    assert world.used_mib("n1") == [8192]
    await world.clock.turn(20)
    await world.binder.settle("uid-a", "default/a")
    assert "uid-a" not in world.reservations.deadlines


async def test_settling_waits_while_the_api_server_is_away(world: World) -> None:
    world.create("a", 4)
    world.api.before.append(fail(LOST))
    with pytest.raises(BindRefused):
        await world.binder.bind(args("a"))
    await world.clock.turn(20)
    world.api.reading.append(fail(LOST))
    await world.binder.settle("uid-a", "default/a")
    assert world.used_mib("n1") == [4096]
    assert world.reservations.due(world.clock.now_s) == []
    assert world.reservations.due(world.clock.now_s + 16) == [("uid-a", "default/a")]


def test_only_a_handful_of_reservations_are_settled_at_once(world: World) -> None:
    for number in range(100):
        world.reservations.add(f"u{number}", f"default/p{number}", 0.0)
    assert len(world.reservations.due(100.0)) == 64
