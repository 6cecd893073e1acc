"""Who may read what is not for everybody: as the API server says of a token, remembered for a while, and never asked without end."""

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
    """An API server that knows two tokens."""

    def __init__(self) -> None:
        self.tokens = {"good": READER, "other": OTHER}
        self.asked: list[str] = []
        self.is_away = False

    async def caller_of(self, token: str, audience: str) -> Caller | None:
        assert audience == names.READER_AUDIENCE
        self.asked.append(token)
        await asyncio.sleep(0)
        if self.is_away:
            raise Unreachable("/tokenreviews", "no answer", sent=False)
        return self.tokens.get(token)

    async def may_get(self, caller: Caller, path: str) -> bool:
        return caller == READER and path == PAGE


class Door:
    """Readers before one page, and their clock."""

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
async def test_only_who_may_get_the_page_reads_it(token: str, status: int) -> None:
    door = Door()
    assert await door.status(token) == status
    assert door.api.asked == ([token] if token else [])


async def test_who_may_get_one_page_may_not_get_another() -> None:
    door = Door()
    assert (await door.status("good"), await door.status("good", "/usage")) == (200, 403)


async def test_a_token_is_asked_about_once_a_minute_and_a_wrong_one_every_ten_seconds() -> None:
    door = Door()
    for _ in range(3):
        assert (await door.status("good"), await door.status("wrong")) == (200, 401)
    assert door.api.asked == ["good", "wrong"]
    await door.clock.turn(10.0)
    assert (await door.status("good"), await door.status("wrong")) == (200, 401)
    del door.api.tokens["good"]
    await door.clock.turn(50.0)
    assert await door.status("good") == 401
    assert door.api.asked == ["good", "wrong", "wrong", "good"]


async def test_made_up_tokens_do_not_flood_the_api_server_nor_lock_out_who_is_known() -> None:
    door = Door()
    assert await door.status("good") == 200
    outcomes = [await door.status(f"made up {number}") for number in range(1000)]
    assert outcomes == [401] * 19 + [503] * 981
    assert await door.status("good") == 200
    await door.clock.turn(1.0)
    assert [await door.status(f"more {number}") for number in range(20)] == [401] * 10 + [503] * 10


async def test_an_api_server_that_is_away_is_no_answer_about_a_token() -> None:
    door = Door()
    door.api.is_away = True
    assert await door.status("good") == 503
    door.api.is_away = False
    assert await door.status("good") == 200


async def test_what_is_remembered_is_bounded() -> None:
    door = Door()
    for number in range(600):
        await door.clock.turn(0.1)
        assert await door.status(f"made up {number}") == 401
    await door.status("made up 599")
    assert len(door.api.asked) == 600
    assert await door.status("made up 1") == 401
    assert len(door.api.asked) == 601
