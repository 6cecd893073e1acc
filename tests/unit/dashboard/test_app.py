"""The HTTP interface: what is open, what requires the token, and what no page may do."""

import asyncio
import base64
import gzip
import json
from collections.abc import Awaitable, MutableMapping
from typing import Any

import pytest

from gpushare.dashboard.server import app as apps
from gpushare.dashboard.server import assets
from gpushare.dashboard.server import event_stream as streams
from gpushare.dashboard.server.app import DashboardApp, Query, as_binary, as_json
from gpushare.dashboard.server.auth import LOGIN_LIFETIME_S, Guard
from gpushare.dashboard.server.event_stream import Stream
from gpushare.httpserver.exchange import Refusal
from gpushare.httpserver.probes import Exposition, Probes

TOKEN = b"0123456789abcdef"
BEARER = ((b"authorization", b"Bearer " + TOKEN),)
JSON = ((b"content-type", b"application/json"),)


class Answers:
    def __init__(self) -> None:
        self.requests: list[tuple[str, Query]] = []
        self.read = True

    def whole(self) -> bytes:
        if not self.read:
            raise Refusal(503, "not read yet")
        return b"all of it"

    async def answer(self, path: str, query: Query) -> tuple[bytes, bytes]:
        self.requests.append((path, query))
        if path == "absent":
            raise Refusal(404, "not here")
        if path == "large":
            return as_binary(b"x" * 5000)
        return as_json({"path": path, "q": query.parameter("q")})


class Client:
    """Sends requests to the application and returns its responses."""

    def __init__(self) -> None:
        self.answers = Answers()
        self.stream = Stream("e")
        self.slept: list[float] = []
        self.token = TOKEN
        self.guard = Guard(lambda: self.token, lambda: 1000.0)
        self.app = DashboardApp(
            assets.load(), self.guard, self.answers, self.stream, Probes(lambda: "", Exposition()), self.sleep
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def __call__(
        self, path: str, method: str = "GET", headers: Any = (), query: str = "", body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app(scope(path, method, headers, query), receive, send)
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], answered, b"".join(one.get("body", b"") for one in sent[1:])


def scope(path: str, method: str = "GET", headers: Any = (), query: str = "") -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": list(headers),
    }


async def test_the_page_is_open_and_allows_no_other_host_and_no_inline_code() -> None:
    client = Client()
    status, headers, body = await client("/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    text = body.decode()
    assert "<script>" not in text
    assert " style=" not in text
    assert "://" not in text
    for name, asset in assets.load().items():
        code, answered, content = await client(name)
        assert (code, content) == (200, asset.body)
        assert answered["x-content-type-options"] == "nosniff"


async def test_assets_that_a_page_has_are_not_sent_again_and_others_are_compressed() -> None:
    client = Client()
    _, headers, plain = await client("/main.js")
    assert (await client("/main.js", headers=[(b"if-none-match", headers["etag"].encode())]))[0] == 304
    _, answered, small = await client("/main.js", headers=[(b"accept-encoding", b"br, gzip")])
    assert answered["content-encoding"] == "gzip"
    assert gzip.decompress(small) == plain


async def test_data_requires_the_token() -> None:
    client = Client()
    for path in ("/api/snapshot", "/api/events", "/api/absent"):
        status, headers, _ = await client(path)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert client.answers.requests == []
    status, headers, body = await client("/api/search", headers=BEARER, query="q=a%20b&q=c")
    assert (status, json.loads(body)) == (200, {"path": "search", "q": "a b"})
    assert headers["cache-control"] == "no-store"


async def test_a_refusal_names_the_problem() -> None:
    client = Client()
    assert (await client("/api/absent", headers=BEARER))[::2] == (404, b"not here\n")
    assert (await client("/api/search", headers=BEARER))[::2] == (400, b"the parameter q is missing\n")
    assert (await client("/nothing"))[0] == 404
    assert (await client("/..%2f..%2fetc/passwd"))[0] == 404


async def test_nothing_can_be_changed() -> None:
    client = Client()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (await client("/api/snapshot", method, BEARER))[0] == 405
    assert (await client("/login"))[0] == 405


async def test_large_responses_are_compressed() -> None:
    client = Client()
    _, headers, body = await client("/api/large", headers=[*BEARER, (b"accept-encoding", b"gzip")])
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == b"x" * 5000
    assert len((await client("/api/large", headers=BEARER))[2]) == 5000


async def test_probes_need_no_token() -> None:
    client = Client()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await client(path))[0] == 200


async def test_the_token_gives_a_cookie_that_grants_access() -> None:
    client = Client()
    body = json.dumps({"token": f" {TOKEN.decode()}\n"}).encode()
    status, headers, _ = await client("/login", "POST", JSON, body=body)
    assert status == 204
    cookie = headers["set-cookie"].partition(";")[0].encode()
    assert (await client("/api/x", headers=[(b"cookie", cookie)], query="q=1"))[0] == 200
    secure = await client("/login", "POST", [*JSON, (b"x-forwarded-proto", b"https")], body=body)
    assert "Secure" in secure[1]["set-cookie"]
    status, headers, _ = await client("/logout", "POST", JSON, body=b"{}")
    assert (status, "Max-Age=0" in headers["set-cookie"]) == (204, True)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (JSON, b'{"token":"wrong"}', 401),
        (JSON, b"{", 400),
        (JSON, b'{"token":1}', 400),
        (JSON, b"x" * 10000, 413),
        ((), b'{"token":"0123456789abcdef"}', 415),
        (((b"content-type", b"text/plain"),), b'{"token":"0123456789abcdef"}', 415),
    ],
)
async def test_an_invalid_login_gives_no_cookie(headers: Any, body: bytes, status: int) -> None:
    client = Client()
    code, answered, _ = await client("/login", "POST", headers, body=body)
    assert (code, "set-cookie" in answered) == (status, False)
    assert client.slept == ([apps.WRONG_TOKEN_DELAY_S] if status == 401 else [])


def _by_login(client: Client) -> Awaitable[tuple[int, Any, bytes]]:
    return client("/login", "POST", JSON, body=b'{"token":"wrong"}')


def _by_bearer(client: Client) -> Awaitable[tuple[int, Any, bytes]]:
    return client("/api/x", headers=[(b"authorization", b"Bearer wrong")])


def _by_cookie(client: Client) -> Awaitable[tuple[int, Any, bytes]]:
    cookie = Guard(lambda: b"another-token-entirely", lambda: 1000.0).cookie(secure=False)
    return client("/api/events", headers=[(b"cookie", cookie.partition(b";")[0])])


@pytest.mark.parametrize("guess", [_by_login, _by_bearer, _by_cookie])
async def test_guesses_are_answered_one_at_a_time_and_few_may_wait(guess: Any) -> None:
    client = Client()
    codes = sorted(code for code, _, _ in await asyncio.gather(*(guess(client) for _ in range(40))))
    assert set(codes) == {401, 429}
    assert len(client.slept) == codes.count(401) <= 17


async def test_requests_with_the_token_or_without_any_do_not_wait_for_guesses() -> None:
    client = Client()
    guesses = [asyncio.ensure_future(_by_bearer(client)) for _ in range(40)]
    assert (await client("/api/x", headers=BEARER, query="q=1"))[0] == 200
    assert (await client("/api/x"))[0] == 401
    expired = Guard(lambda: TOKEN, lambda: 1000.0 - LOGIN_LIFETIME_S).cookie(secure=False).partition(b";")[0]
    assert (await client("/api/x", headers=[(b"cookie", expired)]))[0] == 401
    assert not all(one.done() for one in guesses)
    await asyncio.gather(*guesses)


class Listener:
    """A page that listens to the stream."""

    def __init__(self, client: Client, headers: Any = BEARER, query: str = "") -> None:
        self.sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.stuck = False
        self.first = True
        self.task = asyncio.create_task(
            client.app(scope("/api/events", "GET", headers, query), self.receive, self.send)
        )

    async def receive(self) -> MutableMapping[str, Any]:
        if self.first:
            self.first = False
            return {"type": "http.request", "body": b""}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.sent.put_nowait(message)

    async def next(self) -> MutableMapping[str, Any]:
        async with asyncio.timeout(5):
            return await self.sent.get()

    async def until(self, words: bytes) -> None:
        while words not in (await self.next()).get("body", b""):
            pass


async def test_changes_are_server_sent_events_until_the_page_disconnects() -> None:
    client = Client()
    page = Listener(client, query="last=e-0")
    start = await page.next()
    assert (b"content-type", b"text/event-stream") in start["headers"]
    client.stream.send("delta", b'{"a":1}')
    await page.until(b'event: delta\ndata: {"a":1}')
    page.gone.set()
    await page.task
    assert client.stream.pages == 0


async def test_a_page_that_reconnects_sends_its_last_event_id_by_header_or_query() -> None:
    client = Client()
    for number in range(3):
        client.stream.send("delta", b"%d" % number)
    for headers, query in (([*BEARER, (b"last-event-id", b"e-2")], "last=e-0"), (BEARER, "last=e-2")):
        page = Listener(client, headers, query)
        await page.until(b"id: e-3")
        page.gone.set()
        await page.task


async def test_a_page_that_cannot_resume_gets_a_snapshot_in_the_same_stream() -> None:
    """Each request may reach another replica: a page must not mix their event ids."""
    client = Client()
    client.stream.send("delta", b"1")
    page = Listener(client, query="last=another-7")
    await page.until(b": listening")
    client.stream.send("delta", b"2")
    whole = (await page.next())["body"]
    head, _, data = whole.partition(b"data: ")
    assert head == b"id: e-1\nevent: snapshot\n"
    assert gzip.decompress(base64.b64decode(data)) == b"all of it"
    assert (await page.next())["body"] == b"id: e-2\nevent: delta\ndata: 2\n\n"
    page.gone.set()
    await page.task


async def test_a_page_gets_503_and_is_not_registered_before_the_first_snapshot() -> None:
    client = Client()
    client.answers.read = False
    assert (await client("/api/events", headers=BEARER))[0] == 503
    assert client.stream.pages == 0


async def test_heartbeats_are_sent_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "HEARTBEAT_S", 0.01)
    page = Listener(Client(), query="last=e-0")
    await page.until(b"event: alive")
    page.gone.set()
    await page.task


async def test_a_page_that_loses_access_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "HEARTBEAT_S", 0.01)
    client = Client()
    page = Listener(client, query="last=e-0")
    await page.until(b"event: alive")
    client.token = b"another-token-entirely"
    async with asyncio.timeout(5):
        await page.task


async def test_pages_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_PAGES", 0)
    status, _, body = await Client()("/api/events", headers=BEARER)
    assert (status, b"too many pages" in body) == (503, True)
