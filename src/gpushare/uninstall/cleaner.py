"""Removes what the agents wrote on nodes, once the agents are gone.

The kubelet names a resource for five minutes after its plugin's end, and writes it again whenever it is removed. So
all is removed once, which is all that is ever needed of what is ours alone (description, count of GPUs), and what comes
back is removed again when the kubelet has forgotten it. Until then the node keeps the label of a described node: by it
this process knows the node after a restart of its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

from gpushare.api import names
from gpushare.api.objects import Node
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.client import NodeWriter
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.uninstall.leftovers import advertised, is_described, used_up

logger = logging.getLogger(__name__)
T = TypeVar("T")

_AT_ONCE = 16
_MOST_NAMED = 5


class Cluster(NodeWriter, Protocol):
    """Requests to the API server; every method raises ``KubeError``."""

    async def installed_in(self) -> str | None:
        """The namespace with the agents' DaemonSet, unless it is being deleted."""

    async def count_agents(self) -> int:
        """Agent pods that have not ended."""

    async def list_nodes(self, *, label_selector: str = "") -> list[Node]:
        """All nodes that match the selector."""

    async def remove_slices(self) -> None:
        """Remove the ResourceSlices of our DRA driver."""


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds: check interval; how long agents may take to end; how long kubelets remember a device plugin;
    how long a node must stay clean; overall timeout."""

    look_s: float = 5.0
    agents_s: float = 120.0
    kubelet_s: float = 310.0
    quiet_s: float = 30.0
    patience_s: float = 1800.0


class Outcome(Enum):
    """Result of the clean-up."""

    CLEAN = "nothing is left on the nodes"
    INSTALLED_AGAIN = "node agents have been reinstalled; their nodes are not cleaned up"
    UNFINISHED = "some nodes are not clean"


class _InstalledAgain(Exception):
    """The DaemonSet exists, in the namespace in ``str()``."""


class _OutOfPatience(Exception):
    """The clean-up timed out."""


class Cleaner:
    """One run over a cluster; may be killed and restarted at any time."""

    def __init__(self, cluster: Cluster, clock: Clock, pace: Pace) -> None:
        self._cluster = cluster
        self._clock = clock
        self._pace = pace
        self._deadline_s = clock.monotonic() + pace.patience_s
        self._dirty_s: dict[str, float] = {}
        """Nodes that are not clean yet, and when each last had something to remove."""

    async def run(self) -> Outcome:
        """Clean until nothing reappears, or the agents' DaemonSet exists again."""
        try:
            await self._agents_gone()
            ended_s = self._clock.monotonic()
            await self._insist(self._cluster.remove_slices)
            await self._insist(self._undescribe)
            await self._insist(self._forget_used_up)
            while self._dirty_s:
                # While kubelets remember the plugin, their values are only observed.
                forgotten = self._clock.monotonic() >= ended_s + self._pace.kubelet_s
                await self._pause(
                    self._clock.monotonic() + (self._pace.look_s if forgotten else self._pace.quiet_s / 2)
                )
                await self._insist(partial(self._sweep, clean=forgotten))
        except _InstalledAgain as found:
            logger.info("the agents' DaemonSet is in namespace %s", found)
            return Outcome.INSTALLED_AGAIN
        except _OutOfPatience:
            left = sorted(self._dirty_s)
            more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
            logger.error(
                "not clean after %g s: %s%s; check their kubelets, then remove the label %s from them",
                self._pace.patience_s,
                ", ".join(left[:_MOST_NAMED]) or "agents or the API server",
                more,
                names.LABEL_DESCRIBED,
            )
            return Outcome.UNFINISHED
        return Outcome.CLEAN

    async def _agents_gone(self) -> None:
        """Wait for the agents: a running one would write again what is removed."""
        deadline_s = self._clock.monotonic() + self._pace.agents_s
        while running := await self._insist(self._cluster.count_agents):
            if self._clock.monotonic() >= deadline_s:
                logger.warning(
                    "agents that are still running after %g s (lost nodes?): %d; continuing without them",
                    self._pace.agents_s,
                    running,
                )
                return
            await self._pause(self._clock.monotonic() + self._pace.look_s)

    async def _undescribe(self) -> None:
        found = [node for node in await self._cluster.list_nodes() if is_described(node)]
        self._dirty_s |= dict.fromkeys((node.metadata.name for node in found), self._clock.monotonic())
        logger.info("%d nodes were described by agents", len(found))

        async def clean(node: Node) -> None:
            name = node.metadata.name
            # As a leaving agent does: a count without a device annotation would look like another plugin's.
            if resources := advertised(node):
                await self._cluster.patch_node_capacity(name, dict.fromkeys(resources))
            await self._cluster.set_node_condition(name, names.CONDITION_READY, None)
            await self._cluster.annotate_node(
                name,
                {names.ANN_DEVICES: None, names.ANN_ISOLATION: None},
                labels={names.LABEL_DESCRIBED: "true"},
            )

        await self._each(found, clean)

    async def _forget_used_up(self) -> None:
        """Remove resources with amount 0 from nodes that shared earlier."""

        async def clean(node: Node) -> None:
            await self._cluster.patch_node_capacity(node.metadata.name, dict.fromkeys(used_up(node)))

        nodes = await self._cluster.list_nodes()
        await self._each([node for node in nodes if not is_described(node) and used_up(node)], clean)

    async def _sweep(self, *, clean: bool) -> None:
        now_s = self._clock.monotonic()
        described = await self._cluster.list_nodes(label_selector=names.LABEL_DESCRIBED)
        nodes = {node.metadata.name: node for node in described}
        for gone in [name for name in self._dirty_s if name not in nodes]:
            del self._dirty_s[gone]
        again = [node for name, node in nodes.items() if name in self._dirty_s and advertised(node)]
        self._dirty_s |= dict.fromkeys((node.metadata.name for node in again), now_s)
        quiet = [name for name, seen_s in self._dirty_s.items() if now_s - seen_s >= self._pace.quiet_s]

        async def remove(node: Node) -> None:
            await self._cluster.patch_node_capacity(node.metadata.name, dict.fromkeys(advertised(node)))

        async def leave(node: Node) -> None:
            name = node.metadata.name
            await self._cluster.annotate_node(
                name,
                {names.ANN_DEVICES: None, names.ANN_ISOLATION: None},
                labels={names.LABEL_DESCRIBED: None},
            )
            del self._dirty_s[name]
            logger.info("node %s is clean", name)

        if clean:
            await self._each(again, remove)
        await self._each([nodes[name] for name in quiet], leave)

    async def _each(self, nodes: list[Node], do: Callable[[Node], Awaitable[None]]) -> None:
        """Do it for all nodes, a few concurrently; raises the first failure after trying all."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(node: Node) -> None:
            async with room:
                try:
                    await do(node)
                except ApiError as error:
                    if not error.not_found:
                        raise

        failures = [
            error for error in await asyncio.gather(*map(one, nodes), return_exceptions=True) if error
        ]
        for error in failures:
            raise error

    async def _insist(self, do: Callable[[], Awaitable[T]]) -> T:
        """The result of ``do``, retried as often as needed; raises ``_InstalledAgain`` instead of retrying."""
        backoff = Backoff()
        while True:
            try:
                await self._not_installed()
                return await do()
            except KubeError as error:
                wait_s = backoff.next_s()
                logger.warning("%s; again in %.1f s", error, wait_s)
                await self._rest(wait_s)

    async def _not_installed(self) -> None:
        # In any namespace: nodes do not belong to a release, and a reinstallation may use another namespace.
        namespace = await self._cluster.installed_in()
        if namespace is not None:
            raise _InstalledAgain(namespace)

    async def _pause(self, until_s: float) -> None:
        """Wait, and check periodically whether the agents were installed again."""
        while (left_s := until_s - self._clock.monotonic()) > 0:
            await self._rest(min(left_s, self._pace.look_s))
            await self._insist(self._not_installed)

    async def _rest(self, seconds: float) -> None:
        if self._clock.monotonic() + seconds > self._deadline_s:
            raise _OutOfPatience
        await self._clock.sleep(seconds)
