"""All nodes and what pods hold on them: plain integers per GPU (``node_book``), copied to arrays.

Every change goes through ``Books``, so books and arrays agree whenever a method returns.
"""

from collections.abc import Callable

from gpushare.api.node.device import NodeDevices
from gpushare.ledger.arrays import ColumnCache, Index
from gpushare.ledger.columns import NO_NODE, Columns
from gpushare.ledger.fit.multi_gpu_refusals import GpuNotes
from gpushare.ledger.fit.reasons import shortage_note, standing_refusals, unhealthy_text
from gpushare.ledger.fit.refusals import Refusals
from gpushare.ledger.node_book import UNKNOWN_CPU_MILLI, GpuBook, NodeBook, same_gpus
from gpushare.ledger.placement.topology_sets import Nearness
from gpushare.ledger.results import Held


class Books:
    """The capacity of nodes and its allocation. ``held`` returns what a pod (UID) holds."""

    def __init__(self, held: Callable[[str], Held]) -> None:
        self.held = held
        self.nodes: dict[str, NodeBook] = {}
        """Every known node, and every node on which a pod holds something."""
        self.column_of = Index(NO_NODE)
        self.columns = Columns()
        self.refusals = Refusals(self.columns)
        self.near = Nearness()
        self.column_cache = ColumnCache(self.column_of)
        self.absent: set[GpuBook] = set()
        """GPUs that their node does not have, but of which pods hold a share."""

    def set_node(self, node: NodeDevices) -> None:
        """Set the node's current state. Allocations of its pods stay, whatever has changed."""
        book = self.book(node.name)
        lifted = [] if same_gpus(book.devices, node) else self._remove_allocations(book)
        if book.devices is None:
            book.column = self.column_of[node.name] = self.columns.take()
            self.column_cache.forget()
        else:
            self.columns.empty(book.column)
        book.devices = node
        book.standing = standing_refusals(node)
        book.near = self.near.number_of(node.near)
        self._detach_gpus(book)
        for row, device in enumerate(node.devices):
            gpu = book.gpu(device.uuid)
            gpu.device, gpu.row, gpu.units = device, row, node.units_of(device)
            gpu.refresh(node, shut=book.shut)
            book.present.append(gpu)
            self.absent.discard(gpu)
        self._drop_unused_gpus(book)
        self.columns.write_node(book)
        self.refusals.set_node(
            book.column,
            book.standing,
            GpuNotes(unhealthy_text(node.devices), shortage_note(node.devices)),
            node.mode.one_gpu_text,
        )
        self._restore_allocations(book, lifted)

    def remove_node(self, book: NodeBook) -> None:
        """Forget the node's GPUs. Allocations of its pods stay."""
        lifted = self._remove_allocations(book)
        self.columns.give_back(self.column_of.pop(book.name))
        self.column_cache.forget()
        self.refusals.forget_node(book.column)
        book.devices, book.column = None, NO_NODE
        self._detach_gpus(book)
        self._drop_unused_gpus(book)
        self._restore_allocations(book, lifted)
        self._drop_unused_node(book)

    def set_free_cpu(self, name: str, milli: int | None) -> None:
        """Set how many thousandths of processors are free on a known node (``None``: unknown)."""
        book = self.nodes.get(name)
        if book is None or book.devices is None:
            return
        free = UNKNOWN_CPU_MILLI if milli is None else min(max(milli, 0), UNKNOWN_CPU_MILLI)
        if book.free_cpu_milli != free:
            book.free_cpu_milli = free
            self.columns.write_cpu(book)

    def book(self, name: str) -> NodeBook:
        """The node's book, created if missing."""
        book = self.nodes.get(name)
        if book is None:
            book = self.nodes[name] = NodeBook(name)
        return book

    def take(self, held: Held) -> None:
        """Add what a pod holds."""
        book = self.book(held.node)
        self._count_pod(book, held, 1)
        self._take(book, held)

    def free(self, held: Held) -> None:
        """Remove what a pod holds."""
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
        # In a second loop, because an allocation may name a GPU twice.
        for share in shares:
            self.refresh(book, share.uuid)

    def _remove_allocations(self, book: NodeBook) -> list[Held]:
        """Remove all allocations from the node's GPUs while these are replaced; returns them for ``_restore_allocations``."""
        lifted = [self.held(uid) for uid in book.uids()]
        for held in lifted:
            self._free(book, held)
        return lifted

    def _restore_allocations(self, book: NodeBook, lifted: list[Held]) -> None:
        """Put the allocations on the node's current GPUs."""
        for held in lifted:
            self._take(book, held)

    def _count_pod(self, book: NodeBook, held: Held, step: int) -> None:
        if any(share.core_percent for share in held.allocation.gpus):
            book.core_pods += step
        else:
            book.memory_pods += step
        self.recount(book)

    def recount(self, book: NodeBook) -> None:
        """Update what depends on the number of a node's pods, nominated ones included."""
        if book.devices is not None:
            self.columns.write_kinds(book)
            if book.devices.max_node_pods is not None:
                # The pod cap of the node may now be reached, or no longer be: this closes or opens every GPU.
                for gpu in book.present:
                    gpu.refresh(book.devices, shut=book.shut)
                    self.columns.write_gpu(book.column, gpu)

    def refresh(self, book: NodeBook, uuid: str) -> None:
        """Update everything that depends on the allocations of a GPU."""
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

    def _detach_gpus(self, book: NodeBook) -> None:
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
