"""Probes and metrics as an ASGI application, alone or next to what a role serves."""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics import Gauge, disable_created_metrics
from prometheus_client.registry import Collector, CollectorRegistry

from gpushare.httpserver.exchange import TEXT, Receive, Refusal, Scope, Send, respond
from gpushare.httpserver.listeners import elsewhere

_EXPOSITION: Final = b"text/plain; version=0.0.4; charset=utf-8"
AppFn = Callable[[Scope, Receive, Send], Awaitable[None]]

# The library exports the creation time of each counter and histogram as a gauge, which is useless here.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Exposition:
    """The metrics of a process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Export ``read()`` as a gauge; it is called at each scrape."""
        Gauge(name, help_text, registry=self.registry).set_function(read)

    def watch_total(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Export ``read()``, which only grows, as the counter ``NAME_total``; it is called at each scrape."""
        self.registry.register(_Total(name, help_text, read))

    def render(self) -> bytes:
        """The metrics in the exposition format."""
        # It imports HTTP servers, which would slow down the start.
        from prometheus_client.exposition import generate_latest

        return generate_latest(self.registry)

    async def answer(self, *, packed: bool) -> tuple[bytes, bool]:
        """The metrics for one scrape, and whether they are gzipped, which they may be if ``packed``."""
        return self.render(), False


class _Total(Collector):
    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._described = (name, help_text)
        self._read = read

    def collect(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily(*self._described, value=self._read())]


class Probes:
    """``GET /healthz``, ``/readyz`` and ``/metrics``; ``missing`` says why the process is not ready, empty if it is."""

    def __init__(self, missing: Callable[[], str], metrics: Exposition) -> None:
        self._missing = missing
        self._exposition = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry: one HTTP request."""
        status, encoding = 200, b""
        try:
            await self.admit(scope)
            if scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD"):
                kind = _EXPOSITION
                body, packed = await self._exposition.answer(packed=_takes_gzip(scope))
                encoding = b"gzip" if packed else b""
            else:
                kind, body = await self.answer(scope["method"], scope["path"], receive)
        except Refusal as refusal:
            status, kind, body = refusal.status, TEXT, refusal.text.encode() + b"\n"
        await respond(send, status, kind, body, encoding=encoding)

    async def admit(self, scope: Scope) -> None:
        """Raise ``Refusal`` if the peer is not authorized; probes and metrics need no authorization."""

    async def answer(self, method: str, path: str, receive: Receive) -> tuple[bytes, bytes]:
        """Content type and body of the response; raises ``Refusal`` for every status but 200."""
        if method not in ("GET", "HEAD"):
            raise Refusal(405, "only /healthz, /readyz and /metrics are here, for GET")
        if path == "/healthz":
            return TEXT, b"ok\n"
        if path == "/readyz":
            self.refuse_unready()
            return TEXT, b"ok\n"
        raise Refusal(404, f"nothing at {path}")

    def refuse_unready(self) -> None:
        """Raise ``Refusal`` while something is missing."""
        if missing := self._missing():
            raise Refusal(503, f"not ready: {missing}")


def at_door(app: AppFn, pages: Collection[str]) -> AppFn:
    """``app`` (ASGI) restricted to ``pages`` (``gpushare.httpserver.listeners``); 404 for all others."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if why := elsewhere(scope["path"], pages):
            await respond(send, 404, TEXT, f"{why}\n".encode())
        else:
            await app(scope, receive, send)

    return answered


def _takes_gzip(scope: Scope) -> bool:
    return any(
        name == b"accept-encoding" and b"gzip" in value.lower() for name, value in scope.get("headers", ())
    )
