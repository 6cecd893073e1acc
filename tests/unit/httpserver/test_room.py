"""Which body is dropped when many arrive concurrently, and that dropped bodies are neither stored nor counted."""

import asyncio
from typing import Any

import pytest

from gpushare.httpserver.body_memory import Room
from gpushare.httpserver.exchange import Refusal, read_body

MOST = 100


def test_the_largest_incomplete_body_is_dropped_for_one_that_grows():
    room = Room(10)
    with room.body() as large, room.body() as small:
        large.add(b"x" * 7)
        small.add(b"y" * 3)
        assert not large.is_dropped
        small.add(b"y")
        assert (large.is_dropped, small.is_dropped) == (True, False)
        assert small.whole() == b"yyyy"


def test_a_complete_body_stays_and_a_late_one_is_dropped():
    room = Room(10)
    with room.body() as complete, room.body() as late:
        complete.add(b"x" * 9)
        assert complete.whole() == b"x" * 9
        late.add(b"yy")
        assert (complete.is_dropped, late.is_dropped) == (False, True)


def test_memory_is_free_again_once_a_body_was_answered_or_dropped():
    room = Room(10)
    for _ in range(5):
        with room.body() as one:
            one.add(b"x" * 9)
            one.whole()
        with room.body() as too_large:
            too_large.add(b"x" * 11)
            assert too_large.is_dropped


class Sender:
    """A client whose parts are sent by the test."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        part, more = await self.parts.get()
        return {"type": "http.request", "body": part, "more_body": more}


async def test_many_large_bodies_are_rejected_and_a_small_one_is_read():
    room, senders = Room(MOST), [Sender() for _ in range(20)]

    async def read(sender: Sender) -> bytes:
        with room.body() as coming:
            return await read_body(sender.receive, MOST, coming)

    large = [asyncio.create_task(read(one)) for one in senders]
    for _ in range(2):
        for one in senders:
            one.parts.put_nowait((b"x" * 40, True))
        # A rejected request reads no more.
        while not all(one.parts.empty() or task.done() for one, task in zip(senders, large, strict=True)):
            await asyncio.sleep(0)
    small = Sender()
    small.parts.put_nowait((b"small", False))
    assert await read(small) == b"small"
    for one in senders:
        one.parts.put_nowait((b"x", False))
    found = await asyncio.gather(*large, return_exceptions=True)
    refused = [one for one in found if isinstance(one, Refusal)]
    assert {one.status for one in refused} == {503}
    assert len(refused) >= len(senders) - 1


async def test_a_body_that_is_too_large_by_itself_is_rejected_without_a_shared_limit():
    sender = Sender()
    sender.parts.put_nowait((b"x" * (MOST + 1), False))
    with pytest.raises(Refusal, match="is not read"):
        await read_body(sender.receive, MOST)
