"""What faces the network asks the process behind seldom, and never lets one question wait for another kind."""

import asyncio
from collections import Counter

import pytest

from gpushare.httpserver.relay import FRESH_S, Relay
from gpushare.httpserver.small_http import Answer, Get

METRICS, LIVES = Get("/metrics"), Get("/healthz")


class Behind:
    """The process behind: each answer takes it ``takes_s``; nothing passes but time."""

    def __init__(self, takes_s: float = 0.01) -> None:
        self.takes_s = takes_s
        self.now_s = 0.0
        self.busy_s = 0.0
        self.asked: Counter[str] = Counter()
        self.stuck: dict[str, asyncio.Event] = {}
        self.fault: Exception | None = None
        self.relay = Relay(self.ask, self)

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now_s += seconds

    async def ask(self, get: Get) -> Answer:
        self.asked[get.path] += 1
        if get.path in self.stuck:
            await self.stuck[get.path].wait()
        if self.fault is not None:
            raise self.fault
        await self.sleep(self.takes_s)
        self.busy_s += self.takes_s
        return Answer(200, "text/plain", f"{get.path} at {self.now_s:.3f}".encode())


async def test_all_who_ask_for_the_same_get_one_answer():
    behind = Behind()
    answers = await asyncio.gather(*(behind.relay.answer(METRICS) for _ in range(500)))
    assert len(set(answers)) == 1
    assert await behind.relay.answer(METRICS) == answers[0]
    assert behind.asked["/metrics"] == 1
    behind.now_s += FRESH_S
    assert await behind.relay.answer(METRICS) != answers[0]


async def test_an_answer_that_is_packed_is_not_for_those_who_cannot_read_it():
    behind = Behind()
    await behind.relay.answer(METRICS)
    await behind.relay.answer(METRICS._replace(takes_gzip=True))
    assert behind.asked["/metrics"] == 2


async def test_however_many_ask_for_whatever_the_process_behind_rests_for_most_of_the_time():
    behind = Behind()
    for number in range(300):
        await behind.relay.answer(Get(f"/gpushare/decisions/default/{number}"))
    assert behind.busy_s == pytest.approx(3.0)
    assert behind.busy_s <= 0.21 * behind.now_s


async def test_after_a_slow_answer_a_probe_does_not_wait_long():
    behind = Behind(takes_s=3.0)
    await behind.relay.answer(LIVES)
    before_s = behind.now_s
    behind.takes_s, behind.now_s = 0.001, before_s + FRESH_S
    await behind.relay.answer(LIVES)
    assert behind.now_s < before_s + 1.0


async def test_probes_wait_for_nothing_else():
    behind = Behind()
    behind.stuck = {"/metrics": asyncio.Event(), "/gpushare/decisions": asyncio.Event()}
    waiting = [
        asyncio.create_task(behind.relay.answer(Get(path))) for path in behind.stuck for _ in range(100)
    ]
    assert (await behind.relay.answer(LIVES)).status == 200
    assert not any(one.done() for one in waiting)
    for event in behind.stuck.values():
        event.set()
    assert {one.status for one in await asyncio.gather(*waiting)} == {200}


async def test_requests_beyond_those_that_may_wait_are_answered_503():
    behind = Behind()
    paths = [f"/gpushare/decisions/default/{number}" for number in range(100)]
    answers = await asyncio.gather(*(behind.relay.answer(Get(path)) for path in paths))
    assert Counter(one.status for one in answers) == {200: 64, 503: 36}
    assert (await behind.relay.answer(Get(paths[-1]))).status == 200


async def test_who_asked_first_may_hang_up():
    behind = Behind()
    behind.stuck = {"/metrics": asyncio.Event()}
    first, second = (asyncio.create_task(behind.relay.answer(METRICS)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    behind.stuck["/metrics"].set()
    assert (await second).status == 200
    assert behind.asked["/metrics"] == 1


async def test_a_backend_that_does_not_answer_is_reported_and_asked_again():
    behind = Behind()
    behind.fault = ConnectionRefusedError(111, "Connection refused")
    answer = await behind.relay.answer(LIVES)
    assert answer.status == 503
    assert answer.body == b"the process behind does not answer: [Errno 111] Connection refused\n"
    behind.fault = None
    behind.now_s += FRESH_S
    assert (await behind.relay.answer(LIVES)).status == 200
