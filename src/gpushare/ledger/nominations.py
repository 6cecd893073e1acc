"""Room on a node that is kept for a pod that waits until others have ended: nobody else gets it.

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
"""Room that was kept, by the UID of its pod: the node, and the shares there."""


class KeptRoom:
    """What is kept on the nodes of ``books``.

    ``changed`` is told of each GPU (node and UUID) on which that has changed, ``recounted`` of each node that has come to have
    another number of pods so; ``told`` of the UID of each pod for which something is kept, or is not any more.
    """

    def __init__(
        self,
        books: dict[str, NodeBook],
        changed: Callable[[NodeBook, str], None],
        recounted: Callable[[NodeBook], None],
        told: Callable[[str], None],
    ) -> None:
        self._books = books
        self._changed = changed
        self._recounted = recounted
        self._told = told
        self._kept: SuspendedNominations = {}

    def keep(self, uid: str, request: Request, plan: Plan) -> None:
        """Keep what ``plan`` frees, and what is free there, in place of what was kept before."""
        self.unkeep(uid)
        devices = self._books[plan.node].devices
        assert devices is not None
        shares = allocate_over(devices, [devices.devices[row] for row in plan.rows], request).gpus
        self.keep_again({uid: (plan.node, shares)})

    def unkeep(self, uid: str) -> None:
        """Keep nothing more for the pod, if anything was."""
        kept = self._kept.pop(uid, None)
        if kept is not None:
            self._count(*kept, -1)
            self._told(uid)

    def unkeep_changed(self, node: str, before: NodeDevices | None, after: NodeDevices | None) -> None:
        """Keep nothing more on GPUs of ``node`` that are gone or others than before, nor where it may have come to have more room."""
        same: set[str] = set()
        if before is not None and after is not None and not _may_have_more(before, after):
            same = {device.uuid for device in after.devices if device in before.devices}
        on_node = [(uid, shares) for uid, (name, shares) in self._kept.items() if name == node]
        for uid, shares in on_node:
            if any(share.uuid not in same for share in shares):
                self.unkeep(uid)

    def lift(self, uids: Iterable[str]) -> SuspendedNominations:
        """Keep nothing for these pods; gives what ``keep_again`` takes."""
        lifted = {uid: kept for uid in uids if (kept := self._kept.get(uid)) is not None}
        for uid in lifted:
            self.unkeep(uid)
        return lifted

    def keep_again(self, lifted: SuspendedNominations) -> None:
        """Keep what ``lift`` gave; nothing else may have changed since."""
        for uid, (node, shares) in lifted.items():
            self._kept[uid] = (node, shares)
            self._count(node, shares, 1)
            self._told(uid)

    def on(self, uid: str) -> str:
        """The node on which room is kept for the pod; empty where none is."""
        kept = self._kept.get(uid)
        return "" if kept is None else kept[0]

    def there(self, node: str) -> dict[str, tuple[GpuShare, ...]]:
        """By UID what is kept on the node."""
        book = self._books.get(node)
        if book is None or not book.kept_memory + book.kept_core:
            return {}
        return {uid: shares for uid, (name, shares) in self._kept.items() if name == node}

    def all(self) -> SuspendedNominations:
        """All that is kept now."""
        return dict(self._kept)

    @contextmanager
    def as_its_own(self, uid: str) -> Iterator[None]:
        """Within, what is kept for the pod counts as free. Nobody is told: it ends before anybody else looks."""
        kept = self._kept.get(uid)
        if kept is None:
            yield
            return
        self._count(*kept, -1)
        try:
            yield
        finally:
            self._count(*kept, 1)

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
