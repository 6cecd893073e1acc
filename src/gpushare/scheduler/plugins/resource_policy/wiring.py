"""The parts of the extender that heed ResourcePolicies, put together."""

from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import Clock
from gpushare.ledger import Ledger
from gpushare.scheduler.framework.interface import Task
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.prebind import PolicyBinding
from gpushare.scheduler.plugins.resource_policy.status_writer import PolicyWriter
from gpushare.scheduler.plugins.resource_policy.watch import PolicyWatches
from gpushare.scheduler.requeue.requeuer import Requeuer


class ResourcePolicyPlugin:
    """``lease`` as ``PolicyWriter`` takes it."""

    def __init__(
        self, session: Session, client: Client, ledger: Ledger, clock: Clock, lease: tuple[str, str] | None
    ) -> None:
        self.policies = Policies(clock, kept_on=ledger.nominations.node_of)
        retries = Requeuer(self.policies.waiting, client, clock, stamp=self.policies.since.stamp)
        self.policies.pod_refused.subscribe(retries.refused)
        self.policies.retry_wanted.subscribe(retries.hurry)
        self.policies.capacity_freed.subscribe(retries.freed)
        self.binding = PolicyBinding(client, self.policies, clock)
        self.watches = PolicyWatches(self.policies, session, clock=clock)
        self._writer = PolicyWriter(
            self.policies, client, clock, ready=self.watches.ready.is_set, lease=lease
        )
        self._running = {
            "policies": self.watches.run,
            "policies' promises": self.binding.run,
            "policies' writes": self._writer.run,
            "policies' retries": retries.run,
        }

    def tasks(self) -> list[Task]:
        """What runs for as long as the process."""
        return [(name, run()) for name, run in self._running.items()]

    def pod_read(self, raw: bytes) -> None:
        """A pod was listed, added or changed."""
        self._writer.notice(raw)
