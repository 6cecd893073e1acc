"""Whether a node would take a request without some of its pods."""

from collections.abc import Iterable
from itertools import islice

from gpushare.api.request.request import Request
from gpushare.ledger.node_book import GpuBook, NodeBook
from gpushare.ledger.results import Held


def fits_without(book: NodeBook, pods: Iterable[Held], request: Request) -> bool:
    """Tried on the books of the node, which are restored afterwards. Arrays stay as they are, and nothing is notified."""
    node = book.devices
    if node is None or request.unit_mib not in (0, node.unit.mib):
        return False
    kinds = book.memory_pods, book.core_pods
    before: list[tuple[GpuBook, int, int, dict[str, None]]] = []
    changed: Iterable[GpuBook] = ()
    try:
        for held in pods:
            if any(share.core_percent for share in held.allocation.gpus):
                book.core_pods -= 1
            else:
                book.memory_pods -= 1
            for share in map(book.counted, held.allocation.gpus):
                gpu = book.gpus[share.uuid]
                before.append((gpu, gpu.used_mib, gpu.used_core, gpu.pods))
                gpu.used_mib -= share.mib
                gpu.used_core -= share.core_percent
                gpu.pods = {uid: None for uid in gpu.pods if uid != held.uid}
        # The node's pod cap closes or opens every GPU.
        changed = [entry[0] for entry in before] if node.max_node_pods is None else book.present
        _refresh(book, changed)
        return len(list(islice(book.candidates(request), request.gpu_count))) == request.gpu_count
    finally:
        book.memory_pods, book.core_pods = kinds
        for gpu, used_mib, used_core, uids in reversed(before):
            gpu.used_mib, gpu.used_core, gpu.pods = used_mib, used_core, uids
        _refresh(book, changed)


def _refresh(book: NodeBook, gpus: Iterable[GpuBook]) -> None:
    assert book.devices is not None
    for gpu in gpus:
        if gpu.device is not None:
            gpu.refresh(book.devices, shut=book.shut)
