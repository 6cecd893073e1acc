"""Streams and the informer over real HTTP: cut, slow, oversize, gone."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from gpushare.kube.auth.access import Access
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, OversizeLine, Unreachable
from gpushare.kube.client.session import Session
from gpushare.kube.watch.informer import Informer
from tests.integration.kube.served import (
    AnswerFn,
    Served,
    begins,
    hangs_up,
    refuses,
    responds,
    serving,
    streams,
)
from tests.unit.kube.scripted import PATH, ScriptedClock, View, decode, until


def item(name: str, version: int, value: object = 0, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "value": value}


def listed(version: int, *items: dict[str, Any], more: str = "") -> AnswerFn:
    return responds({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})


def line(kind: str, content: object) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}


async def read_all(session: Session, got: list[bytes] | None = None, **options: Any) -> list[bytes]:
    got = [] if got is None else got
    options.setdefault("idle_timeout_s", 5.0)
    async for piece in session.stream(PATH, {"watch": "1"}, **options):
        got.append(piece)
    return got


async def test_lines_arrive_complete_however_they_are_split() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(streams(b'{"a"', b":1}\n\n{}\n[", b"", b"1]\n", b"begun"))
        assert await read_all(session) == [b'{"a":1}', b"{}", b"[1]"]


async def test_a_line_far_above_the_clients_own_limit_arrives_complete() -> None:
    long = b"x" * 3_000_000
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(streams(long + b"\n" + b"y\n"))
        assert await read_all(session) == [long, b"y"]


async def test_an_oversize_line_is_refused() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(streams(b"fits\n" + b"x" * 300_000 + b"\n"))
        with pytest.raises(OversizeLine, match="longer than 200000 bytes"):
            await read_all(session, line_limit_bytes=200_000)


async def test_a_cut_stream_raises_after_its_last_complete_line() -> None:
    got: list[bytes] = []
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(begins(b"one\ntw"))
        with pytest.raises(Unreachable, match="the answer was cut") as caught:
            await read_all(session, got)
    assert got == [b"one"]
    assert caught.value.sent is True


async def test_a_silent_stream_ends_by_its_timeout() -> None:
    release = asyncio.Event()
    got: list[bytes] = []
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(begins(b"one\n", then=release.wait))
        with pytest.raises(Unreachable, match="no answer in time"):
            await read_all(session, got, idle_timeout_s=1.0)
        release.set()
    assert got == [b"one"]


async def test_a_stream_is_refused_by_status_and_a_401_is_answered_with_a_new_credential(
    tmp_path: Any,
) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    async with serving() as served, Session(Access(served.url, token_file=str(token))) as session:
        served.answer(refuses(410, "Expired"))
        with pytest.raises(ApiError) as caught:
            await read_all(session)
        assert caught.value.gone
        token.write_text("two")
        served.answer(refuses(401), streams(b"{}\n"))
        assert await read_all(session) == [b"{}"]
        served.answer(refuses(401))
        with pytest.raises(ApiError, match="401"):
            await read_all(session)


async def test_a_watch_survives_every_kind_of_failure() -> None:
    """Bookmark and cut, 410 by status, 410 in the stream, silence, an oversize line, a malformed one, a
    disconnect.
    """
    view, clock = View(), ScriptedClock()
    hold = asyncio.Event()
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(
            listed(10, item("a", 8), item("b", 9), more="next"),
            listed(10, item("c", 7)),
            # Cut after a bookmark: resumed from there.
            begins(line("MODIFIED", item("a", 11, 1)), bookmark(20), b'{"type":'),
            # Expired, by status; b was deleted in the gap, c was recreated.
            refuses(410, "Expired"),
            listed(30, item("a", 11, 1), item("c", 29, 0, "uid-c2")),
            # Expired, in the stream.
            streams(line("ADDED", item("d", 31)), line("ERROR", GONE)),
            listed(40, item("c", 29, 0, "uid-c2"), item("d", 31)),
            # Silent: resumed.
            begins(bookmark(41), then=hold.wait),
            # A malformed line: listed again.
            streams(b"{nonsense\n"),
            listed(50, item("d", 45, 2)),
            hangs_up,
            # Another error in the stream: resumed.
            streams(line("DELETED", item("d", 52, 2)), line("ERROR", {"kind": "Status", "code": 500})),
            begins(line("ADDED", item("e", 53)), then=hold.wait),
        )
        informer = Informer(
            session,
            PATH,
            decode,
            view,
            page_size=2,
            clock=clock,
            idle_timeout_s=2.0,
            backoff=Backoff(0.1, 1.0),
        )
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(30):
            while "+e=0" not in view.changes:
                assert not task.done(), task.result()
                await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        hold.set()
    assert view.changes == [
        *("+a=0", "+b=0", "+c=0", "+a=1"),
        *("-b", "-c", "+c=0"),
        *("+d=0", "-a"),
        *("-c", "+d=2", "-d", "+e=0"),
    ]
    watched = [version_asked(request.path) for request in served.requests if "watch=1" in request.path]
    assert watched == ["10", "20", "30", "40", "41", "50", "50", "52"]
    assert (informer.figures.relists, view.syncs) == (3, 1)


def version_asked(path: str) -> str:
    return path.split("resourceVersion=")[1].split("&")[0]


async def test_an_oversize_line_leads_to_a_list_and_not_to_the_same_line() -> None:
    view, hold = View(), asyncio.Event()
    huge = line("ADDED", item("huge", 11, "x" * 17_000_000))
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(
            listed(10, item("a", 9)),
            streams(huge),
            listed(12, item("b", 12)),
            begins(bookmark(13), then=hold.wait),
        )
        informer = Informer(session, PATH, decode, view, clock=ScriptedClock())
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(60):
            while not (view.items and "b" in view.items):
                assert not task.done(), task.result()
                await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        hold.set()
    assert informer.figures.relists == 1
    assert view.changes == ["+a=0", "-a", "+b=0"]


async def test_cancelling_an_informer_closes_its_connection() -> None:
    view, closed = View(), asyncio.Event()

    async def until_gone() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(listed(1), begins(bookmark(2), then=until_gone))
        informer = Informer(session, PATH, decode, view)
        task = asyncio.create_task(informer.run())
        await until(lambda: len(served.requests) == 2)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert not session._http.connector._acquired  # type: ignore[union-attr]
    assert isinstance(served, Served)
