"""What is told of a run: tables for people, and the same as JSON."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.pluralize import counted
from gpushare.inspect.tabwriter import aligned
from gpushare.ledger.results import NodeUsage
from gpushare.reasons.phrases import are, have
from gpushare.simulate.engine.eviction import Eviction
from gpushare.simulate.engine.min_nodes import Enough
from gpushare.simulate.engine.simulation import Fate, Result
from gpushare.simulate.input.replicas import There

#: What ``-o json`` calls its form; docs/guide/simulate.md has the schema.
API_VERSION: Final = "gpushare.dev/simulation/v2"
_MOST_NODES: Final = 8
_MOST_EVICTING: Final = 20
_MOST_JOBS: Final = 3


def tables(result: Result, *, details: bool = False, there: Sequence[There] = ()) -> str:
    """Where all land, what waits and why, and how full nodes are then."""
    parts = [
        _landed(result.fates, details=details),
        _evictions(result, details=details),
        _waiting(result.waiting),
        _there(there),
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
    """``n1 (2), n2``: nodes with how many pods go there, where that is more than one."""
    listed = sorted(on.items())
    told = [f"{node} ({count})" if count > 1 else node for node, count in listed[:_MOST_NODES]]
    more = len(listed) - _MOST_NODES
    return ", ".join([*told, *([f"and {more} more"] if more > 0 else [])])


def _evictions(result: Result, *, details: bool) -> str:
    """For whom others have to go, and what becomes of these; a line for each."""
    if not result.evictions:
        return ""
    by_pod = {fate.pod: fate for fate in result.fates}
    victims: dict[str, list[str]] = {}
    for one in result.evictions:
        victims.setdefault(one.by, []).append(f"{one.victim} ({_then(one, by_pod[one.victim])})")
    lines = []
    for pod, told in victims.items():
        node = by_pod[pod].node
        where = f"lands on {node} by evicting" if node else "stays pending even after evicting"
        lines.append(f"{pod} {where} {', '.join(dict.fromkeys(told))}")
    most = len(lines) if details else _MOST_EVICTING
    if (more := len(lines) - most) > 0:
        lines[most:] = [f"… and {counted(more, 'more pod')} {have(more)} others evicted: -d names them"]
    return "\n".join(lines) + "\n"


def _then(one: Eviction, fate: Fate) -> str:
    if not one.again:
        return "not recreated"
    return f"recreated, lands on {fate.node}" if fate.node else "recreated, pending"


def _waiting(waiting: Sequence[Fate]) -> str:
    if not waiting:
        return ""
    lines = [["PENDING", "PODS", "WHY"]]
    alike = Counter((fate.workload, fate.why) for fate in waiting)
    lines += [[workload, str(count), why] for (workload, why), count in alike.items()]
    return "\n".join(aligned(lines)) + "\n"


def _there(there: Sequence[There]) -> str:
    """What is taken for granted of workloads that run already; a line for each."""
    return "".join(f"{one.workload}: {'; '.join(_granted(one))}.\n" for one in there)


def _granted(one: There) -> Iterator[str]:
    yield f"pods there already: {one.pods}, asked for: {one.asked}, to come: {one.coming}"
    if (spare := one.pods + one.coming - one.asked) > 0:
        yield f"{spare} more than it asks for {are(spare)} taken to stay"
    if one.leaving:
        yield f"{one.leaving} being deleted {are(one.leaving)} not recreated"
    if one.ended:
        yield f"it has ended on the cluster ({one.ended}), and applying it again starts none: they are counted as to come all the same"
    if one.differs:
        yield f"its template differs from them in {', '.join(one.differs)}: they are taken as they are, no rollout is simulated"


def _not_held(fates: Sequence[Fate]) -> Iterator[str]:
    """Whose containers nothing holds to their share, where they land, for each reason."""
    by_reason: dict[str, Counter[str]] = {}
    for fate in fates:
        if fate.not_held:
            by_reason.setdefault(fate.not_held, Counter())[fate.node] += 1
    for why, on in by_reason.items():
        yield f"Not enforced: shares of pods on {_named(on)}: {why}."


def _nodes(nodes: Sequence[NodeUsage], result: Result) -> str:
    """A row for each node with GPUs, units of each of them, and a table for each unit, as ``kubectl inspect cgpu`` has it."""
    having = [node for node in nodes if node.gpus]
    if not having:
        return "No node has GPUs.\n"
    units = [unit for unit in MemoryUnit if any(node.unit is unit for node in having)]
    tables = [_table([node for node in having if node.unit is unit], unit, units) for unit in units]
    before, after = result.curve[0], result.curve[-1]
    pods, waiting = len(result.fates), len(result.waiting)
    told = [
        f"GPU memory allocated: {_gib(before.given_mib)} of {_gib(after.total_mib)} GiB ({_percent(before.given_mib, before.total_mib)}%) "
        f"before, {_gib(after.given_mib)} GiB ({_percent(after.given_mib, after.total_mib)}%) after.",
        f"{counted(pods, 'pod')} simulated, {waiting} pending. Policy: {result.settings.policy.value}.",
    ]
    if result.evictions:
        again = sum(one.again for one in result.evictions)
        told.append(f"{len(result.evictions)} evicted for more important pods, {again} of them recreated.")
    told += _not_held(result.fates)
    if jobs := ends_unknown(result.fates):
        told.append(
            f"When Jobs end is not known: {_few(jobs)} {'keeps what it holds' if len(jobs) == 1 else 'keep what they hold'}."
        )
    if result.unheeded:
        told.append(f"Ignored, though pods request it: {', '.join(result.unheeded)}.")
    return "\n\n".join([*tables, "\n".join(told)]) + "\n"


def _table(nodes: Sequence[NodeUsage], unit: MemoryUnit, units: Sequence[MemoryUnit]) -> str:
    """Nodes that count in ``unit``, which is named where there are others: what is in two units is not to be read as one."""
    most = max(len(node.gpus) for node in nodes)
    heading = f"GPU Memory({unit.heading})" if len(units) > 1 else "GPU Memory"
    lines = [["NAME", *(f"GPU{index}(Allocated/Total)" for index in range(most)), heading]]
    for node in nodes:
        cells = [f"{gpu.used_units}/{gpu.total_units}" for gpu in node.gpus]
        used, total = sum(gpu.used_units for gpu in node.gpus), sum(gpu.total_units for gpu in node.gpus)
        lines.append([node.node, *cells, *["0/0"] * (most - len(cells)), f"{used}/{total}"])
    return "\n".join(aligned(lines))


def ends_unknown(fates: Iterable[Fate]) -> list[str]:
    """The Jobs among what was looked at (``NAMESPACE/Job NAME``): their pods end some day, and nothing here says when."""
    return list(
        dict.fromkeys(fate.workload for fate in fates if fate.workload.partition("/")[2].startswith("Job "))
    )


def _few(jobs: Sequence[str]) -> str:
    more = len(jobs) - _MOST_JOBS
    return ", ".join([*jobs[:_MOST_JOBS], *([f"and {more} more"] if more > 0 else [])])


def enough_table(found: Iterable[Enough]) -> str:
    """A row for each shape: how many more nodes are enough."""
    lines = [["SHAPE", "MORE NODES", "ALLOCATED THEN", "STILL PENDING"]]
    for one in found:
        last = one.result.curve[-1]
        given = (
            f"{_gib(last.given_mib)}/{_gib(last.total_mib)} GiB ({_percent(last.given_mib, last.total_mib)}%)"
        )
        still = Counter(f"{fate.workload}: {fate.why}" for fate in one.still_waiting)
        told = "; ".join(f"{count} × {why}" for why, count in still.items()) or "none"
        lines.append([one.shape.told, str(one.count), given, told])
    return "\n".join(aligned(lines)) + "\n"


def structured(
    result: Result,
    found: Sequence[Enough] = (),
    passed_over: Sequence[str] = (),
    there: Sequence[There] = (),
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The run for programs; the schema is in docs/guide/simulate.md."""
    before, after = result.curve[0], result.curve[-1]
    return {
        "apiVersion": API_VERSION,
        "policy": result.settings.policy.value,
        "warnings": list(warnings),
        "pods": [_pod(fate) for fate in result.fates],
        "evictions": [
            {"pod": one.victim, "node": one.node, "for": one.by, "recreated": one.again}
            for one in result.evictions
        ],
        "nodes": [_node(node) for node in result.nodes if node.gpus],
        "memory": {
            "allocatedBeforeMiB": before.given_mib,
            "allocatedMiB": after.given_mib,
            "totalMiB": after.total_mib,
        },
        "pending": len(result.waiting),
        "curve": [
            {
                "arrived": one.arrived,
                "allocatedMiB": one.given_mib,
                "allocatedCorePercent": one.given_core,
                "pending": one.waiting,
            }
            for one in result.curve
        ],
        "minNodes": [
            {
                "shape": one.shape.told,
                "moreNodes": one.count,
                "stillPending": [fate.pod for fate in one.still_waiting],
                "allocatedMiB": one.result.curve[-1].given_mib,
                "totalMiB": one.result.curve[-1].total_mib,
            }
            for one in found
        ],
        "skipped": list(passed_over),
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
            for one in there
        ],
        "ignored": list(result.unheeded),
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
            }
            for gpu in node.gpus
        ],
    }


def _gib(mib: int) -> str:
    return f"{mib / 1024:.0f}"


def _percent(part: int, whole: int) -> int:
    return 100 * part // whole if whole else 0
