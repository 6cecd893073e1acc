"""The cluster as the page shows it: the scheduler's own view and ledger over our own watches, and the board that follows them."""

import asyncio
from collections.abc import Collection
from typing import Final

from gpushare.api.node.device import Placement
from gpushare.api.objects import ObjectReference
from gpushare.dashboard.data.heatmap import Board
from gpushare.kube.event_recorder import EventType
from gpushare.ledger import Ledger
from gpushare.ledger.results import Held
from gpushare.scheduler.cache.cache import ClusterCache, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord

#: Nodes that are shown anew before others get their turn: some ten milliseconds.
_TURN: Final = 128


class _Untold:
    """Events are the scheduler's business: it tells of the same things."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: EventType,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        telling: str = "each",
    ) -> None:
        """Nothing."""


class Cluster:
    """Fed by informers through ``pods`` and ``nodes``; ``refresh`` then brings the board up to date."""

    def __init__(self, node_policy: Placement = Placement.BINPACK) -> None:
        self.ledger = Ledger(node_policy=node_policy)
        self.view = ClusterCache(self.ledger, _Untold(), lambda uid: None)
        self.board = Board()
        self.uids: dict[str, str] = {}
        """UIDs of pods that wait or hold something, by ``NAMESPACE/NAME``."""
        self.nodes: set[str] = set()
        """Names of the nodes that have GPUs, or pods with a share."""
        self.labels: dict[str, dict[str, str]] = {}
        """Those of nodes that have GPUs."""
        self.pods = _Pods(self)
        self.seen_nodes = _Nodes(self)
        self._changed: set[str] = set()

    def held(self, uid: str) -> Held | None:
        """What the pod holds."""
        return self.ledger.held(uid)

    def gpu_uuids(self, name: str) -> list[str]:
        """The node's GPUs in the order in which the board shows them."""
        node = self.ledger.node(name)
        return [] if node is None else [device.uuid for device in node.devices]

    def unit_mib(self) -> int:
        """What a unit is on all nodes that share memory; 0 where they differ, or there are none."""
        described = (self.ledger.node(name) for name in self.nodes)
        units = {node.unit.mib for node in described if node is not None and node.mode.shares_memory}
        return units.pop() if len(units) == 1 else 0

    def by_interest(self) -> list[str]:
        """The names of ``nodes``: first those of which pods hold something, each part in order."""
        given = self.board.plane("allocated_mib").sum(axis=1)

        def key(name: str) -> tuple[bool, str]:
            slot = self.board.slot(name)
            return slot is None or not given[slot], name

        return sorted(self.nodes, key=key)

    def waiting(self) -> Collection[PodRecord]:
        """Pods without a node that ask for a GPU."""
        return self.view.waiting.values()

    async def refresh(self) -> None:
        """Bring the board up to date with what was seen."""
        while self._changed:
            for _ in range(min(_TURN, len(self._changed))):
                self._show(self._changed.pop())
            await asyncio.sleep(0)

    def touch(self, *names: str) -> None:
        """Something about these nodes has changed; empty names are passed over."""
        self._changed.update(filter(None, names))

    def _show(self, name: str) -> None:
        node = self.ledger.node(name)
        # Nodes without GPUs are many in some clusters, and nothing to look at.
        if node is None or not node.devices:
            self.nodes.discard(name)
            self.board.remove(name)
            return
        self.nodes.add(name)
        self.board.put(node, self.ledger.usage(name))


class _Pods:
    """Feeds the informer's pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: PodRecord) -> None:
        """A pod was added or changed."""
        cluster = self._cluster
        before = cluster.held(item.uid)
        if item.finished:
            if cluster.uids.get(item.pod) == item.uid:
                del cluster.uids[item.pod]
        elif not item.bystander:
            cluster.uids[item.pod] = item.uid
        cluster.view.upsert_pod(item)
        cluster.touch(item.node, "" if before is None else before.node)

    def remove(self, key: str, last: PodRecord) -> None:
        """A pod is gone."""
        cluster = self._cluster
        before = cluster.held(last.uid)
        if cluster.uids.get(last.pod) == last.uid:
            del cluster.uids[last.pod]
        cluster.view.remove_pod(last)
        cluster.touch(last.node, "" if before is None else before.node)


class _Nodes:
    """Feeds the informer's nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: NodeRecord) -> None:
        """A node was added or changed."""
        name = item.devices.name
        # Heartbeats change nothing for us.
        known = self._cluster.ledger.node(name) == item.devices
        if item.devices.devices:
            self._cluster.labels[name] = item.labels or {}
        else:
            self._cluster.labels.pop(name, None)
        self._cluster.view.upsert_node(item)
        if not known:
            self._cluster.touch(name)

    def remove(self, key: str, last: NodeRecord) -> None:
        """A node is gone."""
        self._cluster.view.remove_node(key)
        self._cluster.labels.pop(key, None)
        self._cluster.touch(key)
