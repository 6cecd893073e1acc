"""One deeply nested object, as any tenant may store in a ResourceClaim, does not end an informer or keep others from being seen."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest

from gpushare.kube.backoff import Backoff
from gpushare.kube.watch.informer import Informer
from gpushare.process.nesting import accept_deep_json
from tests.unit.kube.scripted import PATH, ScriptedClock, ScriptedServer, View, decode, until

#: With the levels around it as deep as API servers accept.
AS_STORED, TOO_DEEP = 9_990, 50_000


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    accept_deep_json()
    yield
    sys.setrecursionlimit(before)


def nested(levels: int) -> msgspec.Raw:
    return msgspec.Raw(b"[" * levels + b"]" * levels)


def shallow(raw: bytes) -> tuple[str, tuple[str, str, object]] | None:
    found = decode(raw)
    if found is None:
        return None
    key, (name, uid, _) = found
    return key, (name, uid, 0)


async def test_an_object_as_deep_as_api_servers_store_them_is_listed_and_watched() -> None:
    server, view = ScriptedServer(), View()
    server.create("listed", nested(AS_STORED))
    running = asyncio.create_task(Informer(server, PATH, shallow, view, clock=ScriptedClock()).run())
    try:
        await until(lambda: running.done() or view.items)
        server.create("watched", nested(AS_STORED))
        server.create("another")
        await until(lambda: running.done() or "another" in view.items)
        assert set(view.items) == {"listed", "watched", "another"}
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_an_informer_outlives_what_it_cannot_decode() -> None:
    server, view = ScriptedServer(), View()
    server.create("listed", nested(TOO_DEEP))
    informer = Informer(
        server, PATH, shallow, view, clock=ScriptedClock(), backoff=Backoff(chance=lambda: 0.0)
    )
    running = asyncio.create_task(informer.run())
    try:
        await until(lambda: running.done() or informer.figures.reconnects)
        server.delete("listed")
        server.create("a")
        await until(lambda: running.done() or "a" in view.items)
        before = informer.figures.reconnects
        server.create("watched", nested(TOO_DEEP))
        server.create("b")
        await until(lambda: running.done() or informer.figures.reconnects > before)
        server.delete("watched")
        await until(lambda: running.done() or "b" in view.items)
        assert set(view.items) == {"a", "b"}
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
