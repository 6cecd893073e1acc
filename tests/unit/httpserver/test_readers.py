"""Access to protected pages: the API server reviews tokens, reviews are cached for a while and limited in number."""

import asyncio

import pytest

from gpushare.api import names
from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.exchange import Refusal
from gpushare.kube.auth.token_reviews import Caller
from gpushare.kube.client.errors import Unreachable
from tests.unit.scheduler.world import TurnedClock

PAGE = "/gpushare/decisions"
READER = Caller(username="system:serviceaccount:kube-system:gpushare-reader")
OTHER = Caller(username="system:serviceaccount:default:other")


class Api:
    """An API server with two valid tokens."""

    def __init__(self) -> None:
        self.tokens = {"good": READER, "other": OTHER}
        self.reviewed: list[str] = []
        self.is_down = False

    async def caller_of(self, token: str, audience: str) -> Caller | None:
        assert audience == names.READER_AUDIENCE
        self.reviewed.append(token)
        await asyncio.sleep(0)
        if self.is_down:
            raise Unreachable("/tokenreviews", "no answer", sent=False)
        return self.tokens.get(token)

    async def may_get(self, caller: Caller, path: str) -> bool:
        return caller == READER and path == PAGE


class ProtectedPage:
    """The readers of one page, and their clock."""

    def __init__(self) -> None:
        self.api, self.clock = Api(), TurnedClock()
        self.readers = Readers(self.api, self.clock)

    async def status(self, token: str, path: str = PAGE) -> int:
        try:
            await self.readers.check(token, path)
        except Refusal as refusal:
            return refusal.status
        return 200


@pytest.mark.parametrize(("token", "status"), [("", 401), ("good", 200), ("other", 403), ("made up", 401)])
async def test_only_callers_that_may_get_the_page_can_read_it(token: str, status: int) -> None:
    page = ProtectedPage()
    assert await page.status(token) == status
    assert page.api.reviewed == ([token] if token else [])


async def test_permission_for_one_page_does_not_extend_to_another() -> None:
    page = ProtectedPage()
    assert (await page.status("good"), await page.status("good", "/usage")) == (200, 403)


async def test_a_valid_token_is_reviewed_once_a_minute_and_a_wrong_one_every_ten_seconds() -> None:
    page = ProtectedPage()
    for _ in range(3):
        assert (await page.status("good"), await page.status("wrong")) == (200, 401)
    assert page.api.reviewed == ["good", "wrong"]
    await page.clock.turn(10.0)
    assert (await page.status("good"), await page.status("wrong")) == (200, 401)
    del page.api.tokens["good"]
    await page.clock.turn(50.0)
    assert await page.status("good") == 401
    assert page.api.reviewed == ["good", "wrong", "wrong", "good"]


async def test_a_token_in_use_is_not_displaced_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.httpserver.authorization._MOST_KEPT", 2)
    page = ProtectedPage()
    for token in ("good", "other", "good", "wrong", "good"):
        await page.status(token)
    assert page.api.reviewed == ["good", "other", "wrong"]


async def test_made_up_tokens_neither_flood_the_api_server_nor_lock_out_known_callers() -> None:
    page = ProtectedPage()
    assert await page.status("good") == 200
    outcomes = [await page.status(f"made up {number}") for number in range(1000)]
    assert outcomes == [401] * 19 + [503] * 981
    assert await page.status("good") == 200
    await page.clock.turn(1.0)
    assert [await page.status(f"more {number}") for number in range(20)] == [401] * 10 + [503] * 10


async def test_an_unavailable_api_server_does_not_count_as_a_review() -> None:
    page = ProtectedPage()
    page.api.is_down = True
    assert await page.status("good") == 503
    page.api.is_down = False
    assert await page.status("good") == 200


async def test_the_number_of_cached_reviews_is_bounded() -> None:
    page = ProtectedPage()
    for number in range(600):
        await page.clock.turn(0.1)
        assert await page.status(f"made up {number}") == 401
    await page.status("made up 599")
    assert len(page.api.reviewed) == 600
    assert await page.status("made up 1") == 401
    assert len(page.api.reviewed) == 601
