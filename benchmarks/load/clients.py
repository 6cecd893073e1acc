"""Well-behaved clients during attacks: kube-scheduler, the API server, the kubelet, and a client of each port."""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchmarks.api_server import node_name
from benchmarks.extender import connect, filter_body
from benchmarks.load.attacker import LOOPBACK

#: Each has its own address: servers distinguish peers by addresses.
KUBELET: Final = "127.0.0.2"
CLIENT: Final = "127.0.0.3"
_FILTER_EVERY_S: Final = 0.01
_REVIEW_EVERY_S: Final = 0.05
_PROBE_EVERY_S: Final = 0.5
_CLIENT_EVERY_S: Final = 1.0
_UNITS: Final = (1, 4, 40, 72, 78, 80)


class Response(NamedTuple):
    """One request: its start by the monotonic clock and the time to its response, both in seconds, and the result.

    ``result``: the HTTP status, with the text of a bad response; or the error.
    """

    began_s: float
    took_s: float
    result: str

    @property
    def answered(self) -> bool:
        """Whether there was a response: client errors count, and so does 503, an overloaded server's."""
        return self.status < 500 or self.status == 503

    @property
    def good(self) -> bool:
        """Whether a kubelet accepts it as the response of a probe."""
        return 200 <= self.status < 400

    @property
    def status(self) -> int:
        """The HTTP status; 599 without one."""
        number = self.result.partition(" ")[0]
        return int(number) if number.isdecimal() else 599


@dataclass(slots=True)
class Clients:
    """All requests so far, by client and server."""

    found: dict[str, list[Response]] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def every(
        self, seconds: float, name: str, request: Callable[[], Awaitable[str]], within_s: float
    ) -> None:
        """Start to send requests one after the other."""
        responses = self.found[name] = []

        async def run() -> None:
            while True:
                began_s = time.monotonic()
                try:
                    async with asyncio.timeout(within_s):
                        result = await request()
                except (OSError, EOFError, ValueError) as error:
                    result = f"{type(error).__name__}: {error}"
                responses.append(Response(began_s, time.monotonic() - began_s, result))
                await asyncio.sleep(seconds)

        self._tasks.append(asyncio.create_task(run(), name=name))

    def check(self) -> None:
        """Raise the error of a failed client."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """Stop sending requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def within(self, name: str, begin_s: float, end_s: float) -> list[Response]:
        """Requests that began between these times."""
        return [one for one in self.found[name] if begin_s <= one.began_s < end_s]


def trusting_any() -> ssl.SSLContext:
    """TLS with any server."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def status_of(
    port: int, request: bytes, tls: ssl.SSLContext | None = None, source: str = LOOPBACK
) -> str:
    """The status of a response, which is read completely, over a new connection. Raises ``OSError`` and ``EOFError``."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=tls, local_addr=(source, 0))
    try:
        writer.write(request)
        return await _answer(reader)
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    first, *lines = head.strip().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    body = await reader.readexactly(int(fields["content-length"]))
    status = first.split()[1]
    # The text of a refusal is more useful than its number.
    return status if status == "200" else f"{status} {body.decode(errors='replace').strip()}"


def filtering(port: int, nodes: int) -> Callable[[], Awaitable[str]]:
    """Filter requests like kube-scheduler's, over a persistent connection."""
    names = [node_name(number) for number in range(nodes)]
    bodies = [filter_body(10**6 + number, units, names) for number, units in enumerate(_UNITS)]
    connection, turn = None, 0

    async def send() -> str:
        nonlocal connection, turn
        connection = connection or await connect(port)
        turn += 1
        try:
            answer = await connection.post("filter", bodies[turn % len(bodies)])
        except ConnectionError:
            connection = None
            raise
        return "200" if answer.startswith(b'{"') else answer.decode()

    return send


async def filter_waiting(port: int, nodes: int, first: int, units: list[int]) -> None:
    """Filter each pending pod once, so that there are decisions on them. Raises on an error response."""
    names = [node_name(number) for number in range(nodes)]
    caller = await connect(port)
    for number, amount in enumerate(units):
        answer = json.loads(await caller.post("filter", filter_body(first + number, amount, names)))
        if answer.get("Error") or answer["NodeNames"]:
            raise RuntimeError(f"filter answers {answer} about a pod that fits nowhere")


def reviewing(port: int, review: bytes) -> Callable[[], Awaitable[str]]:
    """Reviews like an API server's, over a connection that is reused while possible."""
    tls, connection = trusting_any(), None

    async def send() -> str:
        nonlocal connection
        reader, writer = connection or await asyncio.open_connection(LOOPBACK, port, ssl=tls)
        connection = None
        try:
            writer.write(review)
            result = await _answer(reader)
        except BaseException:
            writer.transport.abort()
            raise
        connection = reader, writer
        return result

    return send


def begin(
    clients: Clients,
    *,
    extender: int,
    nodes: int,
    webhook: tuple[int, bytes, float],
    probes: dict[str, tuple[int, float]],
    doors: dict[str, tuple[int, bytes, bool, float]],
) -> None:
    """Start all clients. ``webhook``: port, review and time limit; ``probes``: port of each part and time limit;
    ``doors``: port, request, whether it uses TLS, and time limit.
    """
    clients.every(_FILTER_EVERY_S, "filter", filtering(extender, nodes), 10.0)
    port, review, within_s = webhook
    clients.every(_REVIEW_EVERY_S, "review", reviewing(port, review), within_s)
    for name, (at, within_s) in probes.items():
        for path in ("/healthz", "/readyz"):
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            clients.every(_PROBE_EVERY_S, f"{name} {path}", _once(at, request, KUBELET), within_s)
    for name, (at, request, is_tls, within_s) in doors.items():
        tls = trusting_any() if is_tls else None
        clients.every(_CLIENT_EVERY_S, f"client {name}", _once(at, request, CLIENT, tls), within_s)


def _once(
    port: int, request: bytes, source: str, tls: ssl.SSLContext | None = None
) -> Callable[[], Awaitable[str]]:
    return lambda: status_of(port, request, tls, source)
