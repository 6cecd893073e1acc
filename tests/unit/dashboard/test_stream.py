"""Events: numbered, replayed to pages that reconnect, bounded for slow pages."""

import asyncio
from typing import Any

import pytest

from gpushare.dashboard.server import event_stream as streams
from gpushare.dashboard.server.event_stream import Page, Stream, TooManyPages


async def received(page: Page) -> bytes | None:
    return await page.next(0.01)


async def test_a_page_receives_events_that_follow_its_subscription() -> None:
    stream = Stream("e")
    stream.send("delta", b"{}")
    page = stream.listen(stream.last_id)
    assert await received(page) == b""
    stream.send("delta", b'{"a":1}')
    assert await received(page) == b'id: e-2\nevent: delta\ndata: {"a":1}\n\n'
    assert stream.pages == 1
    stream.leave(page)
    assert stream.pages == 0


async def test_a_page_that_reconnects_receives_missed_events_and_none_twice() -> None:
    stream = Stream("e")
    for number in range(5):
        stream.send("delta", b"%d" % number)
    missed = await received(stream.listen("e-3"))
    assert missed == b"id: e-4\nevent: delta\ndata: 3\n\nid: e-5\nevent: delta\ndata: 4\n\n"


@pytest.mark.parametrize("last_id", ["", "other-3", "e-", "e-9", "e-x", "e-²", "garbage"])
async def test_a_page_with_an_unknown_event_id_starts_over(last_id: str) -> None:
    stream = Stream("e")
    stream.send("delta", b"{}")
    page = stream.listen(last_id)
    assert page.needs_snapshot
    assert await received(page) == b""


@pytest.mark.parametrize(("bound", "most"), [("MAX_RETAINED", 3), ("MAX_RETAINED_BYTES", 100)])
async def test_the_history_is_bounded_and_a_page_away_for_longer_starts_over(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, bound, most)
    stream = Stream("e")
    for _ in range(20):
        stream.send("delta", b"{}")
    assert stream.listen("e-2").needs_snapshot
    assert not stream.listen("e-19").needs_snapshot
    assert (await received(stream.listen("e-19")) or b"").startswith(b"id: e-20")


async def test_a_page_that_missed_one_dropped_event_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_RETAINED", 3)
    stream = Stream("e")
    for _ in range(20):
        stream.send("delta", b"{}")
    # 18, 19 and 20 are retained.
    complete = stream.listen("e-17")
    assert not complete.needs_snapshot
    assert (await received(complete) or b"").startswith(b"id: e-18")
    assert stream.listen("e-16").needs_snapshot


async def test_a_page_that_reads_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MAX_QUEUED_BYTES", 1000)
    stream = Stream("e")
    slow, quick = stream.listen("e-0"), stream.listen("e-0")
    for _ in range(30):
        stream.send("delta", b"x" * 100)
        assert await received(quick)
    assert slow.cut
    assert await received(slow) is None
    assert not quick.cut
    stream.end()
    assert await received(quick) is None


async def test_pages_above_the_limit_are_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_PAGES", 2)
    stream = Stream("e")
    first = stream.listen("e-0")
    stream.listen("e-0")
    with pytest.raises(TooManyPages):
        stream.listen("e-0")
    stream.leave(first)
    stream.listen("e-0")


async def test_a_page_that_waits_is_woken() -> None:
    stream = Stream("e")
    page = stream.listen("e-0")
    waiting: asyncio.Task[Any] = asyncio.create_task(page.next(30))
    await asyncio.sleep(0)
    stream.send("delta", b"{}")
    assert b"e-1" in await waiting
