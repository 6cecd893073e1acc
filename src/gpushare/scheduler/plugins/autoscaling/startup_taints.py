"""Takes the startup taint from nodes that have their GPUs, so that cluster-autoscaler counts them as ready no earlier.

What is due is seen from nodes as they pass by, and nothing is kept: whoever leads next sees the same. Before a write the node is read
once more, and the write holds only for what was read.
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
    """What is asked of the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def list_tainted(self, name: str) -> list[TaintedNode]:
        """The node as it is, or none."""

    async def set_taints(self, name: str, taints: list[dict[str, Any]], *, resource_version: str) -> None:
        """Replace the node's taints."""


class StartupTaints:
    """Which nodes have the taint and could do without."""

    def __init__(self, nodes: Nodes, clock: Clock, leading: Leading) -> None:
        self._nodes = nodes
        self._clock = clock
        self._leading = leading
        self._ready: set[str] = set()
        self._lacking: dict[str, str] = {}
        self._woken = asyncio.Event()
        self._backoff = Backoff(first_s=_LOOK_S)

    def seen(self, name: str, raw: bytes) -> None:
        """A node's JSON passes by."""
        if not has_startup_taint(raw):
            self.gone(name)
            return
        why = lacks(decode_node(raw))
        if why != self._lacking.get(name):
            self._lacking[name] = why
            if why:
                logger.info("node %s keeps its startup taint: %s", name, why, extra=about(node=name))
        if why:
            self._ready.discard(name)
        else:
            self._ready.add(name)
            self._woken.set()

    def gone(self, name: str) -> None:
        """A node is gone, or has no such taint."""
        self._ready.discard(name)
        self._lacking.pop(name, None)

    async def run(self) -> None:
        """Take taints away, for ever; after a failure with longer and longer waits."""
        wait_s = 0.0
        while True:
            if not self._ready:
                await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(wait_s)
            try:
                if await self._leading.leads():
                    for name in sorted(self._ready):
                        await self._take_away(name)
            except KubeError as error:
                wait_s = self._backoff.next_s()
                logger.warning("startup taints: %s; trying again in %.1f s", error, wait_s)
            else:
                self._backoff.reset()
                wait_s = _LOOK_S if self._ready else 0.0

    async def _take_away(self, name: str) -> None:
        # Before the read: what the watch tells while that is answered may be newer, and is not to be lost.
        self._ready.discard(name)
        try:
            await self._take_away_read(name)
        except ApiError as error:
            self._ready.add(name)
            if not (error.conflict or error.not_found):
                raise  # else somebody else wrote: it is looked at again
        except KubeError:
            self._ready.add(name)
            raise

    async def _take_away_read(self, name: str) -> None:
        found = await self._nodes.list_tainted(name)
        node = found[0] if found else None
        taints = [] if node is None else node.spec.taints or []
        left = [one for one in taints if one.get("key") != STARTUP_TAINT]
        if node is None or len(left) == len(taints) or lacks(node):
            return  # the watch tells when that changes
        await self._nodes.set_taints(name, left, resource_version=node.metadata.resource_version)
        about_it = about(node=name)
        logger.info("node %s has its GPUs: the taint %s is gone", name, STARTUP_TAINT, extra=about_it)
