"""A replica that no longer leads evicts no pods, neither for pods refused before nor in the middle of an eviction."""

import pytest

from gpushare.kube.client.errors import Unreachable
from gpushare.scheduler.leader.lease import LeaderWatch, Leading, NotLeading
from tests.unit.scheduler.defragmentation.moving import INTERVAL_S, Moving
from tests.unit.scheduler.gangs.test_gang_preemption import ask_both, filled, member
from tests.unit.scheduler.leader.test_takeover import LEASE, Lease
from tests.unit.scheduler.preemption.test_preemption import ask, bound, look
from tests.unit.scheduler.world import World


async def test_the_lease_is_read_before_each_act() -> None:
    lease = Lease()
    leading = LeaderWatch(Leading(lease, LEASE, "ours"), World().clock)
    lease.holder = "ours_1"
    await leading.must_lead()
    for lease.holder in ("other_1", ""):
        with pytest.raises(NotLeading):
            await leading.must_lead()
    lease.holder = Unreachable("API server", "connection refused", sent=False)
    with pytest.raises(Unreachable):
        await leading.must_lead()
    await LeaderWatch(Leading(lease, None), World().clock).must_lead()


class Lost:
    """Leads for this many requests."""

    def __init__(self, world: World, leads: int) -> None:
        self.leads = leads
        world.must_lead = self.must_lead

    async def must_lead(self) -> None:
        self.leads -= 1
        if self.leads < 0:
            raise NotLeading


async def test_no_pod_is_evicted_for_one_refused_in_a_previous_term(world: World) -> None:
    await bound(world, "low", 12, priority=1)
    for name in ("high", "next"):
        world.create(name, 12, priority=9)
        assert not ask(world, name)
    lost = Lost(world, 0)
    await look(world)
    assert (world.api.evicted, world.api.nominated) == ([], [])
    assert not world.ledger.nominations.node_of("uid-high")
    lost.leads = 99
    await look(world)
    assert not world.api.evicted, "who leads again is asked again"
    assert not ask(world, "high")
    await look(world)
    assert world.api.evicted == ["low"]


async def test_a_lease_lost_between_two_evictions_spares_the_others(world: World) -> None:
    await filled(world)
    for name in ("g-0", "g-1"):
        member(world, name, 10, priority=9)
    assert ask_both(world, "g-0", "g-1") == [[], []]
    Lost(world, 3)
    await look(world)
    assert len(world.api.evicted) == 1
    assert [world.ledger.nominations.node_of(f"uid-{name}") for name in ("g-0", "g-1")] == ["", ""]


async def test_no_pod_is_moved_for_one_refused_in_a_previous_term(moving: Moving) -> None:
    moving.node("m", 16)
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    moving.leads = lambda: False
    await moving.look(INTERVAL_S)
    assert (moving.api.evicted, moving.api.annotated) == ([], [])
    assert not moving.ledger.nominations.node_of("uid-wide")
    assert not moving.mover._places
    moving.leads = lambda: True
    await moving.look(INTERVAL_S)
    assert not moving.api.evicted, "who leads again is asked again"
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]


async def test_a_lease_lost_between_two_moves_leaves_the_second_pod_where_it_is() -> None:
    moving = Moving()
    moving.node("n", 16)
    for name in ("a", "b"):
        await moving.bound(name, 8, "n", owner=f"rs-{name}")
    moving.node("n", 16, 8, 8)
    moving.made("wide", 16, "")
    assert not moving.ask("wide", "n")
    moving.leads = lambda: not moving.api.evicted
    await moving.look(INTERVAL_S)
    assert len(moving.api.evicted) == 1
    assert not moving.ledger.nominations.node_of("uid-wide")
    assert len(moving.mover._places) == 1, "for what replaces the one that was moved"
