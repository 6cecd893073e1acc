"""The extender's HTTP interface, as an ASGI application: three verbs, two probes, metrics."""

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from gpushare.scheduler import wire
from gpushare.scheduler.bind import Binder, BindRefused
from gpushare.scheduler.extender import filter_nodes, prioritize_nodes
from gpushare.scheduler.metrics import Metrics
from gpushare.scheduler.retry import Retries
from gpushare.scheduler.view import ClusterView

logger = logging.getLogger(__name__)

#: Where the verbs are, as ``urlPrefix`` of kube-scheduler's configuration names it.
PREFIX: Final = "/gpushare"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"


class _Answer(Exception):
    """Ends a request early with a status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ExtenderApp:
    """Routes requests; ``ready`` says whether every watch has been read once."""

    def __init__(
        self,
        view: ClusterView,
        binder: Binder,
        retries: Retries,
        metrics: Metrics,
        ready: Callable[[], str],
    ) -> None:
        self._view = view
        self._binder = binder
        self._retries = retries
        self._metrics = metrics
        self._ready = ready
        self._seconds = {verb: metrics.verb_seconds.labels(verb) for verb in ("filter", "prioritize", "bind")}
        self._bound = metrics.binds.labels("bound")
        self._refused = metrics.binds.labels("refused")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """ASGI entry: one HTTP request."""
        status, kind = 200, _JSON
        try:
            if scope["method"] == "POST":
                body = await self._verb(scope["path"], receive)
            else:
                kind, body = self._read(scope["path"])
        except _Answer as answer:
            status, kind, body = answer.status, _TEXT, answer.text.encode() + b"\n"
        except wire.WireError as error:
            logger.warning("%s: a body could not be read: %s", scope["path"], error)
            status, kind, body = 400, _TEXT, str(error).encode() + b"\n"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _verb(self, path: str, receive: Receive) -> bytes:
        prefix, _, verb = path.rpartition("/")
        seconds = self._seconds.get(verb)
        if prefix != PREFIX or seconds is None:
            raise _Answer(404, f"no verb at {path}; there are filter, prioritize and bind under {PREFIX}/")
        body = await _body(receive)
        if missing := self._ready():
            raise _Answer(503, f"not ready: {missing}")
        started = time.perf_counter()
        try:
            if verb == "filter":
                return filter_nodes(self._view, body, self._retries.refused)
            if verb == "prioritize":
                return prioritize_nodes(self._view, body)
            return await self._bind(body)
        except wire.WireError:
            self._metrics.errors.labels(verb).inc()
            raise
        finally:
            seconds.observe(time.perf_counter() - started)

    async def _bind(self, body: bytes) -> bytes:
        args = wire.read_binding(body)
        try:
            await self._binder.bind(args)
        except BindRefused as refused:
            self._refused.inc()
            logger.info("pod %s was not bound: %s", args.key, refused)
            return wire.binding_answer(str(refused))
        self._bound.inc()
        return wire.binding_answer("")

    def _read(self, path: str) -> tuple[bytes, bytes]:
        if path == "/healthz":
            return _TEXT, b"ok\n"
        if path == "/readyz":
            if missing := self._ready():
                raise _Answer(503, f"not ready: {missing}")
            return _TEXT, b"ok\n"
        if path == "/metrics":
            return b"text/plain; version=0.0.4; charset=utf-8", self._metrics.render()
        raise _Answer(404, f"nothing at {path}")


async def _body(receive: Receive) -> bytes:
    first = await receive()
    body: bytes = first.get("body", b"")
    if not first.get("more_body"):
        return body
    parts, size = [body], len(body)
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _Answer(400, "the body was cut off")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > wire.MAX_BODY_BYTES:
            raise _Answer(413, f"a body above {wire.MAX_BODY_BYTES} bytes is not read")
        more = message.get("more_body", False)
    return b"".join(parts)
