"""Reports the health of GPUs to the kubelet, which shows it in the status of pods that hold them through claims.

Source: ``k8s.io/kubelet/pkg/apis/dra-health``, v1 and v1alpha1. A kubelet opens one stream after registration, and again 5 s after one has
ended. A device that was not reported for ``health_check_timeout_seconds`` (30 by default) is unknown to it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

from gpushare.api.node.device import Device
from gpushare.kube.clock import Clock
from gpushare.kubeletapi import drahealth_pb2 as pb
from gpushare.kubeletapi.drahealth_pb2_grpc import DRAResourceHealthServicer

#: Seconds between two reports without a change.
REPORT_S: Final = 10.0


class DeviceHealth(DRAResourceHealthServicer):
    """The GPUs of ``pool``, as they were last reported by ``update``."""

    def __init__(self, pool: str, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._reasons: dict[str, str] = {}
        self._changed = asyncio.Event()

    def update(self, gpus: Iterable[Device]) -> None:
        """These are the node's GPUs; open streams report what changed at once."""
        reasons = {gpu.offered_as: gpu.reason if gpu.is_faulty else "" for gpu in gpus}
        if reasons != self._reasons:
            self._reasons = reasons
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def NodeWatchResources(  # noqa: N802
        self, request: pb.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """All GPUs, again and again, until the kubelet ends the stream."""
        while True:
            changed = self._changed
            yield self._report()
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await changed.wait()

    def _report(self) -> pb.NodeWatchResourcesResponse:
        now_s = self._clock.time_ns() // 1_000_000_000
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health=pb.UNHEALTHY if reason else pb.HEALTHY,
                    last_updated_time=now_s,
                    message=reason,
                )
                for name, reason in self._reasons.items()
            ]
        )
