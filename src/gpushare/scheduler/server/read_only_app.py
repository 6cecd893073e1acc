"""What is only read of the scheduler over HTTP: probes, metrics, and its decisions, which ``telling`` writes."""

from collections.abc import Callable
from typing import Final

from gpushare.api import names
from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.exchange import JSON, Receive, Scope
from gpushare.httpserver.probes import Exposition, Probes
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog

#: Where the verbs are, as ``urlPrefix`` of kube-scheduler's configuration names it.
PREFIX: Final = "/gpushare"
DECISIONS: Final = f"{PREFIX}/decisions"
_TOKEN: Final = names.READER_HEADER.lower().encode()


class ReadOnly(Probes):
    """Probes and metrics, and decisions for those whom ``readers`` let; ``decisions``: ``None`` where none are kept."""

    def __init__(
        self,
        missing: Callable[[], str],
        metrics: Exposition,
        decisions: DecisionLog | None = None,
        readers: Readers | None = None,
    ) -> None:
        super().__init__(missing, metrics)
        self._decisions = decisions
        self._readers = readers

    async def admit(self, scope: Scope) -> None:
        """Raise ``Refusal`` where decisions are asked for by somebody who may not read them."""
        if self._decisions is not None and scope["path"].startswith(DECISIONS):
            assert self._readers is not None, "decisions are kept, and nobody says who may read them"
            shown = (value for name, value in scope.get("headers", ()) if name == _TOKEN)
            await self._readers.check(next(shown, b"").decode("latin-1"), DECISIONS)

    async def answer(self, method: str, path: str, receive: Receive) -> tuple[bytes, bytes]:
        """Type and body of the answer; raises ``Refusal`` for every other than 200."""
        if self._decisions is None or method not in ("GET", "HEAD"):
            return await super().answer(method, path, receive)
        if not path.startswith(DECISIONS):
            return await super().answer(method, path, receive)
        self.refuse_unready()
        from gpushare.scheduler.server.decisions_api import told  # nobody waits for it at the start

        return JSON, await told(self._decisions, path)
