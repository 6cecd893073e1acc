"""The plugin ``resource-policy``: ResourcePolicies with their watches, what they write, and the pods that they have tried again."""

from collections.abc import Mapping

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
from gpushare.scheduler.server.protocol import BindingArgs


class ResourcePolicyPlugin(Policies):
    """``lease`` as ``PolicyWriter`` takes it."""

    def __init__(
        self, session: Session, client: Client, ledger: Ledger, clock: Clock, lease: tuple[str, str] | None
    ) -> None:
        super().__init__(clock, kept_on=ledger.kept_on)
        retries = Requeuer(self.waiting, client, clock, stamp=self.since.stamp)
        self.pod_refused.subscribe(retries.refused)
        self.retry_wanted.subscribe(retries.hurry)
        self.capacity_freed.subscribe(retries.freed)
        self._binding = PolicyBinding(client, self, clock)
        self.watches = PolicyWatches(self, session, clock=clock)
        self._writer = PolicyWriter(self, client, clock, ready=self.watches.ready.is_set, lease=lease)
        self._running = {
            "policies": self.watches.run,
            "policies' promises": self._binding.run,
            "policies' writes": self._writer.run,
            "policies' retries": retries.run,
        }

    def tasks(self) -> list[Task]:
        """What runs for as long as the process."""
        return [(name, run()) for name, run in self._running.items()]

    async def pre_bind(self, args: BindingArgs) -> Mapping[str, str]:
        """What the pod's unit has written on it; raises ``KubeError``."""
        return await self._binding.pre_bind(args)

    def post_bind(self, args: BindingArgs, error: BaseException | None) -> None:
        """The Binding was answered, or was not written."""
        self._binding.post_bind(args, error)

    def pod_read(self, raw: bytes) -> None:
        """A pod was listed, added or changed."""
        self._writer.notice(raw)
