"""Pods of deleted nodes: no kubelet can end them, so they are deleted immediately."""

import logging
from collections.abc import Callable
from typing import Final

from gpushare.kube.client.errors import ApiError
from gpushare_playground.cache import Cache
from gpushare_playground.objects import NODES, PODS, Objects, spec_of

#: How long a node must have been absent, in seconds, before its pods are considered lost.
PATIENCE_S: Final = 40.0
_log = logging.getLogger(__name__)


class PodGc:
    """Reconciles pods whose node does not exist. Keys are pods'."""

    name = "lostnodes"

    def __init__(
        self, objects: Objects, pods: Cache, nodes: Cache, monotonic: Callable[[], float], patience_s: float
    ) -> None:
        self._objects = objects
        self._pods = pods
        self._nodes = nodes
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._missed: dict[str, float] = {}

    async def reconcile(self, key: str) -> float | None:
        """Delete the pod at ``key`` once its node has been absent for long enough."""
        pod = self._pods.get(key)
        node = str(spec_of(pod).get("nodeName") or "") if pod is not None else ""
        if pod is None or not node or self._nodes.get(node) is not None:
            if node:
                self._missed.pop(node, None)
            return None
        now = self._monotonic()
        left_s = self._missed.setdefault(node, now) + self._patience_s - now
        if left_s > 0:
            return left_s
        try:
            await self._objects.get(NODES, "", node)
        except ApiError as error:
            if not error.not_found:
                raise
            _log.info("deleting pod %s: its node %s is gone", key, node)
            await self._objects.delete(PODS, pod, grace_s=0)
        return None
