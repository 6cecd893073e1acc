"""Requests and capacity as integers: ``cpu`` in thousandths, everything else in its own unit."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from gpushare.api.errors import InvalidQuantity
from gpushare.api.json_objects import Json, spec_of, status_of
from gpushare.api.quantity import MAX_AMOUNT, parse_quantity

Amounts = dict[str, int]
CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
_MILLI: Final = 1000
#: Up to this many digits are parsed into an int64 with an exponent (source: k8s.io/apimachinery ``ParseQuantity``).
_FEW_DIGITS: Final = 18


def amounts_of(resources: Mapping[str, Any] | None) -> Amounts:
    """A resource list as exact integers, rounded up like Kubernetes; invalid entries are skipped.

    (The API server refuses those; only a foreign one would let them pass.)
    """
    found: Amounts = {}
    for name, text in (resources or {}).items():
        try:
            value = parse_quantity(text)
        except InvalidQuantity:
            continue
        amount = math.ceil(value * _MILLI) if name == CPU else math.ceil(value)
        found[name] = amount if amount <= MAX_AMOUNT else _overflown(str(text))
    return found


def _overflown(text: str) -> int:
    """Kubernetes' result for an amount beyond an int64: 0 for one with few digits, such as ``1e30``, else the maximum."""
    digits = re.match(r"[+-]?([\d.]*)", text)
    few = digits is not None and len(digits[1].replace(".", "").lstrip("0")) <= _FEW_DIGITS
    return 0 if few and not text.endswith("i") else MAX_AMOUNT


def add(total: Amounts, more: Mapping[str, int]) -> None:
    """Add ``more`` to ``total``."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def subtract(total: Amounts, less: Mapping[str, int]) -> None:
    """Subtract ``less`` from ``total``; entries that reach 0 are removed."""
    for name, amount in less.items():
        left = total.get(name, 0) - amount
        if left:
            total[name] = left
        else:
            total.pop(name, None)


def requests_of(pod: Json) -> Amounts:
    """The pod's total requests (source: k8s.io/component-helpers ``PodRequests``).

    Apps and sidecars run together; an init container runs with the sidecars before it. What the pod asks for as a whole
    (``spec.resources``) counts in place of that. Overhead comes on top. A resource with a limit only is asked for with its limit, as the API server's defaults say.
    """
    spec = spec_of(pod)
    together: Amounts = {}
    for container in spec.get("containers") or ():
        add(together, _requests(container))
    peak: Amounts = {}
    sidecars: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            add(together, asked)
            add(sidecars, asked)
            asked = {}
        alone = dict(sidecars)
        add(alone, asked)
        _raise_to(peak, alone)
    _raise_to(together, peak)
    together.update(_requests(spec))
    add(together, amounts_of(spec.get("overhead")))
    return together


def _requests(container_or_spec: Json) -> Amounts:
    resources = container_or_spec.get("resources") or {}
    return amounts_of({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _raise_to(total: Amounts, least: Mapping[str, int]) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, 0), amount)


def allocatable_of(node: Json) -> Amounts:
    """The node's allocatable resources."""
    return amounts_of(status_of(node).get("allocatable"))
