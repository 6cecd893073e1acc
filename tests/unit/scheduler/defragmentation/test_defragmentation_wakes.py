"""Only we wake a pod whose capacity was freed: it is retried until kube-scheduler tries it."""

from gpushare.api import names
from gpushare.scheduler.plugins.defragmentation.plugin import RESERVED_S, RETRY_S
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.defragmentation.moving import INTERVAL_S, Moving


async def test_a_pod_whose_capacity_is_free_is_retried_until_kube_scheduler_tries_it(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    await moving.look(RETRY_S)
    assert not moving.hurried, "who was to move is still there"
    moving.see("a")
    moving.end("a")
    for turn_s, times in ((0.0, 1), (1.0, 1), (RETRY_S, 2), (RETRY_S, 2), (RETRY_S, 3)):
        await moving.look(turn_s)
        assert moving.hurried == ["uid-wide"] * times
    await moving.binder.bind(BindingArgs("default", "wide", "uid-wide", "n"))
    moving.see("wide")
    await moving.look(10 * RETRY_S)
    assert moving.hurried == ["uid-wide"] * 3


async def test_the_successor_of_a_moved_pod_is_retried_as_well(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    moving.made("a2", 10)
    assert moving.hurried == ["uid-a2"]
    await moving.look(RETRY_S)
    assert moving.hurried == ["uid-a2"] * 2


async def test_a_pod_refused_because_of_reserved_capacity_is_retried_when_that_is_released(
    moving: Moving,
) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    moving.made("other", 16, "")
    assert not moving.ask("other")
    await moving.look(RESERVED_S)
    assert "uid-other" in moving.hurried
    assert "uid-wide" in moving.hurried


async def test_if_capacity_is_free_already_no_pod_moves_and_the_pod_is_retried(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    moving.end("b")
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted
    assert moving.hurried == ["uid-wide"]


async def test_a_pod_with_room_made_by_an_earlier_process_is_retried_once_the_next_has_read_all(
    moving: Moving,
) -> None:
    note = {names.ANN_ROOM_MADE: "5"}
    moving.made("wide", 12, "", annotations=note)
    moving.made("other", 12, "")
    await moving.bound("had", 6, "n", annotations=note)
    assert not moving.hurried
    moving.mover.pods_listed()
    assert moving.hurried == ["uid-wide"]


def test_a_relist_without_pending_pods_retries_none(moving: Moving) -> None:
    moving.mover.pods_listed()
    assert not moving.hurried
