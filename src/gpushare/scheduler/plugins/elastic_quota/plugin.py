"""The plugin ``elastic-quota``: watches ElasticQuotaTrees, admits pods by them, and writes the charges into their status."""

from collections.abc import Mapping

from gpushare.kube.watch.informer import Informer
from gpushare.scheduler.framework.interface import DecodePodFn, Handle, Task, Watch
from gpushare.scheduler.leader.resync import read_or_go_on
from gpushare.scheduler.plugins.elastic_quota.counted_pods import CountedPods, counting_decoder
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas
from gpushare.scheduler.plugins.elastic_quota.watch import PATH, QuotaReports, decode_tree


class ElasticQuotas(Quotas):
    """Quotas (``PreFilter``, ``FilterFits``, ``Permit``, ``Reserve``) with their watches."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle.cache, handle.recorder)
        self.retry_wanted.subscribe(handle.retry)
        self._watch = Informer(
            handle.session, PATH, decode_tree, self, clock=handle.clock, may_be_absent=True
        )
        self._reports = QuotaReports(self, handle.client, handle.clock)
        self._pods = CountedPods(self, handle.relist_pods, self._watch.synced)

    def tasks(self) -> list[Task]:
        """The tasks that run as long as the process."""
        return [
            ("quotas", self._watch.run()),
            ("quotas' statuses", self._reports.run()),
            ("quotas' pods", self._pods.run()),
        ]

    def watched(self) -> Mapping[str, Watch]:
        """The watch by its kind."""
        return {"elasticquotatrees": self._watch}

    def not_listed(self) -> str:
        """The kind that was not listed yet, in words; empty when it was."""
        return "" if self._watch.synced.is_set() else "elastic quotas"

    async def relist(self) -> None:
        """List the trees again; return when that is done, or cannot be done in time."""
        await read_or_go_on("elastic quotas", self._watch)

    async def before_pods(self) -> None:
        """Return when the trees were listed."""
        await self._pods.begin()

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """``decode``, extended by pods without a GPU in namespaces where quotas count them."""
        return counting_decoder(self, decode)
