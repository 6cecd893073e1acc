"""kube-scheduler's text after the reasons: why no pod of lower priority could make room. Nothing is preempted here.

Source: kubernetes 1.36 ``framework/preemption/preemption.go`` and its plugins' ``PostFilter``.
"""

from collections.abc import Collection
from typing import Final

from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.fit_error import fit_error
from gpushare.kubescheduler.node_usage import NodeState, Occupancy, priority_of
from gpushare_playground.objects import Json, spec_of

NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
NO_VICTIMS: Final = "No preemption victims found for incoming pod"
NEVER: Final = "not eligible due to preemptionPolicy=Never."
NOT_HERE: Final = "the playground's scheduler preempts no pods"


def aftermath(pod: Json, wanted: Wanted, nodes: Occupancy, unresolvable: Collection[str]) -> str:
    """The text for a pod that no node took; ``unresolvable`` are nodes that no eviction makes feasible, according to the extender."""
    return f"preemption: {_preemption(pod, wanted, nodes, unresolvable)}"


def _preemption(pod: Json, wanted: Wanted, nodes: Occupancy, unresolvable: Collection[str]) -> str:
    if spec_of(pod).get("preemptionPolicy") == "Never":
        return NEVER
    reasons = []
    for state in nodes:
        if state.name in unresolvable or wanted.is_hopeless(state):
            reasons.append([NOT_HELPFUL])
            continue
        refusals = _without_lesser(wanted, state, nodes, priority_of(pod))
        if not refusals:
            # The real one would make room here, or fail if only the extender had rejected the node.
            return NOT_HERE
        reasons.append(refusals)
    return fit_error(len(nodes), reasons)


def _without_lesser(wanted: Wanted, state: NodeState, nodes: Occupancy, priority: int) -> list[str]:
    emptied = nodes.without_lesser(state, priority)
    return [NO_VICTIMS] if emptied is None else wanted.refusals(emptied)
