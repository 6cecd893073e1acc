"""A pod's requests by resource, as quotas count them: exact, in thousandths."""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import Final

from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Pod, ResourceRequirements
from gpushare.api.quantity import Quantity, parse_quantity
from gpushare.api.request.request import ContainerKind, listed_containers

Amounts = Mapping[str, int]
"""Resource → thousandths: 3 of ``aliyun.com/gpu-mem`` are 3000, half a CPU 500, 1 KiB of memory 1024000."""

AmountPairs = tuple[tuple[str, Quantity], ...]
"""Resource and quantity, as written."""

NOTHING: Final[Amounts] = {}
_BINARY: Final = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
_BYTE_RESOURCES: Final = ("memory", "ephemeral-storage")
#: Requests of one pod, over all containers, up to which its sums are kept for equal pods.
_MOST_KEPT: Final = 64


def amounts_of(pod: Pod) -> Amounts:
    """The pod's requests, as Kubernetes counts them: init containers, sidecars, apps, plus the runtime's overhead.

    Pod-level resources (``spec.resources``) replace those of the containers. A container without a request counts with its limit. Invalid
    quantities count as 0: the API server rejects such pods. Equal pods share one mapping, which must not be changed.
    """
    overhead = tuple((pod.spec.overhead or {}).items())
    requests = tuple((kind, _requested(container.resources)) for _, container, kind in listed_containers(pod))
    whole = _requested(pod.spec.resources)
    # Pods of one template request the same; large ones are not kept, as anybody may create many that differ.
    small = sum(len(amounts) for _, amounts in requests) + len(whole) + len(overhead) <= _MOST_KEPT
    return (_kept_sums if small else _sums)(requests, whole, overhead)


def _requested(resources: ResourceRequirements | None) -> AmountPairs:
    if resources is None:
        return ()
    return tuple(((resources.limits or {}) | (resources.requests or {})).items())


def _sums(
    requests: tuple[tuple[ContainerKind, AmountPairs], ...], whole: AmountPairs, overhead: AmountPairs
) -> Amounts:
    """As ``effective_amount``, of all resources at once: the time must not grow with containers times resources."""
    together: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peaks: dict[str, int] = {}
    for kind, amounts in requests:
        for name, amount in _read(amounts).items():
            if kind is ContainerKind.INIT:
                peaks[name] = max(peaks.get(name, 0), sidecars.get(name, 0) + amount)
                continue
            together[name] = together.get(name, 0) + amount
            if kind is ContainerKind.SIDECAR:
                sidecars[name] = sidecars.get(name, 0) + amount
    sums = together | {name: max(peak, together.get(name, 0)) for name, peak in peaks.items()}
    sums.update(_read(whole))
    for name, amount in _read(overhead).items():
        sums[name] = sums.get(name, 0) + amount
    return sums


_kept_sums: Final = lru_cache(maxsize=1024)(_sums)


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
