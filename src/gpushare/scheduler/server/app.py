"""The extender's HTTP interface as an ASGI application: verbs, probes, metrics and pages."""

import logging
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from prometheus_client.metrics import Counter, Histogram

from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.exchange import JSON, Receive, Refusal, read_body
from gpushare.httpserver.fast_path import VerbFn
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.binder import Binder, BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes, prioritize_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.framework.runtime import NO_PLUGINS, Framework
from gpushare.scheduler.leader.resync import LeaderResync
from gpushare.scheduler.observability.cycle_log import log_bound, log_filtered, log_prioritized
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.server import protocol
from gpushare.scheduler.server.read_only_app import PREFIX, ReadOnly

logger = logging.getLogger(__name__)


class ExtenderApp(ReadOnly):
    """Serves the verbs in addition to the read-only paths. Every client that can connect may bind pods."""

    def __init__(
        self,
        view: ClusterCache,
        binder: Binder,
        metrics: Metrics,
        missing: Callable[[], str],
        framework: Framework = NO_PLUGINS,
        takeover: LeaderResync | None = None,
        readers: Readers | None = None,
    ) -> None:
        super().__init__(missing, metrics, framework.pages, readers)
        self._view = view
        self._framework = framework
        self._binder = binder
        self._bodies = Bodies()
        verbs: dict[str, VerbFn] = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "bind": self._bind,
            **{name: self._plugin_verb(name, verb) for name, verb in framework.verbs().items()},
        }
        if takeover is not None:
            verbs = {name: self._after_resync(takeover, verb) for name, verb in verbs.items()}
        self._verbs = {f"{PREFIX}/{name}".encode(): verb for name, verb in verbs.items()}
        self._seconds = {name: metrics.request_seconds.labels(name) for name in verbs}
        self._bound = metrics.bind_attempts.labels("success")
        self._refused = metrics.bind_attempts.labels("rejected")
        self._unreadable = metrics.bad_requests

    def quick(self, path: bytes) -> VerbFn | None:
        """The verb at ``path``, for the server's fast path, which bypasses ASGI."""
        return self._verbs.get(path)

    async def answer(self, method: str, path: str, receive: Receive) -> tuple[bytes, bytes]:
        """Content type and body of the response; raises ``Refusal`` for every status other than 200."""
        if method != "POST":
            return await super().answer(method, path, receive)
        verb = self._verbs.get(path.encode())
        if verb is None:
            *verbs, last = (one.decode().rpartition("/")[2] for one in self._verbs)
            raise Refusal(404, f"no verb at {path}; there are {', '.join(verbs)} and {last} under {PREFIX}/")
        answered = verb(await read_body(receive, protocol.MAX_BODY_BYTES))
        return JSON, answered if isinstance(answered, bytes) else await answered

    def _after_resync(self, takeover: LeaderResync, verb: VerbFn) -> VerbFn:
        def answer(body: bytes) -> bytes | Coroutine[Any, Any, bytes]:
            return verb(body) if takeover.at_once() else self._wait_for_resync(takeover, verb, body)

        return answer

    async def _wait_for_resync(self, takeover: LeaderResync, verb: VerbFn, body: bytes) -> bytes:
        self.refuse_unready()
        if not await takeover.wait():
            raise Refusal(
                503, "this replica has just become the leader and is still relisting pods and nodes"
            )
        answered = verb(body)
        return answered if isinstance(answered, bytes) else await answered

    def _filter(self, body: bytes) -> bytes:
        with self._verb("filter"):
            state = self._bodies.read(body)
            answer = filter_nodes(self._view, state, self._framework)
            if logger.isEnabledFor(logging.DEBUG):
                log_filtered(state, answer)
            return answer

    def _prioritize(self, body: bytes) -> bytes:
        with self._verb("prioritize"):
            state = self._bodies.read(body)
            answer = prioritize_nodes(self._view, state, self._framework)
            if logger.isEnabledFor(logging.DEBUG):
                log_prioritized(state, answer)
            return answer

    def _plugin_verb(self, name: str, verb: Callable[[bytes], Coroutine[Any, Any, bytes]]) -> VerbFn:
        async def answer(body: bytes) -> bytes:
            with self._verb(name):
                return await verb(body)

        return answer

    async def _bind(self, body: bytes) -> bytes:
        with self._verb("bind"):
            args = protocol.read_binding(body)
            try:
                await self._binder.bind(args)
            except BindRefused as refused:
                self._refused.inc()
                self._explain_bind(args, str(refused))
                about_it = about(pod=args.key, uid=args.uid, node=args.node)
                logger.info("pod %s was not bound: %s", args.key, refused, extra=about_it)
                return protocol.binding_answer(str(refused))
            self._bound.inc()
            self._explain_bind(args, "")
            log_bound(self._view.ledger, args)
            return protocol.binding_answer("")

    def _explain_bind(self, args: protocol.BindingArgs, error: str) -> None:
        for explainer in self._framework.explainers:
            explainer.after_bind(args, error)

    def _verb(self, verb: str) -> "_Call":
        self.refuse_unready()
        return _Call(verb, self._seconds[verb], self._unreadable)


class _Call:
    """Measures the duration of one call of a verb, and turns ``WireError`` into status 400."""

    __slots__ = ("_seconds", "_started", "_unreadable", "_verb")

    def __init__(self, verb: str, seconds: Histogram, unreadable: Counter) -> None:
        self._verb = verb
        self._seconds = seconds
        self._unreadable = unreadable

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds.observe(time.perf_counter() - self._started)
        if isinstance(error, protocol.WireError):
            self._unreadable.labels(self._verb).inc()
            logger.warning("%s/%s: a body could not be read: %s", PREFIX, self._verb, error)
            raise Refusal(400, str(error)) from error
