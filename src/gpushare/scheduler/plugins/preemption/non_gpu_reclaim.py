"""Evicts pods for a pod that requests no GPU of ours and is refused only because of the max of an elastic quota.

kube-scheduler asked about the pod, so by its own rules the pod has room on the offered nodes. Its quotas only lack an amount, so the
victims may be on any nodes. The amount that they free is reserved for the pod (``PodQuotas.keep``) for as long as room on GPUs would be.
"""

from collections.abc import Collection
from typing import Final

from gpushare.kube.clock import Clock
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import PodQuotas
from gpushare.scheduler.plugins.preemption.ranks import lesser

#: Seconds until a reserved amount is released if the pod is not bound.
RESERVED_S: Final = 180.0


class QuotaReservations:
    """Amounts of quotas that are reserved for pods without a GPU, and since when."""

    def __init__(self, view: ClusterCache, quotas: PodQuotas, clock: Clock) -> None:
        self._view = view
        self._quotas = quotas
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        """Whether anything is reserved."""
        return bool(self._since_s)

    def is_pending(self, record: PodRecord) -> bool:
        """Whether the pod is pending and unchanged, and nothing is reserved for it."""
        return (
            self._view.waiting_non_gpu.get(record.uid) is record
            and not record.leaving
            and not self._quotas.keeps(record.uid)
        )

    def plan(self, record: PodRecord, guarded: Collection[str]) -> tuple[str, ...] | None:
        """UIDs of the victims whose eviction would admit the pod, none of them in ``guarded``.

        Empty if pods that are already being deleted free enough; ``None`` if no allowed evictions do.
        """
        from gpushare.ledger.preemption.quota_relief import relief

        claim = self._quotas.claim(record.uid, record.pod, record.amounts)
        if claim is None or not self.is_pending(record):
            return None
        return relief(claim, lesser(self._view, record.priority, guarded, claim))

    def reserve(self, record: PodRecord) -> None:
        """Charge the pod's request to its quotas from now on, so that no other pod takes what the victims free."""
        self._quotas.keep(record.uid)
        self._since_s[record.uid] = self._clock.monotonic()

    def release(self, uid: str) -> None:
        """Release what is reserved for the pod."""
        self._since_s.pop(uid, None)
        self._quotas.unkeep(uid)

    def release_expired(self) -> bool:
        """Release expired reservations; returns whether there were any. Those of bound or deleted pods are released elsewhere."""
        now_s = self._clock.monotonic()
        overdue = [uid for uid, since_s in self._since_s.items() if now_s > since_s + RESERVED_S]
        expired = [uid for uid in overdue if self._quotas.keeps(uid)]
        self._since_s = {uid: at_s for uid, at_s in self._since_s.items() if self._quotas.keeps(uid)}
        for uid in expired:
            self.release(uid)
        return bool(expired)
