"""Capacity on a node that is reserved for a pending pod until others have ended there, as a pod's ``nominatedNodeName`` is.

It is counted on the GPUs themselves, beside what pods hold; here is for whom.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from msgspec import structs

from gpushare.api.allocation.allocation import GpuShare, allocate_over
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger.node_book import NodeBook
from gpushare.ledger.preemption.victims import Plan

SuspendedNominations = dict[str, tuple[str, tuple[GpuShare, ...]]]
"""By the UID of its pod: the node, and the shares there."""


class Nominations:
    """What is nominated on the nodes of ``books``, by the UID of the pod (a pod that moves has a key instead).

    ``changed`` is called for each GPU (node and UUID) on which that has changed, ``recounted`` for each node whose number of pods has
    changed by it; ``notify`` with the UID of each pod for which a nomination begins or ends.
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
        """Nominate what ``plan`` frees, and what is free there, in place of what was nominated before."""
        self.remove(uid)
        devices = self._books[plan.node].devices
        assert devices is not None
        shares = allocate_over(devices, [devices.devices[row] for row in plan.rows], request).gpus
        self.restore({uid: (plan.node, shares)})

    def remove(self, uid: str) -> None:
        """End the pod's nomination, if it has one."""
        found = self._nominated.pop(uid, None)
        if found is not None:
            self._count(*found, -1)
            self._notify(uid)

    def remove_changed(self, node: str, before: NodeDevices | None, after: NodeDevices | None) -> None:
        """End nominations on GPUs of ``node`` that are gone or others than before, and where it may have come to have more room."""
        same: set[str] = set()
        if before is not None and after is not None and not _may_have_more(before, after):
            same = {device.uuid for device in after.devices if device in before.devices}
        on_node = [(uid, shares) for uid, (name, shares) in self._nominated.items() if name == node]
        for uid, shares in on_node:
            if any(share.uuid not in same for share in shares):
                self.remove(uid)

    def suspend(self, uids: Iterable[str]) -> SuspendedNominations:
        """End these pods' nominations until ``restore``."""
        suspended = {uid: found for uid in uids if (found := self._nominated.get(uid)) is not None}
        for uid in suspended:
            self.remove(uid)
        return suspended

    def restore(self, suspended: SuspendedNominations) -> None:
        """Nominate again what ``suspend`` returned; nothing else may have changed since."""
        for uid, (node, shares) in suspended.items():
            self._nominated[uid] = (node, shares)
            self._count(node, shares, 1)
            self._notify(uid)

    def node_of(self, uid: str) -> str:
        """The node on which something is nominated for the pod; empty for none."""
        found = self._nominated.get(uid)
        return "" if found is None else found[0]

    def on_node(self, node: str) -> dict[str, tuple[GpuShare, ...]]:
        """By UID what is nominated on the node."""
        book = self._books.get(node)
        if book is None or not book.kept_memory + book.kept_core:
            return {}
        return {uid: shares for uid, (name, shares) in self._nominated.items() if name == node}

    def all(self) -> SuspendedNominations:
        """All nominations."""
        return dict(self._nominated)

    @contextmanager
    def as_free_for(self, uid: str) -> Iterator[None]:
        """Within, what is nominated for the pod counts as free. Nothing is notified: it ends before anything else looks."""
        found = self._nominated.get(uid)
        if found is None:
            yield
            return
        self._count(*found, -1)
        try:
            yield
        finally:
            self._count(*found, 1)

    def _count(self, node: str, shares: tuple[GpuShare, ...], step: int) -> None:
        book = self._books[node]
        # The pod is as good as there: of a kind, and one more at the node's cap.
        if any(share.core_percent for share in shares):
            book.kept_core += step
        else:
            book.kept_memory += step
        self._recounted(book)
        for share in shares:
            gpu = book.gpus[share.uuid]
            gpu.kept_mib += step * share.mib
            gpu.kept_core += step * share.core_percent
            gpu.kept_pods += step
            self._changed(book, share.uuid)


def _may_have_more(before: NodeDevices, after: NodeDevices) -> bool:
    """Whether somebody might end there in vain now, or whether the node is used for something else."""
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
