"""Has others end for a pod that asks for no GPU of ours, where nothing but the max of a quota keeps it back.

kube-scheduler asked about it, so by its own rules the pod has room on the nodes that it named: what its quotas lack is a sum, and those
that end may be anywhere. The sum that they give back is kept for the pod (``PodQuotas.keep``), for as long as room on GPUs is.
"""

from collections.abc import Collection
from typing import Final

from gpushare.kube.clock import Clock
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import PodQuotas
from gpushare.scheduler.plugins.preemption.ranks import lesser

#: Seconds that a sum is kept for a pod that does not come for it.
KEPT_S: Final = 180.0


class Sums:
    """Which sums are kept for pods without a GPU, and since when."""

    def __init__(self, view: ClusterCache, quotas: PodQuotas, clock: Clock) -> None:
        self._view = view
        self._quotas = quotas
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        """Whether any sum is kept."""
        return bool(self._since_s)

    def waits(self, record: PodRecord) -> bool:
        """Whether the pod waits as it did, and nothing is kept for it."""
        return (
            self._view.waiting_non_gpu.get(record.uid) is record
            and not record.leaving
            and not self._quotas.keeps(record.uid)
        )

    def plan(self, record: PodRecord, guarded: Collection[str]) -> tuple[str, ...] | None:
        """UIDs of those whose end would let the pod in; ``guarded`` ones stay. Empty where those that leave already are enough.

        ``None`` where no ends that are allowed do.
        """
        from gpushare.ledger.preemption.quota_relief import relief

        claim = self._quotas.claim(record.uid, record.pod, record.amounts)
        if claim is None or not self.waits(record):
            return None
        return relief(claim, lesser(self._view, record.priority, guarded, claim))

    def keep(self, record: PodRecord) -> None:
        """Charge the pod what it asks for from now on, so that nobody else takes what others give back for it."""
        self._quotas.keep(record.uid)
        self._since_s[record.uid] = self._clock.monotonic()

    def give_up(self, uid: str) -> None:
        """Keep nothing more for the pod."""
        self._since_s.pop(uid, None)
        self._quotas.unkeep(uid)

    def forget(self) -> bool:
        """Give up what nobody came for; whether there was any. A pod that was bound, or is gone, has given it up already."""
        now_s = self._clock.monotonic()
        overdue = [uid for uid, since_s in self._since_s.items() if now_s > since_s + KEPT_S]
        left = [uid for uid in overdue if self._quotas.keeps(uid)]
        self._since_s = {uid: at_s for uid, at_s in self._since_s.items() if self._quotas.keeps(uid)}
        for uid in left:
            self.give_up(uid)
        return bool(left)
