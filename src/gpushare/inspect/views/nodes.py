"""The table of nodes in the documented layout, and the columns that ``-o wide`` adds.

Without compute and with one memory unit in the cluster, the output is byte for byte that of ACK's documentation. Nodes with different
units get a table per unit, because GiB and 128 MiB cannot be added up.
"""

from collections.abc import Sequence
from typing import Final

from gpushare.api.quantity import MemoryUnit
from gpushare.inspect.tabwriter import aligned, raw_length
from gpushare.inspect.views.allocation_model import ClusterUsage, NodeUsage, percent

#: The documented separator is longer by this than the first node's line before alignment.
_RULE_BEYOND_LINE: Final = 20


def summary(cluster: ClusterUsage, *, wide: bool = False) -> str:
    """The table, each line with a line end; empty when no node shares GPU memory."""
    several = len(cluster.units) > 1
    tables = [
        _table([node for node in cluster.nodes if node.unit is unit], unit, wide=wide, unit_in_sum=several)
        for unit in cluster.units
    ]
    if any(node.total_core_percent for node in cluster.nodes):
        core = f"{CORE_SUM_HEADING}\n{core_sum(cluster.nodes)}\n"
        # The sum ends a single table; with several tables it stands alone.
        tables = [*tables, core] if several else [tables[0] + core]
    return "\n".join(tables)


def sum_heading(unit: MemoryUnit, *, unit_in_sum: bool) -> str:
    """Heading of the cluster's sum, with the unit where there are several."""
    return f"Allocated/Total GPU Memory In Cluster{f'({unit.heading})' if unit_in_sum else ''}:"


CORE_SUM_HEADING: Final = "Allocated/Total GPU Core In Cluster:"


def sum_of(used: int, total: int) -> str:
    """``3/15 (20%)``."""
    return f"{used}/{total} ({percent(used, total)}%)"


def memory_sum(nodes: Sequence[NodeUsage]) -> str:
    """``3/15 (20%)`` over ``nodes`` of one unit."""
    return sum_of(sum(node.used_units for node in nodes), sum(node.total_units for node in nodes))


def core_sum(nodes: Sequence[NodeUsage]) -> str:
    """``90/400 (22%)`` over ``nodes``."""
    return sum_of(
        sum(node.used_core_percent for node in nodes), sum(node.total_core_percent for node in nodes)
    )


def _table(nodes: Sequence[NodeUsage], unit: MemoryUnit, *, wide: bool, unit_in_sum: bool) -> str:
    columns = _columns(nodes)
    pending = any(node.has_pending for node in nodes)
    core = any(node.total_core_percent for node in nodes)
    heading = ["NAME", "IPADDRESS"]
    heading += [f"GPU{label}(Allocated/Total)" for label in columns]
    heading += ["PENDING(Allocated)"] if pending else []
    heading.append(f"GPU Memory({unit.heading})")
    heading += ["GPU Core(%)"] if core else []
    if wide:
        heading += [f"GPU{label} Core(%)" for label in columns] if core else []
        heading += ["MODE", "HEALTHY", "MODEL"]
    lines = [heading]
    for node in nodes:
        line = _node_line(node, columns, pending=pending, core=core)
        if wide:
            line += _wide_cells(node, columns, core=core)
        lines.append(line)
    text = aligned(lines)
    text.append("-" * (raw_length(lines[1]) + _RULE_BEYOND_LINE))
    text += [sum_heading(unit, unit_in_sum=unit_in_sum), memory_sum(nodes)]
    return "\n".join(text) + "\n"


def _columns(nodes: Sequence[NodeUsage]) -> list[str]:
    """The labels of all GPUs up to the last one that any node has, each followed by those of its MIG instances."""
    places = {gpu.device.place: gpu.device.label for node in nodes for gpu in node.gpus}
    last = max(place[0] for place in places)
    return [
        label for _, label in sorted((places | {(index,): str(index) for index in range(last + 1)}).items())
    ]


def _node_line(node: NodeUsage, columns: Sequence[str], *, pending: bool, core: bool) -> list[str]:
    memory = {gpu.device.label: f"{gpu.used_units}/{gpu.total_units}" for gpu in node.gpus}
    line = [node.name, node.address, *(memory.get(label, "0/0") for label in columns)]
    if pending:
        line.append(str(node.pending_units) if node.has_pending else "")
    line.append(f"{node.used_units}/{node.total_units}")
    if core:
        line.append(f"{node.used_core_percent}/{node.total_core_percent}")
    return line


def _wide_cells(node: NodeUsage, columns: Sequence[str], *, core: bool) -> list[str]:
    cells: list[str] = []
    if core:
        percents = {
            gpu.device.label: f"{gpu.used_core_percent}/100"
            for gpu in (node.gpus if node.total_core_percent else ())
        }
        cells = [percents.get(label, "0/0") for label in columns]
    healthy = sum(not gpu.device.is_faulty for gpu in node.gpus)
    models: dict[str, int] = {}
    for gpu in node.gpus:
        model = gpu.device.model or "unknown"
        models[model] = models.get(model, 0) + 1
    return [
        *cells,
        node.devices.mode.value,
        f"{healthy}/{len(node.gpus)}",
        ", ".join(f"{count} x {model}" for model, count in models.items()),
    ]
