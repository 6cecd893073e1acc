"""Logs a pod's life cycle as the watch reports it: that it is pending, that it is bound, and its end, each once.

Together with the lines of its scheduling cycles (``cycle_log``), a search for its UID shows the pod's whole life with this scheduler.
"""

import logging

from gpushare.api import names
from gpushare.api.request.describe import asks_text
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog

logger = logging.getLogger(__name__)


class PodLifecycleLog:
    """Handles pod events before the cache does, so that the cache still shows the previous state."""

    def __init__(self, view: ClusterCache, decisions: DecisionLog | None = None) -> None:
        self._view = view
        self._decisions = decisions

    def pod_arriving(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        known_pending = record.uid in self._view.waiting
        if record.finished:
            self.pod_leaving(record)
        elif not record.node:
            if not known_pending and not record.bystander:
                _log_pending(record)
        elif known_pending and not self._binding_is_logged(record):
            log_fields = about(pod=record.pod, uid=record.uid, node=record.node)
            logger.info("pod %s: observed on node %s", record.pod, record.node, extra=log_fields)

    def pod_leaving(self, last: PodRecord) -> None:
        """A pod has finished or was deleted."""
        uid = last.uid
        if uid not in self._view.waiting and self._view.ledger.held(uid) is None:
            return  # already logged, or never known
        outcome = "is gone" if not last.finished else "has succeeded" if last.succeeded else "has failed"
        logger.info("pod %s: %s", last.pod, outcome, extra=about(pod=last.pod, uid=uid, node=last.node))

    def _binding_is_logged(self, record: PodRecord) -> bool:
        """Whether we bound the pod and have logged that, or will log it once the API server answers our Binding."""
        decision = None if self._decisions is None else self._decisions.get(record.uid)
        if decision is not None and decision.bind is not None:
            return not decision.bind.error
        held = self._view.ledger.held(record.uid)
        return held is not None and held.node == record.node


def _log_pending(record: PodRecord) -> None:
    gates, requested = record.unplaced.gates, record.unplaced.requested
    logger.info(
        "pod %s: pending for %s, requests %s%s%s",
        record.pod,
        record.unplaced.scheduler or "no scheduler",
        asks_text(record.request) or "an unreadable amount",
        f" ({names.ANN_REQUESTED}: {requested})" if requested else "",
        f", held back by {gates}" if gates else "",
        extra=about(pod=record.pod, uid=record.uid),
    )
