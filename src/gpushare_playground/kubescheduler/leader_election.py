"""The right to schedule: one holder of a Lease, as kube-scheduler elects its leader.

Source: k8s.io/client-go ``tools/leaderelection``. Clocks of machines are not compared: a lease is free if it did not change for
its duration by our own clock. A holder that cannot renew for two thirds of it ends before another may begin.
"""

import json
import logging
import socket
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import Session, segment
from gpushare.kube.clock import Clock

logger = logging.getLogger(__name__)

NAMESPACE: Final = "kube-system"
_FOLDER: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


def identity() -> str:
    """kube-scheduler's name in a lease, a new one at each start: the extender next to it recognises it by its machine's name."""
    return f"{socket.gethostname()}_{uuid4()}"


class LeadLost(Exception):
    """The lease could not be renewed in time: another process may lead now."""


class Lead:
    """The lease ``name`` for ``holder``, for ``duration_s`` seconds at a time."""

    def __init__(self, session: Session, name: str, holder: str, clock: Clock, *, duration_s: float) -> None:
        self._session = session
        self._name = name
        self._holder = holder
        self._clock = clock
        self._duration_s = duration_s
        self._retry_s = duration_s / 7.5
        self._last_version: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Return once the lease is ours."""
        while not await self._try():
            await self._clock.sleep(self._retry_s)
        logger.info("%s leads (lease %s/%s)", self._holder, NAMESPACE, self._name)

    async def renew(self) -> None:
        """Renew it until cancelled; raises ``LeadLost``."""
        renewed_s = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._retry_s)
            if await self._try():
                renewed_s = self._clock.monotonic()
            elif self._clock.monotonic() > renewed_s + self._duration_s * 2 / 3:
                raise LeadLost(f"lease {NAMESPACE}/{self._name} could not be renewed")

    async def _try(self) -> bool:
        try:
            return await self._take()
        except KubeError as error:
            logger.info("lease %s/%s: %s", NAMESPACE, self._name, error)
            return False

    async def _take(self) -> bool:
        path = f"{_FOLDER}/{segment(self._name)}"
        try:
            lease: dict[str, Any] = json.loads(await self._session.request("GET", path))
        except ApiError as error:
            if not error.not_found:
                raise
            made = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": NAMESPACE},
                "spec": self._spec({}),
            }
            await self._session.request("POST", _FOLDER, body=json.dumps(made).encode())
            return True
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") not in (None, "", self._holder) and not self._is_stale(lease):
            return False
        lease["spec"] = self._spec(spec)
        # With the version that was read: of two that consider it free one is rejected.
        await self._session.request("PUT", path, body=json.dumps(lease).encode())
        return True

    def _is_stale(self, lease: dict[str, Any]) -> bool:
        version, now_s = str(lease["metadata"]["resourceVersion"]), self._clock.monotonic()
        if self._last_version[0] != version:
            self._last_version = (version, now_s)
        duration_s = float(lease["spec"].get("leaseDurationSeconds") or self._duration_s)
        return now_s > self._last_version[1] + duration_s

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = f"{datetime.fromtimestamp(self._clock.time_ns() / 1e9, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
        spec = {**before, "leaseDurationSeconds": round(self._duration_s), "renewTime": now}
        if before.get("holderIdentity") != self._holder:
            spec["holderIdentity"] = self._holder
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + bool(before)
        return spec
