"""The table of pods on GPUs: allocated and used memory and compute."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from gpushare.api.node.device import gpu_label, is_instance
from gpushare.api.node.overuse_threshold import is_over_compute, is_over_memory
from gpushare.inspect.color import Paint
from gpushare.inspect.tabwriter import aligned

#: Text of an unknown figure.
MISSING: Final = "-"
#: Names are not shortened further: the length of the longest heading of a name.
_MIN_NAME_LENGTH: Final = 9


class Row(NamedTuple):
    """A pod on a GPU. Usage is ``None`` where it is unknown.

    ``containers``: those with a part of the share, set only where containers of the pod have different GPUs.
    """

    namespace: str
    name: str
    uid: str
    node: str
    gpu: int
    uuid: str
    allocated_mib: int
    used_mib: "float | None"
    allocated_core_percent: int
    used_core_percent: "float | None"
    containers: "tuple[str, ...] | None" = None
    claim: str = ""
    """The ResourceClaim that holds the share, for the pods in ``name``."""
    limit_mib: int = 0
    """What the pod may use while the GPU has it free; 0: what is allocated to it."""


def by_memory(row: Row) -> "tuple[float, ...]":
    """Sort key: used memory, then, for pods of unknown usage, below all others, allocated memory."""
    return (-1.0 if row.used_mib is None else row.used_mib, row.allocated_mib)


def by_compute(row: Row) -> "tuple[float, ...]":
    """Sort key: used compute, as ``by_memory``."""
    return (-1.0 if row.used_core_percent is None else row.used_core_percent, row.allocated_core_percent)


ORDERS: Final = {"memory": by_memory, "compute": by_compute}


def table(rows: Sequence[Row], paint: Paint, width: "int | None" = None) -> list[str]:
    """The rows in columns below a heading; pods that clearly use more than their share are red.

    Where containers of a pod have different GPUs, an additional column lists the containers that have the GPU; where pods may use more than
    their share, one has how much.
    If ``width`` is set, no line has more characters. To fit, names are shortened, then headings; then the least useful columns are
    removed, and lines that are still too long are cut.
    """
    optional = {
        _CONTAINERS: any(row.containers is not None for row in rows),
        _LIMIT: any(row.limit_mib for row in rows),
    }
    layouts = _layouts([column for column in _COLUMNS if optional.get(column, True)])
    if width is None:
        head, *rest = _rendered(rows, next(layouts))
    else:
        for layout in layouts:
            head, *rest = _rendered(rows, layout, width)
            if max(map(len, (head, *rest))) <= width:
                break
        # Cut before adding colours: the cut must not remove the sequence that ends a colour.
        head, *rest = (line[:width] for line in (head, *rest))
    return [
        paint("bold", head),
        *(paint("red", line) if _is_over(row) else line for row, line in zip(rows, rest)),  # noqa: B905 (same length)
    ]


def _figure(value: "float | None") -> str:
    return MISSING if value is None else f"{value:.0f}"


class _Column(NamedTuple):
    """``short``: the heading on a narrow screen. Cells of columns with ``name`` may be shortened."""

    heading: str
    short: str
    cell: "Callable[[Row], str]"
    name: bool = False


_NAMESPACE: Final = _Column("NAMESPACE", "NAMESPACE", lambda row: row.namespace, name=True)
_NODE: Final = _Column("NODE", "NODE", lambda row: row.node, name=True)
_GPU: Final = _Column("GPU", "GPU", lambda row: gpu_label(row.gpu, instance=is_instance(row.uuid)))
_ALLOCATED: Final = _Column("ALLOC(MiB)", "ALLOC", lambda row: str(row.allocated_mib))
_ALLOCATED_CORE: Final = _Column(
    "ALLOC(%)", "ALLOC%", lambda row: _figure(row.allocated_core_percent or None)
)
_CONTAINERS: Final = _Column(
    "CONTAINERS", "CONTAINERS", lambda row: ", ".join(row.containers or ()), name=True
)
_LIMIT: Final = _Column("LIMIT(MiB)", "LIMIT", lambda row: _figure(row.limit_mib or None))
_COLUMNS: Final = (
    _NAMESPACE,
    _Column("NAME", "NAME", lambda row: row.name, name=True),
    _NODE,
    _GPU,
    _ALLOCATED,
    _LIMIT,
    _Column("USED(MiB)", "USED", lambda row: _figure(row.used_mib)),
    _ALLOCATED_CORE,
    _Column("USED(%)", "USED%", lambda row: _figure(row.used_core_percent)),
    _CONTAINERS,
)
#: Columns removed on a narrow screen, in this order; a GPU's index is useless without its node.
_REMOVED_IN_ORDER: Final = (
    (_CONTAINERS,),
    (_NAMESPACE,),
    (_NODE, _GPU),
    (_ALLOCATED_CORE,),
    (_LIMIT,),
    (_ALLOCATED,),
)

_Layout = Sequence[tuple[str, _Column]]


def _layouts(columns: Sequence[_Column]) -> Iterator[_Layout]:
    """``columns`` with their headings, the widest layout first."""
    yield [(column.heading, column) for column in columns]
    yield [(column.short, column) for column in columns]
    for removed in _REMOVED_IN_ORDER:
        columns = [column for column in columns if column not in removed]
        yield [(column.short, column) for column in columns]


def _rendered(rows: Sequence[Row], layout: _Layout, width: "int | None" = None) -> list[str]:
    """The lines; if they exceed ``width``, the longest names are shortened as far as allowed."""
    heading = [heading for heading, _ in layout]
    cells = [[column.cell(row) for _, column in layout] for row in rows]
    lines = aligned([heading, *cells])
    if width is None or not cells:
        return lines
    excess = max(map(len, lines)) - width
    names = [position for position, (_, column) in enumerate(layout) if column.name]
    # A column is never narrower than its heading.
    widths = [
        (max(len(line[position]) for line in (heading, *cells)), len(heading[position])) for position in names
    ]
    max_length = max(widest for widest, _ in widths)
    while (
        max_length > _MIN_NAME_LENGTH
        and sum(widest - max(min(widest, max_length), min_length) for widest, min_length in widths) < excess
    ):
        max_length -= 1
    for line in cells:
        for position in names:
            line[position] = shortened(line[position], max_length)
    return aligned([heading, *cells])


def shortened(name: str, max_length: int) -> str:
    """``name`` in at most ``max_length`` characters, cut in its middle: the end distinguishes pods of one owner."""
    if len(name) <= max_length:
        return name
    end = (max_length - 1) // 2
    return f"{name[: max_length - 1 - end]}…{name[len(name) - end :]}"


def _is_over(row: Row) -> bool:
    """Whether usage exceeds the watchdog's thresholds; less is within the measurement's accuracy."""
    most_mib = row.limit_mib or row.allocated_mib
    return (row.used_mib is not None and is_over_memory(row.used_mib, most_mib)) or (
        row.used_core_percent is not None
        and is_over_compute(row.used_core_percent, row.allocated_core_percent)
    )
