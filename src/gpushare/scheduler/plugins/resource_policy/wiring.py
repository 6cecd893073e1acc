"""The plugin ``resource-policy``: ResourcePolicies with their watches, writers and retries."""

from collections.abc import Mapping

from gpushare.scheduler.framework.interface import Handle, Task, Watch
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.prebind import PolicyBinding
from gpushare.scheduler.plugins.resource_policy.status_writer import PolicyWriter
from gpushare.scheduler.plugins.resource_policy.watch import PolicyWatches
from gpushare.scheduler.requeue.requeuer import Requeuer
from gpushare.scheduler.server.protocol import BindingArgs


class ResourcePolicyPlugin(Policies):
    """Policies with the tasks that watch and write them. They have no effect before they were listed."""

    def __init__(self, handle: Handle) -> None:
        client, clock = handle.client, handle.clock
        super().__init__(clock, kept_on=handle.cache.ledger.nominations.node_of)
        retries = Requeuer(self.waiting, client, clock, stamp=self.since.stamp)
        self.pod_refused.subscribe(retries.refused)
        self.retry_wanted.subscribe(retries.hurry)
        self.capacity_freed.subscribe(retries.freed)
        self._binding = PolicyBinding(client, self, clock)
        self._watches = PolicyWatches(self, handle.session, clock=clock)
        self._writer = PolicyWriter(self, client, clock, ready=self._watches.ready.is_set, lease=handle.lease)
        self._running = {
            "policies": self._watches.run,
            "policies' promises": self._binding.run,
            "policies' writes": self._writer.run,
            "policies' retries": retries.run,
        }

    def tasks(self) -> list[Task]:
        """The tasks that run as long as the process."""
        return [(name, run()) for name, run in self._running.items()]

    def watched(self) -> Mapping[str, Watch]:
        """The watches by kind; empty if the cluster does not have the kind ResourcePolicy."""
        return self._watches.followed()

    def not_listed(self) -> str:
        """The kind that was not listed yet, in words; empty when it was."""
        return "" if self._watches.ready.is_set() else "ResourcePolicies"

    async def relist(self) -> None:
        """List everything again."""
        await self._watches.relist()

    async def pre_bind(self, args: BindingArgs) -> Mapping[str, str]:
        """The annotations of the pod's unit; raises ``KubeError``."""
        return await self._binding.pre_bind(args)

    def post_bind(self, args: BindingArgs, error: BaseException | None) -> None:
        """The Binding was written, or ``error`` says why not."""
        self._binding.post_bind(args, error)

    def pod_read(self, raw: bytes) -> None:
        """A pod was listed, added or changed."""
        self._writer.notice(raw)
