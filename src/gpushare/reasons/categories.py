"""Categories of reasons: few enough for a metric's label; every refusal has one.

The category is derived from the start of the text, which differs between the components that write reasons (``ledger.fit.reasons``,
``ledger.quota.accounting``, gangs, policies). Storing a category with each of thousands of texts would slow down every decision.
"""

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Final


class Category(Enum):
    """Category of a pending pod. If nodes refuse for several categories, the first one here counts: it is the easiest to resolve."""

    MEMORY = "memory"
    """No single GPU has enough free memory, or too few GPUs have."""
    COMPUTE = "compute"
    """No GPU with enough free memory has enough free compute."""
    PODS = "pods"
    """GPUs or nodes have the maximum number of pods."""
    KINDS = "kinds"
    """Nodes have pods of the other kind (memory only, or memory and compute)."""
    HEALTH = "health"
    """Suitable GPUs are out of service, or their kubelet does not offer them."""
    POLICY = "policy"
    """Its ResourcePolicy has no unit for it at present."""
    GANG = "gang"
    """It waits for other pods of its gang, or for capacity for all of them."""
    QUOTA = "quota"
    """An elastic quota is used up."""
    BINDING = "binding"
    """Its binding is in progress, or failed."""
    UNIT = "unit"
    """Its request is in another memory unit than that of the nodes."""
    SELECTION = "selection"
    """Its annotations exclude the GPUs of the nodes."""
    SIZE = "size"
    """It requests more than any GPU, or any node, has."""
    NODE = "node"
    """Nodes do not serve the request: other modes, no GPUs, or unknown nodes."""
    REQUEST = "request"
    """Its request is contradictory."""
    RULES = "rules"
    """Its scheduler's own rules refuse every node (selectors, taints, CPUs, volumes), or something else prevents the binding."""
    GATES = "gates"
    """It has scheduling gates; schedulers ignore it until they are removed."""
    UNSERVED = "unserved"
    """No scheduler seems to run for its ``schedulerName``."""
    SCHEDULER = "scheduler"
    """There is capacity, but kube-scheduler has not bound it (yet)."""
    UNASKED = "unasked"
    """kube-scheduler has not called the extender for it."""


#: Values of the categories that free capacity does not resolve.
NOT_ROOM: Final = frozenset(
    category.value
    for category in (
        Category.POLICY,
        Category.GANG,
        Category.QUOTA,
        Category.RULES,
        Category.GATES,
        Category.UNSERVED,
    )
)
_RANK: Final = {category: rank for rank, category in enumerate(Category)}
_BEGINNINGS: Final = (
    (r"no single GPU has .* compute free ", Category.COMPUTE),
    (r"no single GPU has ", Category.MEMORY),
    (r"needs .* free each and fewer than ", Category.PODS),
    (r"needs .* compute free each, ", Category.COMPUTE),
    (r"needs ", Category.MEMORY),
    (r"node already has |every GPU with enough free capacity already has ", Category.PODS),
    (r"node has \d+ pods? with GPU memory", Category.KINDS),
    (
        r"no GPU with .* or more is in service |requests .*, but too few of them are in service ",
        Category.HEALTH,
    ),
    (r"the kubelet (?:has|offers) |node has no working GPU ", Category.HEALTH),
    (r"ResourcePolicy ", Category.POLICY),
    (r"gang ", Category.GANG),
    (r"elastic quota ", Category.QUOTA),
    (
        r"the pod is still being bound to node |pod \S+ (?:was not|may be|may still be|is already) bound",
        Category.BINDING,
    ),
    (r"the request for .* was counted in units of ", Category.UNIT),
    (
        r"(?:no|every|\d+) GPUs? (?:is|are|has|have) .*\(gpushare\.dev/gpu-|requests \S+ GPUs, but its annotations allow only ",
        Category.SELECTION,
    ),
    (r"requests ", Category.SIZE),
)
_PATTERN: Final = re.compile("|".join(f"({beginning})" for beginning, _ in _BEGINNINGS))


@lru_cache(maxsize=8192)
def category_of(reason: str) -> Category:
    """The category of a node's reason."""
    match = _PATTERN.match(reason)
    if match is None or match.lastindex is None:
        return Category.NODE
    return _BEGINNINGS[match.lastindex - 1][1]


def nearest(categories: Iterable[Category]) -> Category:
    """The category that counts for the pod; ``UNASKED`` if there is none."""
    return min(categories, key=_RANK.__getitem__, default=Category.UNASKED)
