"""A scheduler that was never called reports so, and whether it leads, as far as it knows."""

import pytest

from gpushare.scheduler.leader.lease import LeaderWatch, Leading
from tests.unit.scheduler.explain.test_decisions import GIB, get, give
from tests.unit.scheduler.leader.test_takeover import LEASE, Lease
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node

ALONE = "kube-scheduler has not called this replica since it started"


@pytest.mark.parametrize(("holder", "known"), [("ours_1", True), ("other_1", False), ("", None)])
async def test_it_is_known_once_the_lease_was_read(holder: str, known: bool | None) -> None:
    lease = Lease()
    leading = LeaderWatch(Leading(lease, LEASE, "ours"), World().clock)
    assert leading.known is None
    lease.holder = holder
    await leading.look()
    assert leading.known is known


def test_one_alone_leads() -> None:
    assert LeaderWatch(Leading(Lease(), None), World().clock).known is True


@pytest.mark.parametrize(
    ("leads", "message"),
    [
        (None, f"{ALONE}; it is unknown whether it leads"),
        (False, f"{ALONE}: another one leads"),
        (True, "this replica leads, but kube-scheduler has not called it for any pod yet"),
    ],
)
async def test_of_a_pending_pod(browser: Browser, world: World, leads: bool | None, message: str) -> None:
    world.create("pod", 2)
    world.leads = lambda: leads
    record = await get(browser, "/default/pod")
    assert (record["said"], record["scheduler"]["leads"]) == (message, leads)


async def test_a_leader_reports_of_a_bound_pod_that_it_was_bound_before(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "pod", "n1", 2)
    later = World()
    later.add_node(gpu_node("n1", 8 * GIB))
    later.api.pods = world.api.pods
    later.see("pod")
    later.leads = lambda: True
    message = (await get(Browser(later), "/default/pod"))["said"]
    assert message.startswith("the pod was bound before this replica became the leader")
