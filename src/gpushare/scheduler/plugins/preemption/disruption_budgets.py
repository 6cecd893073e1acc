"""PodDisruptionBudgets that cover possible victims: read from the API server on demand, at most once per decision."""

import asyncio
from collections.abc import Collection
from typing import Protocol

from gpushare.api.disruption import DisruptionBudget
from gpushare.api.objects import Pod
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.cache.cache import ClusterCache


class BudgetReader(Protocol):
    """Reads from the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The current pod."""

    async def list_budgets(self) -> list[DisruptionBudget]:
        """Every PodDisruptionBudget."""


class Evictor(BudgetReader, Protocol):
    """Calls of the API server for preemption (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Evict the pod; the API server enforces its PodDisruptionBudgets."""

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        """Set the pod's ``nominatedNodeName``."""


class BudgetReading:
    """Budgets and the pods that they may cover, cached from the first read."""

    def __init__(self, view: ClusterCache, api: BudgetReader) -> None:
        self._view = view
        self._api = api
        self._budgets: list[DisruptionBudget] | None = None
        self._pods: dict[str, Pod | None] = {}

    async def budgets(self) -> list[DisruptionBudget]:
        """Every PodDisruptionBudget."""
        if self._budgets is None:
            self._budgets = await self._api.list_budgets()
        return self._budgets

    async def pods(self, uids: Collection[str]) -> list[Pod]:
        """The pods of ``uids``, in this order, that a budget may cover and that still exist under these UIDs."""
        namespaces = {budget.metadata.namespace for budget in await self.budgets()}
        keys = {
            uid: record.pod
            for uid in uids
            if (record := self._view.with_node(uid)) is not None
            and record.pod.partition("/")[0] in namespaces
        }
        await asyncio.gather(*(self._read(uid, key) for uid, key in keys.items() if uid not in self._pods))
        return [pod for uid in uids if (pod := self._pods.get(uid)) is not None]

    async def _read(self, uid: str, key: str) -> None:
        namespace, _, name = key.partition("/")
        try:
            pod = await self._api.get_pod(namespace, name)
        except ApiError as error:
            if not error.not_found:
                raise
            self._pods[uid] = None
        else:
            self._pods[uid] = pod if pod.metadata.uid == uid else None
