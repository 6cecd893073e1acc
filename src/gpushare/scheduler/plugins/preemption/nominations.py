"""Reserves room for pods that kube-scheduler preempts for: on the nominated node, once the pods being deleted there free enough.

kube-scheduler's own filters count a nominated pod as if it ran on the node. An extender does not learn of nominations, and only the extender
counts GPUs. Without a reservation, a less important pod could be allocated what the first victim frees, before the last victim is gone.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import NO_QUOTAS, PodQuotas

#: Most pods whose nomination is remembered; the oldest are forgotten first.
_REMEMBERED: Final = 1024


class Nominations:
    """Follows the nominations of pending pods. ``on_reserved`` is called with the UID of a pod once room is reserved for it."""

    def __init__(
        self, view: ClusterCache, on_reserved: Callable[[str], None], quotas: PodQuotas = NO_QUOTAS
    ) -> None:
        self._view = view
        self._quotas = quotas
        self._ledger = view.ledger
        self._on_reserved = on_reserved
        self._nominated: OrderedDict[str, str] = OrderedDict()
        self._pending_reservations: dict[str, None] = {}

    def pod_updated(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        uid, node = record.uid, record.unplaced.nominated
        if not node or record.node or record.finished or record.leaving:
            self._forget(uid)
            if not record.leaving and not record.finished:
                return  # most events free no room
        elif self._nominated.get(uid) == node:
            return
        else:
            self._forget(uid)
            self._nominated[uid] = node
            self._pending_reservations[uid] = None
            while len(self._nominated) > _REMEMBERED:
                self._forget(next(iter(self._nominated)))
        if self._pending_reservations:
            self._reserve()

    def pod_removed(self, last: PodRecord) -> None:
        """A pod is gone."""
        self._forget(last.uid)
        if self._pending_reservations:
            self._reserve()

    def _forget(self, uid: str) -> None:
        self._nominated.pop(uid, None)
        self._pending_reservations.pop(uid, None)

    def _reserve(self) -> None:
        """Reserve room for the pods for which there is enough now: highest priority first, then in order of nomination."""
        pending = [
            record
            for uid in self._pending_reservations
            if (record := self._view.waiting.get(uid)) is not None
        ]
        for record in sorted(pending, key=lambda record: -record.priority):
            uid, request = record.uid, record.request
            if request is None or record.gang is not None or self._has_room(uid):
                self._pending_reservations.pop(uid, None)
                continue
            if self._quotas.refusal(uid):
                continue
            plan = self._ledger.evictions.plan(request, (self._nominated[uid],), self._view.leaving)
            if plan is not None:
                self._pending_reservations.pop(uid, None)
                self._ledger.nominations.add(uid, request, plan)
                self._on_reserved(uid)

    def _has_room(self, uid: str) -> bool:
        return self._ledger.held(uid) is not None or bool(self._ledger.nominations.node_of(uid))
