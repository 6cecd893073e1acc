"""Removes the startup taint from nodes once they have their GPUs, so that cluster-autoscaler does not count them as ready before.

The work follows from the watched nodes, and nothing is persisted: a new leader sees the same nodes. Before a write the node is read again,
and the write only succeeds if the node has not changed since (``resourceVersion``).
"""

import asyncio
import logging
from typing import Any, Final, Protocol

from gpushare.api.node.hosting import TaintedNode
from gpushare.api.node.startup_taint import STARTUP_TAINT, has_startup_taint, lacks
from gpushare.api.objects import decode_node
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.process.log_setup import about
from gpushare.scheduler.leader.lease import Leading

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0


class Nodes(Protocol):
    """Calls of the API server for nodes (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def list_tainted(self, name: str) -> list[TaintedNode]:
        """The current node in a list, which is empty if the node does not exist."""

    async def set_taints(self, name: str, taints: list[dict[str, Any]], *, resource_version: str) -> None:
        """Replace the node's taints."""


class StartupTaints:
    """Finds nodes that have the taint and no longer need it, and removes it."""

    def __init__(self, nodes: Nodes, clock: Clock, leading: Leading) -> None:
        self._nodes = nodes
        self._clock = clock
        self._leading = leading
        self._ready: set[str] = set()
        self._lacking: dict[str, str] = {}
        self._woken = asyncio.Event()
        self._backoff = Backoff(first_s=_LOOK_S)

    def node_seen(self, name: str, raw: bytes) -> None:
        """A node was listed, added or changed; ``raw`` is its JSON."""
        if not has_startup_taint(raw):
            self.forget(name)
            return
        reason = lacks(decode_node(raw))
        if reason != self._lacking.get(name):
            self._lacking[name] = reason
            if reason:
                logger.info("node %s keeps its startup taint: %s", name, reason, extra=about(node=name))
        if reason:
            self._ready.discard(name)
        else:
            self._ready.add(name)
            self._woken.set()

    def forget(self, name: str) -> None:
        """A node was deleted, or does not have the taint."""
        self._ready.discard(name)
        self._lacking.pop(name, None)

    async def run(self) -> None:
        """Remove taints until cancelled, with exponential backoff after failures."""
        wait_s = 0.0
        while True:
            if not self._ready:
                await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(wait_s)
            try:
                if await self._leading.leads():
                    await self._remove_taints()
            except KubeError as error:
                wait_s = self._backoff.next_s()
                logger.warning("startup taints: %s; trying again in %.1f s", error, wait_s)
            else:
                self._backoff.reset()
                wait_s = _LOOK_S if self._ready else 0.0

    async def _remove_taints(self) -> None:
        """Raises the last refusal of the API server only after all nodes, as it may concern one of them."""
        refusal: ApiError | None = None
        for name in sorted(self._ready):
            try:
                await self._remove_taint(name)
            except ApiError as error:
                if error.passing:
                    raise
                refusal = error
        if refusal is not None:
            raise refusal

    async def _remove_taint(self, name: str) -> None:
        # Before the read: the watch may add the node again in the meantime, and that must not be lost.
        self._ready.discard(name)
        try:
            await self._read_and_remove_taint(name)
        except KubeError as error:
            self._ready.add(name)
            if not (isinstance(error, ApiError) and (error.conflict or error.not_found)):
                raise  # otherwise another client changed or deleted the node, and it is retried

    async def _read_and_remove_taint(self, name: str) -> None:
        nodes = await self._nodes.list_tainted(name)
        node = nodes[0] if nodes else None
        taints = [] if node is None else node.spec.taints or []
        remaining = [taint for taint in taints if taint.get("key") != STARTUP_TAINT]
        if node is None or len(remaining) == len(taints) or lacks(node):
            return  # the watch reports when that changes
        await self._nodes.set_taints(name, remaining, resource_version=node.metadata.resource_version)
        log_fields = about(node=name)
        logger.info("node %s has its GPUs: the taint %s is gone", name, STARTUP_TAINT, extra=log_fields)
