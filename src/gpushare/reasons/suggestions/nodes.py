"""What would help a pod that nodes refuse, by the category of their reasons."""

from collections.abc import Mapping
from typing import Final

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.categories import Category
from gpushare.reasons.suggestions import capacity, mode_conflict, modes, sizes

_DESCRIBE: Final = (
    "`kubectl describe pod` tells what kube-scheduler found: taints, selectors, processors, volumes"
)
GENERAL: Final[Mapping[Category, str]] = {
    Category.POLICY: "a place in one of the units of its ResourcePolicy, or another ResourcePolicy",
    Category.UNIT: "delete the pod, so that it is recreated in the unit of the nodes",
    Category.NODE: f"a node with the label {names.LABEL_MODE}={NodeMode.SHARE.value} ({NodeMode.CORE_MEM.value} for compute, "
    f"{NodeMode.TOPOLOGY.value} for {names.GPU_WHOLE})",
    Category.REQUEST: "another request: change the pod's template, nothing else will do",
    Category.SCHEDULER: _DESCRIBE,
    Category.UNASKED: f"kube-scheduler's turn, or its own rules refuse every node: {_DESCRIBE}",
}
"""What helps whatever the nodes are."""
_NOT_ASKED: Final = (
    "the pod's node selector, affinity or tolerations keep it off: kube-scheduler does not ask about it"
)


def of_nodes(
    ledger: Ledger,
    request: Request,
    category: Category,
    texts: Mapping[str, str],
    *,
    known: bool = True,
    of: int | None = None,
    elsewhere: str = "",
    lets: sizes.AllowsFn = lambda request, node: True,
    isolated_cap: int = 0,
) -> str:
    """For a request that none of the nodes of ``texts`` takes, which say why; ``category`` is that of the reason that stands for all.

    ``known``: these are the nodes that the pod may have by its own rules, ``of`` so many (``None``: of all). ``elsewhere`` is a node with room
    that they exclude, empty for none. ``isolated_cap``: the most pods on a GPU of an isolated node, whatever its labels say.
    """
    if category is Category.NODE:
        if not known:
            return GENERAL[category]
        if modes.other_unit(ledger, request, texts):
            return GENERAL[Category.UNIT]
        found = modes.would_help(ledger, request, list(texts), of=of, elsewhere=elsewhere, lets=lets)
        return found or GENERAL[category]
    if category is Category.SIZE:
        written = sizes.of_wrong_unit(request, map(ledger.node, texts))
        return written or sizes.large_enough(ledger, request, texts, lets)
    if category is Category.KINDS:
        return mode_conflict.without_others(ledger, request, texts if known else {}, lets)
    if category is Category.PODS:
        return capacity.of_caps(ledger, request, texts, isolated_cap)
    if category is Category.HEALTH:
        help_text = capacity.of_service(ledger, request, texts if known else {})
    elif category in (Category.MEMORY, Category.COMPUTE):
        help_text = capacity.of_room(ledger, request, category, texts)
    else:
        return GENERAL.get(category, GENERAL[Category.NODE])
    return f"{help_text}; node {elsewhere} has room, but {_NOT_ASKED}" if elsewhere else help_text
