"""A new leader lists everything again before its first answer."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gpushare.httpserver.exchange import Refusal
from gpushare.kube.client.errors import ApiError, KubeError, Unreachable
from gpushare.scheduler.leader import resync as takeover_module
from gpushare.scheduler.leader.lease import LeaderWatch, Leading, NotLeading
from gpushare.scheduler.leader.resync import QUIET_S, LeaderResync, read_or_go_on
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.server.app import ExtenderApp
from tests.unit.scheduler.world import World, gpu_node, pod_object

LEASE = ("kube-system", "ack-co-scheduler")


class Lease:
    """The holder, or the error raised by reading it."""

    def __init__(self) -> None:
        self.holder: str | KubeError = "other_1"

    async def lease_holder(self, namespace: str, name: str) -> str:
        assert (namespace, name) == LEASE
        if isinstance(self.holder, KubeError):
            raise self.holder
        return self.holder


class Watched:
    """A collection that is read when ``may`` is set; what ``world`` learns by it."""

    def __init__(self) -> None:
        self.reads = 0
        self.may = asyncio.Event()
        self.may.set()

    async def relist(self) -> None:
        self.reads += 1
        await self.may.wait()


@pytest.fixture
def lease() -> Lease:
    return Lease()


@pytest.fixture
def leading(lease: Lease) -> LeaderWatch:
    return LeaderWatch(Leading(lease, LEASE, "ours"), World().clock)


@pytest.fixture
async def watched() -> Watched:
    return Watched()


@pytest.fixture
async def takeover(leading: LeaderWatch, watched: Watched) -> AsyncIterator[LeaderResync]:
    made = LeaderResync(leading, watched, watched)
    running = asyncio.create_task(made.run())
    yield made
    assert not running.done()
    running.cancel()


async def test_nothing_is_read_until_a_verb_waits_and_then_once_per_term(
    takeover: LeaderResync, leading: LeaderWatch, lease: Lease, watched: Watched
) -> None:
    await leading.look()
    assert watched.reads == 0
    lease.holder = "ours_1"
    assert not takeover.done
    assert await takeover.wait()
    assert (takeover.done, leading.leads, watched.reads) == (True, True, 2)
    await leading.look()
    assert takeover.done
    lease.holder = "other_2"
    await leading.look()
    assert not takeover.done
    lease.holder = "ours_2"
    assert await takeover.wait()
    assert watched.reads == 4


async def test_if_another_leads_during_a_read_the_next_term_reads_again(
    takeover: LeaderResync, leading: LeaderWatch, lease: Lease, watched: Watched
) -> None:
    lease.holder = "ours_1"
    watched.may.clear()
    waiting = asyncio.create_task(takeover.wait())
    while not watched.reads:
        await asyncio.sleep(0)
    lease.holder = "other_2"
    watched.may.set()
    # A request from before it lost the lease is answered by what is true under the other.
    assert await waiting
    assert (takeover.done, watched.reads) == (False, 4)
    assert await takeover.wait()
    assert watched.reads == 4, "beside one holder it is read once"
    lease.holder = "ours_3"
    assert not takeover.at_once(), "without a look in between"
    assert await takeover.wait()
    assert (takeover.done, watched.reads) == (True, 6)


async def test_a_lease_that_went_and_came_back_is_noticed_by_the_first_request_after_a_silence(
    leading: LeaderWatch, lease: Lease, watched: Watched
) -> None:
    now_s = 100.0
    takeover = LeaderResync(leading, watched, monotonic=lambda: now_s)
    running = asyncio.create_task(takeover.run())
    lease.holder = "ours_1"
    assert not takeover.at_once()
    assert await takeover.wait()
    now_s += QUIET_S
    assert takeover.at_once(), "questions come one after the other"
    now_s += QUIET_S + 0.1
    assert not takeover.at_once()
    assert not takeover.at_once(), "nor is the one beside it"
    assert await takeover.wait()
    assert (takeover.at_once(), watched.reads) == (True, 1)
    now_s += QUIET_S + 0.1
    lease.holder = "ours_2"  # and another's meanwhile, which was not seen
    assert not takeover.at_once()
    assert await takeover.wait()
    assert watched.reads == 2
    running.cancel()


async def test_the_leader_need_not_be_known_if_the_server_answers(
    takeover: LeaderResync, lease: Lease, watched: Watched
) -> None:
    lease.holder = ApiError(403, "Forbidden", "leases is forbidden", "")
    assert await takeover.wait()
    assert watched.reads == 2


async def test_while_the_server_is_unreachable_no_verb_is_answered(
    leading: LeaderWatch, lease: Lease, watched: Watched
) -> None:
    lease.holder = Unreachable("API server", "connection refused", sent=False)
    takeover = LeaderResync(leading, watched, patience_s=0.01)
    running = asyncio.create_task(takeover.run())
    assert not await takeover.wait()
    assert watched.reads == 0
    running.cancel()


async def test_without_a_lease_everything_was_read(watched: Watched) -> None:
    leading = LeaderWatch(Leading(Lease(), None), World().clock)
    takeover = LeaderResync(leading, watched)
    await leading.look()
    assert takeover.at_once()
    assert await takeover.wait()


async def test_unreadable_policies_and_quotas_do_not_block_forever(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await read_or_go_on("elastic quotas")
    await read_or_go_on("elastic quotas", watched, watched)
    assert (watched.reads, caplog.text) == (2, "")
    monkeypatch.setattr(takeover_module, "_MOST_S", 0.01)
    never = Watched()
    never.may.clear()
    await read_or_go_on("ResourcePolicies", watched, never)
    assert "cannot relist ResourcePolicies: the cached data may be out of date" in caplog.text


def app_of(world: World, takeover: LeaderResync) -> ExtenderApp:
    return ExtenderApp(
        world.view,
        world.binder,
        Metrics(),
        lambda: "",
        takeover=takeover,
        framework=world.framework(),
    )


async def test_the_first_request_waits_and_is_answered_by_what_was_read(
    world: World, leading: LeaderWatch, lease: Lease, watched: Watched
) -> None:
    """The new leader has missed that another pod was bound."""
    lease.holder = "ours_1"
    takeover = LeaderResync(leading, watched, patience_s=5)
    running = asyncio.create_task(takeover.run())
    app = app_of(world, takeover)
    world.add_node(gpu_node("n1", 8192))
    world.create("asks", 8)
    body = json.dumps({"Pod": world.api.pods["default/asks"], "NodeNames": ["n1"]}).encode()
    verb = app.quick(b"/gpushare/filter")
    assert verb is not None
    watched.may.clear()
    first = verb(body)
    assert not isinstance(first, bytes)
    waiting = asyncio.create_task(first)
    while not watched.reads:
        await asyncio.sleep(0)
    world.api.create(pod_object("missed", 1))
    request = world.view.waiting["uid-asks"].request
    assert request is not None
    world.ledger.reserve("uid-missed", "default/missed", request, "n1")
    watched.may.set()
    assert json.loads(await waiting)["NodeNames"] == []
    again = verb(body)
    assert isinstance(again, bytes), "from now on at once"
    bound = app.quick(b"/gpushare/bind")
    assert bound is not None
    args = {"PodName": "asks", "PodNamespace": "default", "PodUID": "uid-asks", "Node": "n1"}
    coming = bound(json.dumps(args).encode())
    assert not isinstance(coming, bytes)
    assert "no single GPU" in json.loads(await coming)["Error"]
    running.cancel()


async def test_a_verb_that_waited_too_long_is_refused(
    world: World, leading: LeaderWatch, watched: Watched
) -> None:
    takeover = LeaderResync(leading, watched, patience_s=0.01)
    app = app_of(world, takeover)
    verb = app.quick(b"/gpushare/bind")
    assert verb is not None
    answer = verb(b"{}")
    assert not isinstance(answer, bytes)
    with pytest.raises(Refusal, match="just become the leader"):
        await answer


async def test_no_pod_is_evicted_by_knowledge_from_before_the_lease_came_back(
    takeover: LeaderResync, leading: LeaderWatch, lease: Lease, watched: Watched
) -> None:
    lease.holder = "ours_1"
    with pytest.raises(NotLeading):
        await takeover.must_lead()
    assert await takeover.wait()
    await takeover.must_lead()
    lease.holder = "other_2"
    with pytest.raises(NotLeading):
        await takeover.must_lead()
    lease.holder = "ours_3"
    with pytest.raises(NotLeading):
        await takeover.must_lead()
    assert await takeover.wait()
    await takeover.must_lead()
    assert watched.reads == 4


async def test_a_new_leader_notifies_its_subscribers_once_everything_was_read(
    takeover: LeaderResync, lease: Lease, watched: Watched
) -> None:
    reads: list[int] = []
    takeover.resynced.subscribe(lambda: reads.append(watched.reads))
    lease.holder = "ours_1"
    assert await takeover.wait()
    assert await takeover.wait()
    assert reads == [2]
