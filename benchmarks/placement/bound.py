"""An upper bound of the allocation by any policy: a linear relaxation of the packing.

Pods of one kind are divided among groups of equal nodes, in fractions. The sums of processors, memory and GPUs of each group hold, and
the consequences of whole GPUs and nodes: of pods with more than 1/k of a GPU at most k - 1 fit on one, and of pods with more
than half of its processors, or more than half of each of more than half of its GPUs, one fits on a node. A policy sees arrivals one by one and places whole pods, so it stays below.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import highspy

from benchmarks.placement.openb import MILLI, TraceNode, TracePod

#: Parts of a GPU that distinguish pods: more than a half, a third …
_PARTS: Final = range(2, 7)


def most_percent(nodes: Sequence[TraceNode], arriving: Sequence[TracePod]) -> float:
    """Percent of all GPUs that the best division of ``arriving`` allocates. Raises ``RuntimeError`` if the solver finds none."""
    groups = Counter(node._replace(name="") for node in nodes)
    kinds = Counter(pod._replace(name="", lifetime_s=0.0) for pod in arriving if pod.gpus)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    amounts = {
        (kind, group): solver.addVariable(lb=0, ub=many, obj=kind.total_milli)
        for kind, many in kinds.items()
        for group in groups
        if _takes(group, kind)
    }
    if not amounts:
        return 0.0
    for kind, many in kinds.items():
        of_kind = [amount for (its, _), amount in amounts.items() if its == kind]
        if of_kind:
            solver.addConstr(solver.qsum(of_kind) <= many)
    for group, number in groups.items():
        pods = [(kind, amount) for (kind, its), amount in amounts.items() if its == group]
        limits = [
            (group.cpu_milli * number, [(kind.cpu_milli, amount) for kind, amount in pods]),
            (group.memory_mib * number, [(kind.memory_mib, amount) for kind, amount in pods]),
            (group.gpus * MILLI * number, [(kind.total_milli, amount) for kind, amount in pods]),
            (number, [(1, amount) for kind, amount in pods if _takes_most(group, kind)]),
            (number, [(1, amount) for kind, amount in pods if 2 * kind.cpu_milli > group.cpu_milli]),
        ]
        limits += [
            (
                (part - 1) * group.gpus * number,
                [(kind.gpus, amount) for kind, amount in pods if part * kind.gpu_milli > MILLI],
            )
            for part in _PARTS
        ]
        for most, terms in limits:
            if terms:
                solver.addConstr(solver.qsum(factor * amount for factor, amount in terms) <= most)
    solver.maximize()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"the solver ended with {solver.getModelStatus()}")
    capacity_milli = sum(node.gpus for node in nodes) * MILLI
    return 100 * float(solver.getObjectiveValue()) / capacity_milli


def _takes_most(group: TraceNode, kind: TracePod) -> bool:
    """Whether the pod needs more than half of the node's GPUs, and none of them fits another such pod."""
    return 2 * kind.gpus > group.gpus and 2 * kind.gpu_milli > MILLI


def _takes(group: TraceNode, kind: TracePod) -> bool:
    return (
        kind.gpus <= group.gpus
        and kind.cpu_milli <= group.cpu_milli
        and kind.memory_mib <= group.memory_mib
        and (not kind.models or group.model in kind.models)
    )
