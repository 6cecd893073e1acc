"""A pod's requests by resource, as quotas count them: exact, in thousandths."""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import Final

from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Pod, ResourceRequirements
from gpushare.api.quantity import Quantity, parse_quantity
from gpushare.api.request.request import ContainerKind, effective_amount, listed_containers

Amounts = Mapping[str, int]
"""Resource → thousandths: 3 of ``aliyun.com/gpu-mem`` are 3000, half a CPU 500, 1 KiB of memory 1024000."""

AmountPairs = tuple[tuple[str, Quantity], ...]
"""Resource and quantity, as written."""

NOTHING: Final[Amounts] = {}
_BINARY: Final = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
_BYTE_RESOURCES: Final = ("memory", "ephemeral-storage")


def amounts_of(pod: Pod) -> Amounts:
    """The pod's requests, as Kubernetes counts them: init containers, sidecars, apps, plus the runtime's overhead.

    Pod-level resources (``spec.resources``) replace those of the containers. A container without a request counts with its limit. Invalid
    quantities count as 0: the API server rejects such pods. Equal pods share one mapping, which must not be changed.
    """
    containers = listed_containers(pod)
    overhead = tuple((pod.spec.overhead or {}).items())
    requests = tuple((kind, _requested(container.resources)) for _, container, kind in containers)
    return _summed(requests, _requested(pod.spec.resources), overhead)


def _requested(resources: ResourceRequirements | None) -> AmountPairs:
    if resources is None:
        return ()
    return tuple(((resources.limits or {}) | (resources.requests or {})).items())


@lru_cache(maxsize=4096)
def _summed(
    requests: tuple[tuple[ContainerKind, AmountPairs], ...], whole: AmountPairs, overhead: AmountPairs
) -> Amounts:
    read = [(kind, _read(amounts)) for kind, amounts in requests]
    sums = {
        name: effective_amount([(kind, amounts.get(name, 0)) for kind, amounts in read])
        for name in dict.fromkeys(name for _, amounts in read for name in amounts)
    }
    sums.update(_read(whole))
    for name, amount in _read(overhead).items():
        sums[name] = sums.get(name, 0) + amount
    return sums


def _read(amounts: AmountPairs) -> dict[str, int]:
    return {name: _thousandths(amount) for name, amount in amounts}


def _thousandths(amount: Quantity) -> int:
    try:
        return max(thousandths_of(amount), 0)
    except InvalidQuantity:
        return 0


def thousandths_of(amount: Quantity, subject: str = "") -> int:
    """A quantity in thousandths, rounded up like Kubernetes. Raises ``InvalidQuantity`` naming ``subject``."""
    return ceil(1000 * parse_quantity(amount, subject))


def written(resource: str, thousandths: int) -> str:
    """The quantity as written in manifests: ``3``, ``500m``, ``10Gi``."""
    whole, rest = divmod(thousandths, 1000)
    if rest:
        return f"{thousandths}m"
    if whole and (resource in _BYTE_RESOURCES or resource.startswith("hugepages-")):
        for suffix, size in _BINARY:
            if whole % size == 0:
                return f"{whole // size}{suffix}"
    return str(whole)
