"""The cluster as the page shows it: the scheduler's cache and ledger, fed by the dashboard's watches, and the board that follows them."""

import asyncio
from collections.abc import Collection
from typing import Final

from gpushare.api.node.device import Placement
from gpushare.api.objects import ObjectReference
from gpushare.dashboard.data.claims import ClaimPod, Claims
from gpushare.dashboard.data.heatmap import Board
from gpushare.kube.event_recorder import EventType
from gpushare.ledger import Ledger
from gpushare.ledger.results import Held
from gpushare.scheduler.cache.cache import ClusterCache, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord

#: Nodes updated before yielding to the event loop: some ten milliseconds.
_NODES_PER_TURN: Final = 128


class _NoEvents:
    """Discards events: the scheduler records the same ones."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: EventType,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: str = "each",
    ) -> None:
        """Do nothing."""


class Cluster:
    """Fed by informers through ``pods`` and ``seen_nodes``; ``refresh`` brings the board up to date."""

    def __init__(self, node_policy: Placement = Placement.BINPACK) -> None:
        self.ledger = Ledger(node_policy=node_policy)
        self.view = ClusterCache(self.ledger, _NoEvents(), lambda uid: None)
        self.board = Board()
        self.uids: dict[str, str] = {}
        """UIDs of pods that are pending or hold a share, by ``NAMESPACE/NAME``."""
        self.nodes: set[str] = set()
        """Names of the nodes that have GPUs, or pods with a share."""
        self.labels: dict[str, dict[str, str]] = {}
        """Labels of nodes that have GPUs."""
        self.claims = Claims(self.ledger, self.touch)
        self.pods = _Pods(self)
        self.seen_nodes = _Nodes(self)
        self._changed: set[str] = set()

    def pending(self) -> int:
        """Number of pending pods that request a GPU, or have a claim on one."""
        return len(self.waiting()) + sum(1 for _ in self.claims.waiting())

    def held(self, uid: str) -> Held | None:
        """The pod's allocation in the ledger."""
        return self.ledger.held(uid)

    def gpu_uuids(self, name: str) -> list[str]:
        """UUIDs of the node's GPUs, in the board's order."""
        node = self.ledger.node(name)
        return [] if node is None else [device.uuid for device in node.devices]

    def unit_mib(self) -> int:
        """The memory unit of all nodes that share memory; 0 if their units differ or there are no such nodes."""
        described = (self.ledger.node(name) for name in self.nodes)
        units = {node.unit.mib for node in described if node is not None and node.mode.shares_memory}
        return units.pop() if len(units) == 1 else 0

    def by_interest(self) -> list[str]:
        """Names of ``nodes``: first those with allocations, then the others, each sorted."""
        allocated = self.board.plane("allocated_mib").sum(axis=1)

        def key(name: str) -> tuple[bool, str]:
            slot = self.board.slot(name)
            return slot is None or not allocated[slot], name

        return sorted(self.nodes, key=key)

    def waiting(self) -> Collection[PodRecord]:
        """Pending pods that request a GPU."""
        return self.view.waiting.values()

    async def refresh(self) -> None:
        """Bring the board up to date with all changes."""
        while self._changed:
            for _ in range(min(_NODES_PER_TURN, len(self._changed))):
                self._show(self._changed.pop())
            await asyncio.sleep(0)

    def touch(self, *names: str) -> None:
        """Mark nodes as changed; empty names are ignored."""
        self._changed.update(filter(None, names))

    def _show(self, name: str) -> None:
        node = self.ledger.node(name)
        # Nodes without GPUs, which are many in some clusters, are not shown.
        if node is None or not node.devices:
            self.nodes.discard(name)
            self.board.remove(name)
            return
        self.nodes.add(name)
        self.board.put(node, self.ledger.usage(name), cordoned=name in self.view.cordoned)


class _Pods:
    """Handles pods of the informer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: PodRecord | ClaimPod) -> None:
        """A pod was added or changed."""
        cluster = self._cluster
        if isinstance(item, ClaimPod):
            cluster.claims.pods[item.pod] = item
            return
        # A pod that has ended no longer counts as one with claims.
        cluster.claims.pods.pop(item.pod, None)
        before = cluster.held(item.uid)
        if item.finished:
            if cluster.uids.get(item.pod) == item.uid:
                del cluster.uids[item.pod]
        elif not item.bystander:
            cluster.uids[item.pod] = item.uid
        cluster.view.upsert_pod(item)
        cluster.touch(item.node, "" if before is None else before.node)

    def remove(self, key: str, last: PodRecord | ClaimPod) -> None:
        """A pod was deleted."""
        cluster = self._cluster
        cluster.claims.pods.pop(key, None)
        if isinstance(last, ClaimPod):
            return
        before = cluster.held(last.uid)
        if cluster.uids.get(last.pod) == last.uid:
            del cluster.uids[last.pod]
        cluster.view.remove_pod(last)
        cluster.touch(last.node, "" if before is None else before.node)


class _Nodes:
    """Handles nodes of the informer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: NodeRecord) -> None:
        """A node was added or changed."""
        name = item.devices.name
        # Heartbeats change no devices.
        unchanged = self._cluster.ledger.node(name) == item.devices
        same_cordon = (name in self._cluster.view.cordoned) == (item.cordoned is not None)
        if item.devices.devices:
            self._cluster.labels[name] = item.labels or {}
        else:
            self._cluster.labels.pop(name, None)
        self._cluster.view.upsert_node(item)
        if not unchanged:
            self._cluster.claims.node_changed(name)
        if not (unchanged and same_cordon):
            self._cluster.touch(name)

    def remove(self, key: str, last: NodeRecord) -> None:
        """A node was deleted."""
        self._cluster.view.remove_node(key)
        self._cluster.labels.pop(key, None)
        self._cluster.touch(key)
