"""What is only read of the scheduler over HTTP: probes, metrics, and its decisions, which ``telling`` writes."""

from collections.abc import Callable
from typing import Final

from gpushare.scheduler.decisions import Decisions
from gpushare.serving.exchange import JSON, Receive
from gpushare.serving.probes import Exposition, Probes

#: Where the verbs are, as ``urlPrefix`` of kube-scheduler's configuration names it.
PREFIX: Final = "/gpushare"


class ReadOnly(Probes):
    """Probes, metrics and decisions; ``decisions``: ``None`` where none are kept."""

    def __init__(
        self, missing: Callable[[], str], metrics: Exposition, decisions: Decisions | None = None
    ) -> None:
        super().__init__(missing, metrics)
        self._decisions = decisions

    async def answer(self, method: str, path: str, receive: Receive) -> tuple[bytes, bytes]:
        """Type and body of the answer; raises ``Refusal`` for every other than 200."""
        if self._decisions is None or method not in ("GET", "HEAD"):
            return await super().answer(method, path, receive)
        if not path.startswith(f"{PREFIX}/decisions"):
            return await super().answer(method, path, receive)
        self.refuse_unready()
        from gpushare.scheduler.telling import told  # nobody waits for it at the start

        return JSON, await told(self._decisions, path)
