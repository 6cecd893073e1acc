"""Capacity on a node that is reserved for a pending pod until its victims have ended, like a pod's ``nominatedNodeName``.

The amounts are counted on the GPUs themselves, next to what pods hold; this module knows for which pod.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from msgspec import structs

from gpushare.api.allocation.allocation import GpuShare, allocate_over
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger.node_book import NodeBook
from gpushare.ledger.preemption.victims import Plan

SuspendedNominations = dict[str, tuple[str, tuple[GpuShare, ...]]]
"""By the pod's UID: the node, and the shares on it."""


class Nominations:
    """Nominations on the nodes of ``books``, by the UID of the pod (by a key for a pod that is being moved).

    ``changed`` is called for each GPU (node and UUID) whose nominated amount changed, ``recounted`` for each node whose number
    of pods changed, ``notify`` with the UID of each pod whose nomination begins or ends.
    """

    def __init__(
        self,
        books: dict[str, NodeBook],
        changed: Callable[[NodeBook, str], None],
        recounted: Callable[[NodeBook], None],
        notify: Callable[[str], None],
    ) -> None:
        self._books = books
        self._changed = changed
        self._recounted = recounted
        self._notify = notify
        self._nominated: SuspendedNominations = {}

    def add(self, uid: str, request: Request, plan: Plan) -> None:
        """Nominate what ``plan`` frees, together with what is free already. Replaces an earlier nomination."""
        self.remove(uid)
        devices = self._books[plan.node].devices
        assert devices is not None
        shares = allocate_over(devices, [devices.devices[row] for row in plan.rows], request).gpus
        self.restore({uid: (plan.node, shares)})

    def remove(self, uid: str) -> None:
        """End the pod's nomination, if it has one."""
        nomination = self._nominated.pop(uid, None)
        if nomination is not None:
            self._count(*nomination, -1)
            self._notify(uid)

    def remove_changed(self, node: str, before: NodeDevices | None, after: NodeDevices | None) -> None:
        """End nominations on GPUs of ``node`` that are gone or have other room, and all of them if the node may have more room now."""
        same: set[str] = set()
        if before is not None and after is not None and not _may_have_more(before, after):
            known = set(map(_room_of, before.devices))
            same = {device.uuid for device in after.devices if _room_of(device) in known}
        on_node = [(uid, shares) for uid, (name, shares) in self._nominated.items() if name == node]
        for uid, shares in on_node:
            if any(share.uuid not in same for share in shares):
                self.remove(uid)

    def suspend(self, uids: Iterable[str]) -> SuspendedNominations:
        """End these pods' nominations until ``restore``."""
        suspended = {uid: nomination for uid in uids if (nomination := self._nominated.get(uid)) is not None}
        for uid in suspended:
            self.remove(uid)
        return suspended

    def restore(self, suspended: SuspendedNominations) -> None:
        """Restore what ``suspend`` returned; nothing else may have changed since."""
        for uid, (node, shares) in suspended.items():
            self._nominated[uid] = (node, shares)
            self._count(node, shares, 1)
            self._notify(uid)

    def node_of(self, uid: str) -> str:
        """The node on which the pod has a nomination; empty for none."""
        nomination = self._nominated.get(uid)
        return "" if nomination is None else nomination[0]

    def on_node(self, node: str) -> dict[str, tuple[GpuShare, ...]]:
        """Nominations on the node, by UID."""
        book = self._books.get(node)
        if book is None or not book.nominated_memory_pods + book.nominated_core_pods:
            return {}
        return {uid: shares for uid, (name, shares) in self._nominated.items() if name == node}

    def all(self) -> SuspendedNominations:
        """All nominations."""
        return dict(self._nominated)

    @contextmanager
    def as_free_for(self, uid: str) -> Iterator[None]:
        """Within the context, what is nominated for the pod counts as free. Nothing is notified, because it is undone immediately."""
        nomination = self._nominated.get(uid)
        if nomination is None:
            yield
            return
        self._count(*nomination, -1)
        try:
            yield
        finally:
            self._count(*nomination, 1)

    def _count(self, node: str, shares: tuple[GpuShare, ...], step: int) -> None:
        book = self._books[node]
        # The pod counts as present: as one of its kind, and against the node's pod cap.
        if any(share.core_percent for share in shares):
            book.nominated_core_pods += step
        else:
            book.nominated_memory_pods += step
        self._recounted(book)
        for share in shares:
            gpu = book.gpus[share.uuid]
            gpu.nominated_mib += step * share.mib
            gpu.nominated_core += step * share.core_percent
            gpu.nominated_pods += step
            self._changed(book, share.uuid)


def _room_of(device: Device) -> tuple[str, int, int, bool, int]:
    """The GPU, and what decides how much it may hold."""
    return device.uuid, device.index, device.total_mib, device.in_service, device.foreign_mib


def _may_have_more(before: NodeDevices, after: NodeDevices) -> bool:
    """Whether evictions on the node might now be unnecessary, or the node is used in another way."""
    alike = structs.replace(after, devices=before.devices, placement=before.placement, near=before.near)
    if alike != before:
        return True
    known = {device.uuid: device for device in before.devices}
    return any(
        (old := known.get(new.uuid)) is None
        or new.in_service > old.in_service
        or new.total_mib > old.total_mib
        or new.foreign_mib < old.foreign_mib
        for new in after.devices
    )
