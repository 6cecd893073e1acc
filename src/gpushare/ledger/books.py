"""The nodes with what is held on them: plain integers GPU by GPU (``node_book``), and the arrays that are a copy of the figures.

Every change goes through ``Books``, so that books and arrays agree whenever a method returns.
"""

from collections.abc import Callable

from gpushare.api.node.device import NodeDevices
from gpushare.ledger.arrays import Found, Index
from gpushare.ledger.columns import NO_NODE, Columns
from gpushare.ledger.fit.reasons import standing_refusals, unhealthy_text
from gpushare.ledger.fit.refusals import Refusals
from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI, GpuBook, NodeBook, same_gpus
from gpushare.ledger.placement.topology_sets import Nearness
from gpushare.ledger.results import Held


class Books:
    """What nodes have and pods hold of it. ``held`` finds what a pod (UID) holds."""

    def __init__(self, held: Callable[[str], Held]) -> None:
        self.held = held
        self.nodes: dict[str, NodeBook] = {}
        """Every node that is known, or of which a pod holds something."""
        self.column_of = Index(NO_NODE)
        self.columns = Columns()
        self.refusals = Refusals(self.columns)
        self.near = Nearness()
        self.found = Found(self.column_of)
        self.absent: set[GpuBook] = set()
        """GPUs that are not there, but of which pods hold a share."""

    def set_node(self, node: NodeDevices) -> None:
        """Take ``node`` as it is now; what its pods hold stays, whatever has changed."""
        book = self.book(node.name)
        moving = [] if same_gpus(book.devices, node) else self._lift(book)
        if book.devices is None:
            book.column = self.column_of[node.name] = self.columns.take()
            self.found.forget()
        else:
            self.columns.empty(book.column)
        book.devices = node
        book.standing = standing_refusals(node)
        book.near = self.near.number_of(node.near)
        self._lose_gpus(book)
        for row, device in enumerate(node.devices):
            gpu = book.gpu(device.uuid)
            gpu.device, gpu.row, gpu.units = device, row, node.units_of(device)
            gpu.refresh(node, shut=book.shut)
            book.present.append(gpu)
            self.absent.discard(gpu)
        self._drop_unused_gpus(book)
        self.columns.write_node(book)
        self.refusals.set_node(
            book.column, book.standing, unhealthy_text(node.devices), node.mode.one_gpu_text
        )
        self._lay(book, moving)

    def remove_node(self, book: NodeBook) -> None:
        """Forget what the node has; what its pods hold stays."""
        moving = self._lift(book)
        self.columns.give_back(self.column_of.pop(book.name))
        self.found.forget()
        self.refusals.forget_node(book.column)
        book.devices, book.column = None, NO_NODE
        self._lose_gpus(book)
        self._drop_unused_gpus(book)
        self._lay(book, moving)
        self._drop_unused_node(book)

    def set_free_cpu(self, name: str, milli: int | None) -> None:
        """How many thousandths of processors a known node's pods leave (``None``: nobody knows)."""
        book = self.nodes.get(name)
        if book is None or book.devices is None:
            return
        free = UNKNOWN_CPU_MILLI if milli is None else min(max(milli, 0), UNKNOWN_CPU_MILLI)
        if book.free_cpu_milli != free:
            book.free_cpu_milli = free
            self.columns.write_cpu(book)

    def book(self, name: str) -> NodeBook:
        """The node, a new one where it is not there."""
        book = self.nodes.get(name)
        if book is None:
            book = self.nodes[name] = NodeBook(name)
        return book

    def take(self, held: Held) -> None:
        """Count what a pod holds."""
        book = self.book(held.node)
        self._count_pod(book, held, 1)
        self._take(book, held)

    def free(self, held: Held) -> None:
        """Count it out again."""
        book = self.nodes[held.node]
        self._count_pod(book, held, -1)
        self._free(book, held)
        self._drop_unused_node(book)

    def _take(self, book: NodeBook, held: Held) -> None:
        for share in map(book.counted, held.allocation.gpus):
            gpu = book.gpu(share.uuid)
            gpu.count(held.priority, share, 1)
            gpu.pods[held.uid] = None
            self.refresh(book, share.uuid)

    def _free(self, book: NodeBook, held: Held) -> None:
        shares = [book.counted(share) for share in held.allocation.gpus]
        for share in shares:
            gpu = book.gpus[share.uuid]
            gpu.count(held.priority, share, -1)
            gpu.pods.pop(held.uid, None)
        # Only now: an allocation may name a GPU twice.
        for share in shares:
            self.refresh(book, share.uuid)

    def _lift(self, book: NodeBook) -> list[Held]:
        """Take what is held off the node's GPUs, while these become others."""
        lifted = [self.held(uid) for uid in book.uids()]
        for held in lifted:
            self._free(book, held)
        return lifted

    def _lay(self, book: NodeBook, lifted: list[Held]) -> None:
        """Put it on the GPUs that the node has now."""
        for held in lifted:
            self._take(book, held)

    def _count_pod(self, book: NodeBook, held: Held, step: int) -> None:
        if any(share.core_percent for share in held.allocation.gpus):
            book.core_pods += step
        else:
            book.memory_pods += step
        self.recount(book)

    def recount(self, book: NodeBook) -> None:
        """Bring up to date what follows from the number of a node's pods, and of those for which room is kept."""
        if book.devices is not None:
            self.columns.write_kinds(book)
            if book.devices.max_node_pods is not None:
                # The cap on all may have been reached, or not any more: that shuts or opens every GPU.
                for gpu in book.present:
                    gpu.refresh(book.devices, shut=book.shut)
                    self.columns.write_gpu(book.column, gpu)

    def refresh(self, book: NodeBook, uuid: str) -> None:
        """Bring everything up to date that follows from what is held of a GPU."""
        gpu = book.gpus.get(uuid)
        if gpu is None:
            return
        if gpu.device is not None and book.devices is not None:
            gpu.refresh(book.devices, shut=book.shut)
            self.columns.write_gpu(book.column, gpu)
        elif gpu.pods:
            self.absent.add(gpu)
        else:
            self.absent.discard(gpu)
            del book.gpus[uuid]

    def _lose_gpus(self, book: NodeBook) -> None:
        for gpu in book.present:
            gpu.device = None
            if gpu.pods:
                self.absent.add(gpu)
        book.present.clear()

    def _drop_unused_gpus(self, book: NodeBook) -> None:
        for uuid in [uuid for uuid, gpu in book.gpus.items() if gpu.device is None and not gpu.pods]:
            del book.gpus[uuid]

    def _drop_unused_node(self, book: NodeBook) -> None:
        if book.devices is None and book.idle:
            del self.nodes[book.name]
