"""What containers ask of a resource. Pure."""

from collections.abc import Mapping

from gpushare.api import names
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.nodeagent.allocate.pod_allocations import Claim


def amount_of(container: ContainerRequest, resource: str) -> int:
    """What ``container`` asks of a resource: units of GPU memory, percent of compute, or whole GPUs."""
    if resource == names.GPU_WHOLE:
        return container.whole_gpus
    return container.core_percent if resource == names.GPU_CORE else container.memory_units


def is_complete(claim: Claim, given: Mapping[tuple[str, str], frozenset[str]]) -> bool:
    """Whether all containers of the pod have what they ask for.

    The kubelet lists no devices of init containers; they were served when one after them is.
    """
    return all(has_all(claim.request, resource, given) for resource in (names.GPU_MEM, names.GPU_CORE))


def has_all(request: Request, resource: str, given: Mapping[tuple[str, str], frozenset[str]]) -> bool:
    """The same of one resource."""
    lasting = [one for one in request.containers if one.kind is not ContainerKind.INIT]
    return all(
        (one.name, resource) in given for one in lasting or request.containers if amount_of(one, resource)
    )


def worded(resource: str, amount: int) -> str:
    """An amount as people say it: ``3 units``, ``30% compute``."""
    if resource == names.GPU_CORE:
        return f"{amount}% compute"
    return counted(amount, "unit")
