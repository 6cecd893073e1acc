"""What the log says of a pod of ours that the watch tells of: that it waits, where it is, and its end, each once.

With what is told of its cycle (``cycle_log``) one search for its UID shows its whole life with this scheduler.
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
    """Follows pods before the cache does, by which it sees what is new."""

    def __init__(self, view: ClusterCache, decisions: DecisionLog | None = None) -> None:
        self._view = view
        self._decisions = decisions

    def pod_arriving(self, item: PodRecord) -> None:
        """A pod was added or changed."""
        waits = item.uid in self._view.waiting
        if item.finished:
            self.pod_leaving(item)
        elif not item.node:
            if not waits and not item.bystander:
                _tell_waiting(item)
        elif waits and not self._is_told_bound(item):
            where = about(pod=item.pod, uid=item.uid, node=item.node)
            logger.info("pod %s: is seen on node %s", item.pod, item.node, extra=where)

    def pod_leaving(self, last: PodRecord) -> None:
        """A pod has finished, or is gone."""
        uid = last.uid
        if uid not in self._view.waiting and self._view.ledger.held(uid) is None:
            return  # that was told, or there is nothing to tell
        how = "is gone" if not last.finished else "has succeeded" if last.succeeded else "has failed"
        logger.info("pod %s: %s", last.pod, how, extra=about(pod=last.pod, uid=uid, node=last.node))

    def _is_told_bound(self, item: PodRecord) -> bool:
        """Whether we have bound it and said so, or will when the answer to our Binding has come."""
        one = None if self._decisions is None else self._decisions.get(item.uid)
        if one is not None and one.bind is not None:
            return not one.bind.error
        held = self._view.ledger.held(item.uid)
        return held is not None and held.node == item.node


def _tell_waiting(record: PodRecord) -> None:
    gates, requested = record.unplaced.gates, record.unplaced.requested
    logger.info(
        "pod %s: waits for %s, asks for %s%s%s",
        record.pod,
        record.unplaced.scheduler or "no scheduler",
        asks_text(record.request) or "what cannot be read",
        f" ({names.ANN_REQUESTED}: {requested})" if requested else "",
        f", held back by {gates}" if gates else "",
        extra=about(pod=record.pod, uid=record.uid),
    )
