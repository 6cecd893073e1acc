"""Reads ElasticQuotaTrees and writes their status.

A status shows whether the tree is in force, the reason if it is not, and what the bound pods of each quota hold. It is computed only
from the informers' state, so all replicas compute the same. It is written when it differs from the current status, at most
every two seconds.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import QuotaTreeRecord, decode_quota_tree
from gpushare.api.request.amounts import Amounts, written
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas

logger = logging.getLogger(__name__)

PATH: Final = f"/apis/{names.QUOTA_GROUP}/namespaces/{names.QUOTA_NAMESPACE}/{names.QUOTA_PLURAL}"
#: Minimum seconds between checks for changes, and seconds until a failed write is repeated.
SETTLE_S: Final = 2.0
RETRY_S: Final = 30.0


class Reporter(Protocol):
    """API server requests (``gpushare.kube.client.client.Client``)."""

    async def report_quotas(
        self, namespace: str, name: str, status: Mapping[str, object], *, uid: str
    ) -> None:
        """Set the status; raises ``KubeError``."""


def decode_tree(raw: bytes) -> tuple[str, QuotaTreeRecord]:
    """Decode a tree's JSON; the informer's decoder."""
    record = decode_quota_tree(raw)
    return f"{names.QUOTA_NAMESPACE}/{record.name}", record


def status_of(quotas: Quotas, record: QuotaTreeRecord) -> dict[str, Any]:
    """The current status of a tree."""
    chosen = quotas.chosen()
    if chosen is None or record.uid != chosen.uid:
        older_tree = "" if chosen is None else chosen.name
        message = f"tree {older_tree} is older, and there is one tree; remove one of the two"
        return _status(record, "NotInForce", message, "", [])
    used = [
        {
            "name": quota.name,
            "namespaces": list(quota.namespaces),
            "used": _written(quota.used),
            "min": _written(quota.min),
            "max": _written(quota.max),
        }
        for quota in quotas.books.usage()
    ]
    if record.tree is not None:
        return _status(record, "InForce", "; ".join(record.tree.notes), quotas.root_in_force, used)
    effect = "the previous version stays in force" if quotas.in_use else "no quota is in force"
    return _status(record, "Refused", f"{record.problem}; {effect}", quotas.root_in_force, used)


def _status(
    record: QuotaTreeRecord, state: str, message: str, in_force: str, used: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "observedGeneration": record.generation,
        "state": state,
        "message": message,
        "inForce": in_force,
        "quotas": used,
    }


def _written(amounts: Amounts) -> dict[str, str]:
    return {resource: written(resource, amount) for resource, amount in amounts.items()}


class QuotaReports:
    """Keeps the status of every tree up to date."""

    def __init__(self, quotas: Quotas, api: Reporter, clock: Clock) -> None:
        self._quotas = quotas
        self._api = api
        self._clock = clock
        self._changed = asyncio.Event()
        quotas.changed.subscribe(self._changed.set)

    async def run(self) -> None:
        """Write statuses that differ, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            pause_s = SETTLE_S
            for record in list(self._quotas.trees.values()):
                if not await self._report(record):
                    pause_s = RETRY_S
                    self._changed.set()
            await self._clock.sleep(pause_s)

    async def _report(self, record: QuotaTreeRecord) -> bool:
        status = status_of(self._quotas, record)
        if all(record.status.get(key) == value for key, value in status.items()):
            return True
        try:
            await self._api.report_quotas(names.QUOTA_NAMESPACE, record.name, status, uid=record.uid)
        except KubeError as error:
            if isinstance(error, ApiError) and (error.not_found or error.conflict):
                return True  # deleted or changed: the informer will show it
            logger.warning("ElasticQuotaTree %s: its status cannot be written: %s", record.name, error)
            return False
        return True
