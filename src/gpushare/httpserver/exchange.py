"""One ASGI request: reading its body, sending its response, rejecting it early."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from gpushare.httpserver.body_memory import Coming

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"


class Refusal(Exception):
    """Rejects a request with a status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


async def read_body(receive: Receive, most_bytes: int, coming: Coming | None = None) -> bytes:
    """The whole body; raises ``Refusal`` if it is cut off, too large, or dropped by ``coming`` for lack of memory."""
    coming = coming or Coming()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise Refusal(400, "the body was cut off")
        coming.add(message.get("body", b""))
        if coming.is_dropped:
            raise Refusal(503, "too many large requests at once; retry later")
        if coming.size > most_bytes:
            raise Refusal(413, f"a body above {most_bytes} bytes is not read")
        more = message.get("more_body", False)
    return coming.whole()


async def respond(
    send: Send, status: int, kind: bytes, body: bytes, *, close: bool = False, encoding: bytes = b""
) -> None:
    """Send the response; ``close`` ends the connection after it, ``encoding`` is the body's content encoding."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    if encoding:
        headers.append((b"content-encoding", encoding))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
