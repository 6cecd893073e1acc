"""The plugin ``elastic-quota``: watches ElasticQuotaTrees, admits pods by them, and writes the charges into their status."""

from collections.abc import Mapping

from gpushare.scheduler.framework.interface import DecodePodFn, Handle, Task, Watch
from gpushare.scheduler.plugins.elastic_quota.counted_pods import CountedPods, counting_decoder
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas
from gpushare.scheduler.plugins.elastic_quota.watch import QuotaWatch


class ElasticQuotas(Quotas):
    """Quotas (``PreFilter``, ``FilterFits``, ``Permit``, ``Reserve``) with their watches."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle.cache, handle.recorder)
        self.retry_wanted.subscribe(handle.retry)
        self._watch = QuotaWatch(handle.session, handle.client, self, handle.clock)
        self._pods = CountedPods(self, handle.relist_pods, self._watch.read)

    def tasks(self) -> list[Task]:
        """The tasks that run as long as the process."""
        return [("quotas", self._watch.run()), ("quotas' pods", self._pods.run())]

    def watched(self) -> Mapping[str, Watch]:
        """The watch by its kind."""
        return {"elasticquotatrees": self._watch}

    def not_listed(self) -> str:
        """The kind that was not listed yet, in words; empty when it was."""
        return "" if self._watch.read.is_set() else "elastic quotas"

    async def relist(self) -> None:
        """List the trees again."""
        await self._watch.relist()

    async def before_pods(self) -> None:
        """Return when the trees were listed."""
        await self._pods.begin()

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """``decode``, extended by pods without a GPU in namespaces where quotas count them."""
        return counting_decoder(self, decode)
