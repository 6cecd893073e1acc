"""HTTP with one page per connection: malformed requests are rejected before the handler is called."""

import asyncio

import pytest

from gpushare.httpserver import small_http
from gpushare.httpserver.small_http import TEXT, Answer, Get, SmallServer, read_header


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /page?q=1 HTTP/1.1\r\nAccept-Encoding: br, gzip\r\n\r\n", b"200"),
        (b"HEAD /page HTTP/1.1\r\n\r\n", b"200"),
        (b"POST /page HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /page\r\n\r\n", b"400"),
        (b"GET /page\nX-Forged:\t1 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /p\xe4ge HTTP/1.1\r\n\r\n", b"400"),
    ],
)
async def test_malformed_requests_never_reach_the_handler(request_bytes: bytes, status: bytes) -> None:
    handled: list[Get] = []

    async def answer(get: Get) -> Answer:
        handled.append(get)
        return Answer(200, TEXT, b"here\n")

    async with await SmallServer(answer, 4).start("127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        response = await reader.read()
        writer.close()
    assert response.split(b" ")[1] == status
    assert bool(handled) == (status == b"200")
    assert response.endswith(b"here\n") == (status == b"200" and request_bytes.startswith(b"GET"))
    assert not handled or handled[0] in (Get("/page", "q=1", True), Get("/page"))


@pytest.mark.parametrize("complete", [True, False])
async def test_a_request_that_has_arrived_when_its_timeout_is_noticed_counts(
    complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a starved process: one pass of the event loop finds both, and the timeout first."""
    monkeypatch.setattr(small_http, "_READ_S", 0.0)
    reader = asyncio.StreamReader()
    reading = asyncio.create_task(read_header(reader))
    await asyncio.sleep(0)
    request = b"GET /healthz HTTP/1.1\r\n\r\n"
    reader.feed_data(request if complete else request[:-2])
    if complete:
        assert await reading == request
    else:
        with pytest.raises(TimeoutError):
            await reading
