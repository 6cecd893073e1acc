"""The plugin ``decisions``: why pods are pending or where they are, in records, pages, events and metrics."""

from gpushare.scheduler.framework.interface import Handle, Task
from gpushare.scheduler.framework.services import Gangs, NodePolicies, PodQuotas
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.explain.pending_pod_events import FromDecisions, PendingPodEvents


class Explanations(DecisionLog):
    """Decisions with what is made of them."""

    def __init__(self, handle: Handle, gangs: Gangs, policies: NodePolicies, quotas: PodQuotas) -> None:
        waiting_non_gpu = handle.cache.waiting_non_gpu
        super().__init__(
            handle.cache,
            handle.clock,
            leads=lambda: handle.leading.known,
            in_turn=policies.by_unit,
            without_gpu=lambda uid: waiting_non_gpu.get(uid) or policies.kept(uid),
            gangs=gangs,
            quotas=quotas,
        )
        self._events = PendingPodEvents(FromDecisions(self), handle.recorder, handle.clock, handle.leading)
        self._events.export(handle.gauge, handle.gauge_by)

    def tasks(self) -> list[Task]:
        """What runs for as long as the process."""
        return [("decisions", self.run()), ("pending pods", self._events.run())]
