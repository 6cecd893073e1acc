"""The plugin ``decisions``: records, pages, events and metrics that say why pods are pending or where they are."""

from gpushare.scheduler.framework.interface import Handle, Task
from gpushare.scheduler.framework.services import Gangs, NodePolicies, PodQuotas
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.explain.pending_pod_events import FromDecisions, PendingPodEvents


class Explanations(DecisionLog):
    """The decision log, and the events and metrics derived from it."""

    def __init__(self, handle: Handle, gangs: Gangs, policies: NodePolicies, quotas: PodQuotas) -> None:
        pending_non_gpu_pods = handle.cache.waiting_non_gpu
        super().__init__(
            handle.cache,
            handle.clock,
            leads=lambda: handle.leading.known,
            in_turn=policies.by_unit,
            without_gpu=lambda uid: pending_non_gpu_pods.get(uid) or policies.kept(uid),
            gangs=gangs,
            quotas=quotas,
        )
        self._events = PendingPodEvents(FromDecisions(self), handle.recorder, handle.clock, handle.leading)
        self._events.export(handle.gauge, handle.gauge_by)

    def tasks(self) -> list[Task]:
        """Background tasks that run for the lifetime of the process."""
        return [("decisions", self.run()), ("pending pods", self._events.run())]
