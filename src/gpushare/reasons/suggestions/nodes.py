"""Suggestions for pods that nodes refuse, by category of the reasons."""

from collections.abc import Mapping
from typing import Final

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.categories import Category
from gpushare.reasons.suggestions import capacity, mode_conflict, modes, selected_gpus, sizes

_DESCRIBE: Final = "`kubectl describe pod` shows what kube-scheduler found: taints, selectors, CPUs, volumes"
GENERAL: Final[Mapping[Category, str]] = {
    Category.POLICY: "capacity in one of the units of its ResourcePolicy, or another ResourcePolicy",
    Category.UNIT: "delete the pod, so that it is recreated in the unit of the nodes",
    Category.NODE: f"a node with the label {names.LABEL_MODE}={NodeMode.SHARE.value} ({NodeMode.CORE_MEM.value} for compute, "
    f"{NodeMode.TOPOLOGY.value} for {names.GPU_WHOLE})",
    Category.REQUEST: "another request: change the pod's template",
    Category.SCHEDULER: _DESCRIBE,
    Category.UNASKED: f"kube-scheduler's next attempt, unless its own rules refuse every node: {_DESCRIBE}",
}
"""Suggestions that do not depend on the nodes."""
_EXCLUDED: Final = "the pod's node selector, affinity or tolerations exclude it"


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
    """Suggestion for a request that all nodes of ``texts`` refuse (reasons by node); ``category`` is the one that counts for the pod.

    ``known``: the nodes are those that the pod's own rules allow; ``of``: their number (``None``: all nodes). ``elsewhere``: a node with
    capacity that the rules exclude, or empty. ``isolated_cap``: maximum number of pods per GPU on isolated nodes, regardless of labels.
    """
    if category is Category.NODE:
        if not known:
            return GENERAL[category]
        if modes.other_unit(ledger, request, texts):
            return GENERAL[Category.UNIT]
        suggestion = modes.would_help(ledger, request, list(texts), of=of, elsewhere=elsewhere, lets=lets)
        return suggestion or GENERAL[category]
    if category is Category.SELECTION:
        return selected_gpus.other_gpus(map(ledger.node, texts))
    if category is Category.SIZE:
        wrong_unit = sizes.of_wrong_unit(request, map(ledger.node, texts))
        return wrong_unit or sizes.large_enough(ledger, request, texts, lets)
    if category is Category.KINDS:
        return mode_conflict.without_others(ledger, request, texts if known else {}, lets)
    if category is Category.PODS:
        return capacity.of_caps(ledger, request, texts, isolated_cap)
    if category is Category.HEALTH:
        text = capacity.of_service(ledger, request, texts if known else {})
    elif category in (Category.MEMORY, Category.COMPUTE):
        text = capacity.of_room(ledger, request, category, texts)
    else:
        return GENERAL.get(category, GENERAL[Category.NODE])
    return f"{text}; node {elsewhere} has capacity, but {_EXCLUDED}" if elsewhere else text
