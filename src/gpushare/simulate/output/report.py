"""Report of a run: tables for people, and the same as JSON."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gpushare.api.node.device import gpu_label, is_instance
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.pluralize import counted
from gpushare.inspect.tabwriter import aligned
from gpushare.ledger.results import GpuUsage, NodeUsage
from gpushare.reasons.phrases import are, have
from gpushare.simulate.engine.eviction import Eviction
from gpushare.simulate.engine.min_nodes import Enough
from gpushare.simulate.engine.simulation import Fate, Result
from gpushare.simulate.input.replicas import ExistingPods
from gpushare.simulate.output.amounts import gib, percent
from gpushare.simulate.output.comparison import compared_policies

#: The version of the ``-o json`` format; docs/guide/simulate.md has the schema.
API_VERSION: Final = "gpushare.dev/simulation/v2"
_MOST_NODES: Final = 8
_MOST_EVICTING: Final = 20
_MOST_NAMED: Final = 3


def tables(result: Result, *, details: bool = False, existing: Sequence[ExistingPods] = ()) -> str:
    """Where all pods are placed, which are pending and why, and how full nodes are then."""
    parts = [
        _landed(result.fates, details=details),
        _evictions(result, details=details),
        _waiting(result.waiting),
        _existing(existing),
        _nodes(result.nodes, result),
    ]
    return "\n".join(part for part in parts if part)


def _landed(fates: Sequence[Fate], *, details: bool) -> str:
    if not fates:
        return "No pod is pending, and none is added.\n"
    lines: list[list[str]]
    if details:
        lines = [["NAMESPACE", "NAME", "ASKS", "NODE", "GPU"]]
        for fate in fates:
            namespace, _, name = fate.pod.partition("/")
            gpus = ",".join(str(share.index) for share in fate.gpus) or "-"
            lines.append([namespace, name, fate.asks, fate.node or "pending", gpus if fate.node else "-"])
        return "\n".join(aligned(lines)) + "\n"
    lines = [["NAMESPACE", "WORKLOAD", "ASKS", "PODS", "PLACED", "NODES"]]
    by_workload: dict[tuple[str, str], list[Fate]] = {}
    for fate in fates:
        by_workload.setdefault((fate.workload, fate.asks), []).append(fate)
    for (workload, asks), alike in by_workload.items():
        namespace, _, name = workload.partition("/")
        on = Counter(fate.node for fate in alike if fate.node)
        placed = sum(on.values())
        lines.append([namespace, name, asks, str(len(alike)), str(placed), _named(on) or "-"])
    return "\n".join(aligned(lines)) + "\n"


def _named(on: Counter[str]) -> str:
    """``n1 (2), n2``: nodes with the number of pods on each, if more than one."""
    listed = sorted(on.items())
    texts = [f"{node} ({count})" if count > 1 else node for node, count in listed[:_MOST_NODES]]
    more = len(listed) - _MOST_NODES
    return ", ".join([*texts, *([f"and {more} more"] if more > 0 else [])])


def _evictions(result: Result, *, details: bool) -> str:
    """The pods for which others are evicted, and what becomes of these; one line each."""
    if not result.evictions:
        return ""
    by_pod = {fate.pod: fate for fate in result.fates}
    victims: dict[str, list[str]] = {}
    for eviction in result.evictions:
        victims.setdefault(eviction.by, []).append(
            f"{eviction.victim} ({_fate_of_victim(eviction, by_pod[eviction.victim])})"
        )
    lines = []
    for pod, texts in victims.items():
        node = by_pod[pod].node
        where = f"lands on {node} by evicting" if node else "stays pending even after evicting"
        lines.append(f"{pod} {where} {', '.join(dict.fromkeys(texts))}")
    most = len(lines) if details else _MOST_EVICTING
    if (hidden := len(lines) - most) > 0:
        lines[most:] = [f"… and {counted(hidden, 'more pod')} {have(hidden)} others evicted: -d names them"]
    return "\n".join(lines) + "\n"


def _fate_of_victim(eviction: Eviction, fate: Fate) -> str:
    if not eviction.again:
        return "not recreated"
    return f"recreated, lands on {fate.node}" if fate.node else "recreated, pending"


def _waiting(waiting: Sequence[Fate]) -> str:
    if not waiting:
        return ""
    lines = [["PENDING", "PODS", "WHY"]]
    alike = Counter((fate.workload, fate.why) for fate in waiting)
    lines += [[workload, str(count), why] for (workload, why), count in alike.items()]
    return "\n".join(aligned(lines)) + "\n"


def _existing(existing: Sequence[ExistingPods]) -> str:
    """Assumptions about workloads that already run; one line each."""
    return "".join(f"{workload.workload}: {'; '.join(_assumptions(workload))}.\n" for workload in existing)


def _assumptions(workload: ExistingPods) -> Iterator[str]:
    yield f"existing pods: {workload.pods}, requested: {workload.asked}, created: {workload.coming}"
    if (spare := workload.pods + workload.coming - workload.asked) > 0:
        yield f"{spare} more than requested {are(spare)} assumed to stay"
    if workload.leaving:
        yield f"{workload.leaving} being deleted {are(workload.leaving)} not recreated"
    if workload.ended:
        yield f"it has ended on the cluster ({workload.ended}), and applying it again starts none: its pods are simulated nevertheless"
    if workload.differs:
        yield f"its template differs from them in {', '.join(workload.differs)}: existing pods are used as they are, no rollout is simulated"


def _not_held(fates: Sequence[Fate]) -> Iterator[str]:
    """Pods whose containers are not limited to their share on their node, by reason."""
    by_reason: dict[str, Counter[str]] = {}
    for fate in fates:
        if fate.not_held:
            by_reason.setdefault(fate.not_held, Counter())[fate.node] += 1
    for reason, on in by_reason.items():
        yield f"Not enforced: shares of pods on {_named(on)}: {reason}."


def _not_offered(nodes: Iterable[NodeUsage]) -> Iterator[str]:
    """Why some GPUs take less than the table shows as free."""
    gpus = [(node.node, gpu) for node in nodes for gpu in node.gpus]
    if foreign := [
        f"{gpu.foreign_mib} MiB of {_gpu(gpu)} on {node}" for node, gpu in gpus if gpu.foreign_mib
    ]:
        yield f"Not available, used without an allocation: {_few(foreign)}."
    if out := [f"{_gpu(gpu)} on {node}" for node, gpu in gpus if not gpu.healthy]:
        yield f"Not available, unhealthy: {_few(out)}."


def _gpu(gpu: GpuUsage) -> str:
    return f"GPU {gpu_label(gpu.index, instance=is_instance(gpu.uuid))}"


def _nodes(nodes: Sequence[NodeUsage], result: Result) -> str:
    """A row for each node with GPUs, with the units of each GPU; one table per unit, as in ``kubectl inspect cgpu``."""
    having = [node for node in nodes if node.gpus]
    if not having:
        return "No node has GPUs.\n"
    units = [unit for unit in MemoryUnit if any(node.unit is unit for node in having)]
    tables = [_table([node for node in having if node.unit is unit], unit, units) for unit in units]
    before, after = result.curve[0], result.curve[-1]
    pods, waiting = len(result.fates), len(result.waiting)
    lines = [
        f"GPU memory allocated: {gib(before.allocated_mib)} of {gib(after.total_mib)} GiB ({percent(before.allocated_mib, before.total_mib)}%) "
        f"before, {gib(after.allocated_mib)} GiB ({percent(after.allocated_mib, after.total_mib)}%) after.",
        f"{counted(pods, 'pod')} simulated, {waiting} pending. Policy: {result.settings.policy_name}.",
    ]
    if result.evictions:
        again = sum(eviction.again for eviction in result.evictions)
        lines.append(f"{len(result.evictions)} evicted for higher-priority pods, {again} of them recreated.")
    lines += _not_held(result.fates)
    lines += _not_offered(having)
    if jobs := ends_unknown(result.fates):
        lines.append(
            f"The end of Jobs is unknown: {_few(jobs)} {'keeps its' if len(jobs) == 1 else 'keep their'} allocation."
        )
    if result.ignored:
        lines.append(f"Ignored, though pods request it: {', '.join(result.ignored)}.")
    return "\n\n".join([*tables, "\n".join(lines)]) + "\n"


def _table(nodes: Sequence[NodeUsage], unit: MemoryUnit, units: Sequence[MemoryUnit]) -> str:
    """Nodes that count in ``unit``, which is named if there are several: amounts in two units must not be mistaken for each other."""
    most = max(len(node.gpus) for node in nodes)
    heading = f"GPU Memory({unit.heading})" if len(units) > 1 else "GPU Memory"
    lines = [["NAME", *(f"GPU{index}(Allocated/Total)" for index in range(most)), heading]]
    for node in nodes:
        cells = [f"{gpu.used_units}/{gpu.total_units}" for gpu in node.gpus]
        used, total = sum(gpu.used_units for gpu in node.gpus), sum(gpu.total_units for gpu in node.gpus)
        lines.append([node.node, *cells, *["0/0"] * (most - len(cells)), f"{used}/{total}"])
    return "\n".join(aligned(lines))


def ends_unknown(fates: Iterable[Fate]) -> list[str]:
    """The Jobs among the simulated workloads (``NAMESPACE/Job NAME``): their pods end at some time that is unknown."""
    return list(
        dict.fromkeys(fate.workload for fate in fates if fate.workload.partition("/")[2].startswith("Job "))
    )


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def enough_table(results: Iterable[Enough]) -> str:
    """A row for each shape: how many more nodes are enough."""
    lines = [["SHAPE", "MORE NODES", "ALLOCATED THEN", "STILL PENDING"]]
    for result in results:
        last = result.result.curve[-1]
        allocated = f"{gib(last.allocated_mib)}/{gib(last.total_mib)} GiB ({percent(last.allocated_mib, last.total_mib)}%)"
        still = Counter(f"{fate.workload}: {fate.why}" for fate in result.still_waiting)
        pending = "; ".join(f"{count} × {reason}" for reason, count in still.items()) or "none"
        lines.append([result.shape.text, str(result.count), allocated, pending])
    return "\n".join(aligned(lines)) + "\n"


def structured(
    result: Result,
    found: Sequence[Enough] = (),
    skipped: Sequence[str] = (),
    existing: Sequence[ExistingPods] = (),
    warnings: Sequence[str] = (),
    compared: Sequence[Result] = (),
) -> dict[str, Any]:
    """The run for programs; the schema is in docs/guide/simulate.md."""
    before, after = result.curve[0], result.curve[-1]
    return {
        "apiVersion": API_VERSION,
        "policy": result.settings.policy_name,
        "warnings": list(warnings),
        "pods": [_pod(fate) for fate in result.fates],
        "evictions": [
            {"pod": one.victim, "node": one.node, "for": one.by, "recreated": one.again}
            for one in result.evictions
        ],
        "nodes": [_node(node) for node in result.nodes if node.gpus],
        "memory": {
            "allocatedBeforeMiB": before.allocated_mib,
            "allocatedMiB": after.allocated_mib,
            "totalMiB": after.total_mib,
        },
        "pending": len(result.waiting),
        "curve": [
            {
                "arrived": one.arrived,
                "allocatedMiB": one.allocated_mib,
                "allocatedCorePercent": one.allocated_core,
                "pending": one.waiting,
            }
            for one in result.curve
        ],
        "minNodes": [
            {
                "shape": one.shape.text,
                "moreNodes": one.count,
                "stillPending": [fate.pod for fate in one.still_waiting],
                "allocatedMiB": one.result.curve[-1].allocated_mib,
                "totalMiB": one.result.curve[-1].total_mib,
            }
            for one in found
        ],
        "compared": compared_policies(compared),
        "skipped": list(skipped),
        "existing": [
            {
                "workload": one.workload,
                "asked": one.asked,
                "pods": one.pods,
                "coming": one.coming,
                "leaving": one.leaving,
                "differs": list(one.differs),
                "ended": one.ended or None,
            }
            for one in existing
        ],
        "ignored": list(result.ignored),
        "endsUnknown": ends_unknown(result.fates),
    }


def _pod(fate: Fate) -> dict[str, Any]:
    namespace, _, name = fate.pod.partition("/")
    return {
        "namespace": namespace,
        "name": name,
        "workload": fate.workload.partition("/")[2],
        "asks": fate.asks,
        "new": fate.is_new,
        "node": fate.node or None,
        "gpus": [
            {
                "index": share.index,
                "uuid": share.uuid,
                "units": share.units,
                "memoryMiB": share.mib,
                "corePercent": share.core_percent,
            }
            for share in fate.gpus
        ],
        "evictedFor": fate.evicted_by or None,
        "notEnforced": fate.not_held or None,
        "why": fate.why,
    }


def _node(node: NodeUsage) -> dict[str, Any]:
    return {
        "name": node.node,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "totalMiB": gpu.total_mib,
                "allocatedMiB": gpu.used_mib,
                "corePercent": gpu.used_core,
                "pods": len(gpu.pods),
                "unmanagedMiB": gpu.foreign_mib,
                "healthy": gpu.healthy,
            }
            for gpu in node.gpus
        ],
    }
