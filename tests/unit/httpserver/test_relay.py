"""The relay rarely polls its backend, and requests of one kind never wait for those of another."""

import asyncio
from collections import Counter

import pytest

from gpushare.httpserver.relay import FRESH_S, Relay
from gpushare.httpserver.small_http import Answer, Get

METRICS, HEALTH = Get("/metrics"), Get("/healthz")


class Backend:
    """The backend: each response takes ``latency_s``; only time passes."""

    def __init__(self, latency_s: float = 0.01) -> None:
        self.latency_s = latency_s
        self.now_s = 0.0
        self.busy_s = 0.0
        self.requests: Counter[str] = Counter()
        self.stuck: dict[str, asyncio.Event] = {}
        self.fault: Exception | None = None
        self.relay = Relay(self.fetch, self)

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now_s += seconds

    async def fetch(self, get: Get) -> Answer:
        self.requests[get.path] += 1
        if get.path in self.stuck:
            await self.stuck[get.path].wait()
        if self.fault is not None:
            raise self.fault
        await self.sleep(self.latency_s)
        self.busy_s += self.latency_s
        return Answer(200, "text/plain", f"{get.path} at {self.now_s:.3f}".encode())


async def test_all_requests_for_one_page_get_the_same_response():
    backend = Backend()
    responses = await asyncio.gather(*(backend.relay.answer(METRICS) for _ in range(500)))
    assert len(set(responses)) == 1
    assert await backend.relay.answer(METRICS) == responses[0]
    assert backend.requests["/metrics"] == 1
    backend.now_s += FRESH_S
    assert await backend.relay.answer(METRICS) != responses[0]


async def test_a_compressed_response_is_not_given_to_clients_that_do_not_accept_it():
    backend = Backend()
    await backend.relay.answer(METRICS)
    await backend.relay.answer(METRICS._replace(takes_gzip=True))
    assert backend.requests["/metrics"] == 2


async def test_the_backend_is_idle_most_of_the_time_however_many_requests_arrive():
    backend = Backend()
    for number in range(300):
        await backend.relay.answer(Get(f"/gpushare/decisions/default/{number}"))
    assert backend.busy_s == pytest.approx(3.0)
    assert backend.busy_s <= 0.21 * backend.now_s


async def test_after_a_slow_response_a_probe_does_not_wait_long():
    backend = Backend(latency_s=3.0)
    await backend.relay.answer(HEALTH)
    before_s = backend.now_s
    backend.latency_s, backend.now_s = 0.001, before_s + FRESH_S
    await backend.relay.answer(HEALTH)
    assert backend.now_s < before_s + 1.0


async def test_probes_wait_for_nothing_else():
    backend = Backend()
    backend.stuck = {"/metrics": asyncio.Event(), "/gpushare/decisions": asyncio.Event()}
    waiting = [
        asyncio.create_task(backend.relay.answer(Get(path))) for path in backend.stuck for _ in range(100)
    ]
    assert (await backend.relay.answer(HEALTH)).status == 200
    assert not any(one.done() for one in waiting)
    for event in backend.stuck.values():
        event.set()
    assert {one.status for one in await asyncio.gather(*waiting)} == {200}


async def test_requests_beyond_those_that_may_wait_are_answered_503():
    backend = Backend()
    paths = [f"/gpushare/decisions/default/{number}" for number in range(100)]
    asked = (backend.relay.answer(Get(path, token=f"token-{at % 10}")) for at, path in enumerate(paths))
    responses = await asyncio.gather(*asked)
    assert Counter(one.status for one in responses) == {200: 64, 503: 36}
    assert (await backend.relay.answer(Get(paths[-1]))).status == 200


async def test_requests_with_one_token_leave_places_to_others():
    backend = Backend()
    paths = [f"/gpushare/decisions/default/{number}" for number in range(100)]
    flood = asyncio.gather(*(backend.relay.answer(Get(path, token="one")) for path in paths))
    await asyncio.sleep(0)
    assert (await backend.relay.answer(Get("/gpushare/decisions", token="another"))).status == 200
    assert Counter(one.status for one in await flood) == {200: 32, 503: 68}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_made_up_queries_and_tokens_are_the_same_request_to_probes_and_metrics(path):
    backend = Backend()
    made_up = [Get(path, query=str(at), token=str(-at), takes_gzip=at > 50) for at in range(100)]
    flood = asyncio.gather(*map(backend.relay.answer, made_up))
    await asyncio.sleep(0)
    assert (await backend.relay.answer(Get(path))).status == 200
    assert {one.status for one in await flood} == {200}
    assert backend.requests[path] == (2 if path == "/metrics" else 1)


async def test_the_first_client_may_disconnect():
    backend = Backend()
    backend.stuck = {"/metrics": asyncio.Event()}
    first, second = (asyncio.create_task(backend.relay.answer(METRICS)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    backend.stuck["/metrics"].set()
    assert (await second).status == 200
    assert backend.requests["/metrics"] == 1


async def test_a_backend_that_does_not_respond_is_reported_and_tried_again():
    backend = Backend()
    backend.fault = ConnectionRefusedError(111, "Connection refused")
    response = await backend.relay.answer(HEALTH)
    assert response.status == 503
    assert response.body == b"the main process does not respond: [Errno 111] Connection refused\n"
    backend.fault = None
    backend.now_s += FRESH_S
    assert (await backend.relay.answer(HEALTH)).status == 200
