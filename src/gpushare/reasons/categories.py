"""The kinds of reasons for which a pod waits: few, so that they can be a metric's label, and each refusal has one of them.

The kind is read from how the reason begins: those who write reasons (``ledger.fit.reasons``, ``ledger.quota.accounting``, gangs, policies) all
begin in ways of their own, and keeping a kind beside each of thousands of texts would cost every decision.
"""

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Final


class Category(Enum):
    """Why a pod waits. Of the reasons of many nodes the first here stands for the pod: it is the nearest to not being one."""

    MEMORY = "memory"
    """No single GPU has as much free, or there are too few free ones."""
    COMPUTE = "compute"
    """No GPU that has the memory has the compute too."""
    PODS = "pods"
    """GPUs or nodes hold as many pods as they may."""
    KINDS = "kinds"
    """Nodes hold pods of the other kind (memory alone, or compute too)."""
    HEALTH = "health"
    """GPUs that would do are out of service, or their kubelet does not offer them."""
    POLICY = "policy"
    """A ResourcePolicy has no unit for it now."""
    GANG = "gang"
    """It waits for the other pods of its gang, or for room for all of them."""
    QUOTA = "quota"
    """An elastic quota is used up."""
    BINDING = "binding"
    """Its binding is under way, or failed."""
    UNIT = "unit"
    """It was counted in another memory unit than the nodes count in."""
    SIZE = "size"
    """It asks for more than any GPU, or any node, has."""
    NODE = "node"
    """Nodes give nothing of the kind: other modes, no GPUs, or not known."""
    REQUEST = "request"
    """What it asks for contradicts itself."""
    RULES = "rules"
    """Its scheduler's own rules refuse every node (selectors, taints, processors, volumes), or something else keeps it from binding the pod."""
    GATES = "gates"
    """Its scheduling gates: no scheduler looks at it before they are taken away."""
    UNSERVED = "unserved"
    """No scheduler seems to run under the name that it gives."""
    SCHEDULER = "scheduler"
    """There is room: kube-scheduler has not bound it (yet)."""
    UNASKED = "unasked"
    """kube-scheduler has not asked about it."""


#: Values of the categories that free capacity alone does not end.
NOT_ROOM: Final = frozenset(
    one.value
    for one in (
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
    (r"node already has |every GPU with room already has ", Category.PODS),
    (r"node has \d+ pods? with GPU memory", Category.KINDS),
    (r"no GPU that could hold |asks for .*, too few of them are in service ", Category.HEALTH),
    (r"the kubelet (?:has|offers) ", Category.HEALTH),
    (r"ResourcePolicy ", Category.POLICY),
    (r"gang ", Category.GANG),
    (r"elastic quota ", Category.QUOTA),
    (r"the pod's binding to node |pod \S+ (?:was not|may be|is already) bound", Category.BINDING),
    (r"the request for .* was counted in units of ", Category.UNIT),
    (r"asks for ", Category.SIZE),
)
_PATTERN: Final = re.compile("|".join(f"({beginning})" for beginning, _ in _BEGINNINGS))


@lru_cache(maxsize=8192)
def category_of(reason: str) -> Category:
    """The kind of a reason for which a node does not take a pod."""
    found = _PATTERN.match(reason)
    if found is None or found.lastindex is None:
        return Category.NODE
    return _BEGINNINGS[found.lastindex - 1][1]


def nearest(categories: Iterable[Category]) -> Category:
    """The one of several that stands for the pod; ``UNASKED`` for none."""
    return min(categories, key=_RANK.__getitem__, default=Category.UNASKED)
