"""Suggestions for requests that are too large for every node, even when it is empty."""

from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import structs

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.request.describe import right_unit, wrong_unit
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.suggestions.trial import refusal, to_try

AllowsFn = Callable[[Request, str], bool]
"""Whether quotas permit a request on a node (name); for whole GPUs this depends on the node's GPUs."""


def of_wrong_unit(request: Request, nodes: Iterable[NodeDevices | None]) -> str:
    """The correction for a request written in bytes or MiB instead of units; else empty."""
    units = (node.unit for node in nodes if node is not None)
    return next((right_unit(request, unit) for unit in units if wrong_unit(request, unit)), "")


def large_enough(ledger: Ledger, request: Request, nodes: Collection[str], lets: AllowsFn) -> str:
    """The suggestion; ``nodes``: the eligible nodes. Suggests dividing the request if an existing node fits it on more GPUs."""
    advice = larger(request)
    known = [node for node in map(ledger.node, nodes) if node is not None and node.mode.gives_several]
    for divided in divisions(request, known):
        candidates = to_try(holding(divided, known, lets))
        if any(not refusal(ledger, divided, node, emptied=True) for node in candidates):
            return f"{advice}, {as_divided(divided)}"
    return advice


def larger(request: Request, mode: NodeMode | None = None) -> str:
    """Suggests a larger node (in ``mode``), or a smaller request."""
    if request.core_percent > 100:
        return "request at most 100% compute, all containers together: no GPU has more"
    node = "a node" if mode is None else f"a node in mode {mode.value}"
    if request.by_gpu:
        return f"{node} with {request.gpu_count} GPUs or more; or request fewer"
    if request.gpu_count > 1:
        return f"{node} with {request.gpu_count} GPUs or more of the requested size; or request less"
    return f"{node} with larger GPUs; or request less"


def as_divided(divided: Request) -> str:
    """Suggests the label that turns the request into ``divided``."""
    count = divided.gpu_count
    return (
        f'or label the pod {names.LABEL_POD_GPU_COUNT}: "{count}", to spread it over {count} GPUs of one node'
    )


def divisions(request: Request, nodes: Collection[NodeDevices]) -> Iterator[Request]:
    """The request divided between more GPUs of a node, fewest first; none if it cannot be divided."""
    # Compute cannot be divided. Requests in MiB or percent would be converted to units again.
    if request.by_gpu or request.wants_core or request.unit_mib or request.apart:
        return
    units = request.memory_units * request.gpu_count
    most = max((len(node.devices) for node in nodes), default=0)
    for count in range(request.gpu_count + 1, most + 1):
        if not any(container.memory_units % count for container in request.containers):
            yield structs.replace(request, memory_units=units // count, gpu_count=count)


def holding(request: Request, nodes: Collection[NodeDevices], lets: AllowsFn) -> Iterator[NodeDevices]:
    """The nodes with enough sufficiently large GPUs in service that the pod may use."""
    for node in nodes:
        large = (
            device.in_service and node.units_of(device) >= request.memory_units and request.allows(device)
            for device in node.devices
        )
        if (
            not node.refusal
            and node.mode.shares_memory
            and sum(large) >= request.gpu_count
            and lets(request, node.name)
        ):
            yield node
