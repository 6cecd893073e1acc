"""What would hold a request that no node holds even when it is empty."""

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
"""Whether quotas let the pod have GPUs of a node, by its name, for a request: by what those count that are given whole."""


def of_wrong_unit(request: Request, nodes: Iterable[NodeDevices | None]) -> str:
    """What to write where bytes or MiB were: no larger GPU is meant. Empty where none of ``nodes`` counts so that they were."""
    units = (node.unit for node in nodes if node is not None)
    return next((right_unit(request, unit) for unit in units if wrong_unit(request, unit)), "")


def large_enough(ledger: Ledger, request: Request, nodes: Collection[str], lets: AllowsFn) -> str:
    """``nodes`` are those that the pod may have. More GPUs are advised where a node that is there would hold the pod on them."""
    advice = larger(request)
    known = [one for one in map(ledger.node, nodes) if one is not None and one.mode.gives_several]
    for divided in divisions(request, known):
        some = to_try(holding(divided, known, lets))
        if any(not refusal(ledger, divided, one, emptied=True) for one in some):
            return f"{advice}, {as_divided(divided)}"
    return advice


def larger(request: Request, mode: NodeMode | None = None) -> str:
    """A node (in ``mode``) that is large enough, or a smaller request."""
    if request.core_percent > 100:
        return "ask for 100% compute at most, all containers together: no GPU has more, however large"
    node = "a node" if mode is None else f"a node in mode {mode.value}"
    if request.by_gpu:
        return f"{node} with {request.gpu_count} GPUs or more; or ask for fewer"
    if request.gpu_count > 1:
        return f"{node} with {request.gpu_count} GPUs or more that are as large as each of those asked for; or ask for less"
    return f"{node} with larger GPUs; or ask for less"


def as_divided(divided: Request) -> str:
    """By which label the request becomes ``divided``."""
    count = divided.gpu_count
    return f'or label the pod {names.LABEL_POD_GPU_COUNT}: "{count}", which divides it between {count} GPUs of one node'


def divisions(request: Request, nodes: Collection[NodeDevices]) -> Iterator[Request]:
    """The request as it would be over more GPUs of one of ``nodes``, the fewest first; none where it cannot be divided."""
    # Compute is of one GPU. What was counted in people's units would be counted anew.
    if request.by_gpu or request.wants_core or request.unit_mib or request.apart:
        return
    units = request.memory_units * request.gpu_count
    most = max((len(one.devices) for one in nodes), default=0)
    for count in range(request.gpu_count + 1, most + 1):
        if not any(one.memory_units % count for one in request.containers):
            yield structs.replace(request, memory_units=units // count, gpu_count=count)


def holding(request: Request, nodes: Collection[NodeDevices], lets: AllowsFn) -> Iterator[NodeDevices]:
    """Those with enough GPUs in service of the size that the pod may have; others hold nothing."""
    for node in nodes:
        large = (one.in_service and node.units_of(one) >= request.memory_units for one in node.devices)
        if (
            not node.refusal
            and node.mode.shares_memory
            and sum(large) >= request.gpu_count
            and lets(request, node.name)
        ):
            yield node
