"""One scheduler leads: the lease's holder, until it has not renewed for long enough, by the others' own clocks."""

import asyncio
import json
from typing import Any

import pytest

from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.leader.lease import Leading
from gpushare_playground.kubescheduler.leader_election import Lead, LeadLost, identity


class Clock:
    """Time that passes while one sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Server:
    """Stores one lease, with versions; while ``away``, requests fail."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False

    async def request(self, method: str, path: str, *, body: bytes = b"", **more: object) -> bytes:
        if self.away:
            raise ApiError(500, "InternalError", "away", path)
        if method == "GET":
            if self.lease is None:
                raise ApiError(404, "NotFound", "no lease", path)
            return json.dumps(self.lease).encode()
        sent = json.loads(body)
        if method == "PUT" and sent["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError(409, "Conflict", "changed", path)
        self.version += 1
        sent["metadata"]["resourceVersion"] = str(self.version)
        self.lease = sent
        return body

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


def lead(server: Server, holder: str, clock: Clock) -> Lead:
    return Lead(server, "s", holder, clock, duration_s=15.0)  # type: ignore[arg-type]


async def test_the_second_leads_once_the_first_has_not_renewed_for_long_enough() -> None:
    server, clock = Server(), Clock()
    await lead(server, "a", clock).acquire()
    assert server.holder == "a"
    started_s = clock.now_s
    await lead(server, "b", clock).acquire()
    assert server.holder == "b"
    assert clock.now_s > started_s + 15
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_renews_is_not_replaced() -> None:
    server, clock = Server(), Clock()
    first, second = lead(server, "a", clock), lead(server, "b", clock)
    await first.acquire()
    renewing = asyncio.create_task(first.renew())
    waiting = asyncio.create_task(second.acquire())
    for _ in range(200):
        await asyncio.sleep(0)
    assert server.holder == "a"
    renewing.cancel()
    await waiting
    assert server.holder == "b"


async def test_a_leader_that_cannot_renew_stops_before_another_may_start() -> None:
    server, clock = Server(), Clock()
    first = lead(server, "a", clock)
    await first.acquire()
    started_s = clock.now_s
    server.away = True
    with pytest.raises(LeadLost):
        await first.renew()
    assert clock.now_s < started_s + 15


async def test_a_released_lease_is_acquired_immediately() -> None:
    server, clock = Server(), Clock()
    await lead(server, "a", clock).acquire()
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = ""
    started_s = clock.now_s
    await lead(server, "b", clock).acquire()
    assert clock.now_s == started_s


async def test_the_holder_identity_has_the_pods_name_and_differs_at_each_start() -> None:
    server, clock, names = Server(), Clock(), [identity(), identity()]
    assert names[0] != names[1]
    await lead(server, names[0], clock).acquire()
    leading = Leading(None, ("kube-system", "s"))  # type: ignore[arg-type]
    assert leading.is_ours(server.holder)
    assert not Leading(None, ("kube-system", "s"), "another").is_ours(server.holder)  # type: ignore[arg-type]
