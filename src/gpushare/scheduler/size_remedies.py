"""What would hold a request that no node holds even when it is empty."""

from collections.abc import Collection, Iterator
from itertools import islice

from msgspec import structs

from gpushare.ledger import Ledger
from gpushare.model import names
from gpushare.model.device import NodeDevices
from gpushare.model.request import Request
from gpushare.scheduler.trials import MOST_TRIED, refusal


def large_enough(ledger: Ledger, request: Request, nodes: Collection[str]) -> str:
    """``nodes`` are those that the pod may have. More GPUs are advised where a node that is there would hold the pod on them."""
    if request.core_percent > 100:
        return "ask for 100% compute at most, all containers together: no GPU has more, however large"
    if request.by_gpu:
        return f"a node with {request.gpu_count} GPUs or more; or ask for fewer"
    told = "a node with larger GPUs"
    if request.gpu_count > 1:
        told = f"a node with {request.gpu_count} GPUs or more that are as large as each of those asked for"
    count = _spread_over(ledger, request, nodes)
    if not count:
        return f"{told}; or ask for less"
    return f'{told}; or ask for less, or label the pod {names.LABEL_POD_GPU_COUNT}: "{count}", which divides it between {count} GPUs of one node'


def _spread_over(ledger: Ledger, request: Request, nodes: Collection[str]) -> int:
    """Over how many GPUs, the fewest of them, one of ``nodes`` would hold the request without the pods that are there; 0: none would."""
    # Compute is of one GPU. What was counted in people's units would be counted anew.
    if request.wants_core or request.unit_mib or request.apart:
        return 0
    units = request.memory_units * request.gpu_count
    known = [one for one in map(ledger.node, nodes) if one is not None and one.mode.gives_several]
    most = max((len(one.devices) for one in known), default=0)
    for count in range(request.gpu_count + 1, most + 1):
        if any(one.memory_units % count for one in request.containers):
            continue
        divided = structs.replace(request, memory_units=units // count, gpu_count=count)
        some = islice(_large_enough(known, divided), MOST_TRIED)
        if any(not refusal(ledger, divided, one, emptied=True) for one in some):
            return count
    return 0


def _large_enough(nodes: Collection[NodeDevices], request: Request) -> Iterator[NodeDevices]:
    """Those with enough GPUs in service of the size; others hold nothing."""
    for node in nodes:
        large = (one.in_service and node.units_of(one) >= request.memory_units for one in node.devices)
        if not node.refusal and node.mode.shares_memory and sum(large) >= request.gpu_count:
            yield node
