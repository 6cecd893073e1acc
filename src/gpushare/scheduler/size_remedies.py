"""What would hold a request that no node holds even when it is empty."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import structs

from gpushare.ledger import Ledger
from gpushare.ledger.emptied import would_hold
from gpushare.model import names
from gpushare.model.counted import counted
from gpushare.model.device import NodeDevices
from gpushare.model.request import Request

#: More GPUs than a node has.
_MOST_GPUS: Final = 16
#: Nodes that have GPUs enough by their sizes and are tried.
_MOST_TRIED: Final = 8


def would_help(ledger: Ledger, request: Request, nodes: Collection[str]) -> str:
    """``nodes``: those that the pod may have. A share of one GPU is not helped by more of them, unless it is divided."""
    if request.core_percent > 100:
        return "ask for 100% compute at most, all containers together: no GPU has more, however large"
    if request.by_gpu:
        return f"a node with {counted(request.gpu_count, 'GPU')} or more; or ask for fewer"
    if request.gpu_count > 1:
        return f"a node with {counted(request.gpu_count, 'GPU')} or more that are as large as each of those asked for; or ask for less"
    told = "a node with larger GPUs; or ask for less"
    for divided in _divided(request):
        known = (one for name in sorted(nodes) if (one := ledger.node(name)) is not None)
        for node in islice(_large_enough(divided, known), _MOST_TRIED):
            if would_hold(node, divided):
                count = divided.gpu_count
                return (
                    f'{told}, or have it divided by the label {names.LABEL_POD_GPU_COUNT}: "{count}": '
                    f"node {node.name} has {counted(count, 'GPU')} for that"
                )
    return told


def _divided(request: Request) -> Iterator[Request]:
    """The same over more GPUs, the fewest first: each container's is divided, in whole units. With compute nothing is."""
    if request.wants_core or request.apart:
        return
    for count in range(2, _MOST_GPUS + 1):
        if not any(one.memory_units % count for one in request.containers):
            yield structs.replace(request, memory_units=request.memory_units // count, gpu_count=count)


def _large_enough(request: Request, nodes: Iterable[NodeDevices]) -> Iterator[NodeDevices]:
    for node in nodes:
        large = sum(node.units_of(device) >= request.memory_units for device in node.devices)
        if large >= request.gpu_count:
            yield node
