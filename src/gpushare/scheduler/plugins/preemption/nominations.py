"""Room for pods for which kube-scheduler ends others by itself: kept on the node that it names, once what leaves there is enough.

Its own filters count a nominated pod as if it were there; an extender hears nothing of it, and GPUs are counted by the extender alone.
So while victims end one after the other a less important pod would be given what the first of them left.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import NO_QUOTAS, PodQuotas

#: Pods whose nomination is remembered; the oldest give way.
_REMEMBERED: Final = 1024


class Nominations:
    """Follows what waiting pods say of their node. ``on_kept`` is called with the UID of a pod for which room is kept from now on."""

    def __init__(
        self, view: ClusterCache, on_kept: Callable[[str], None], quotas: PodQuotas = NO_QUOTAS
    ) -> None:
        self._view = view
        self._quotas = quotas
        self._ledger = view.ledger
        self._on_kept = on_kept
        self._known: OrderedDict[str, str] = OrderedDict()
        self._wanted: dict[str, None] = {}

    def pod_updated(self, record: PodRecord) -> None:
        """A pod was added or changed."""
        uid, node = record.uid, record.unplaced.nominated
        if not node or record.node or record.finished or record.leaving:
            self._forget(uid)
            if not record.leaving and not record.finished:
                return  # most events: nobody has left anything
        elif self._known.get(uid) == node:
            return
        else:
            self._forget(uid)
            self._known[uid] = node
            self._wanted[uid] = None
            while len(self._known) > _REMEMBERED:
                self._forget(next(iter(self._known)))
        if self._wanted:
            self._keep()

    def pod_removed(self, last: PodRecord) -> None:
        """A pod is gone."""
        self._forget(last.uid)
        if self._wanted:
            self._keep()

    def _forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._wanted.pop(uid, None)

    def _keep(self) -> None:
        """For whom there is enough now, the most important first, of equals who was nominated first."""
        waiting = [record for uid in self._wanted if (record := self._view.waiting.get(uid)) is not None]
        for record in sorted(waiting, key=lambda one: -one.priority):
            uid, request = record.uid, record.request
            if request is None or record.gang is not None or self._has_room(uid):
                self._wanted.pop(uid, None)
                continue
            if self._quotas.refusal(uid):
                continue
            plan = self._ledger.evictions.plan(request, (self._known[uid],), self._view.leaving)
            if plan is not None:
                self._wanted.pop(uid, None)
                self._ledger.nominations.add(uid, request, plan)
                self._on_kept(uid)

    def _has_room(self, uid: str) -> bool:
        return self._ledger.held(uid) is not None or bool(self._ledger.nominations.node_of(uid))
