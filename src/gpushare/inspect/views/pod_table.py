"""The table of pods on GPUs, with what is really used beside what was given."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from gpushare.api.node.overuse_threshold import is_over_compute, is_over_memory
from gpushare.inspect.color import Paint
from gpushare.inspect.tabwriter import aligned

#: What stands where nobody knows.
MISSING: Final = "-"
#: No name is made shorter: so long is the longest heading of what everybody has.
_LEAST_NAME: Final = 9


class Row(NamedTuple):
    """A pod on a GPU. What is used is ``None`` where it is not known.

    ``containers``: those that have a part of the GPU, where not all containers of the pod have the same GPUs.
    """

    namespace: str
    name: str
    uid: str
    node: str
    gpu: int
    uuid: str
    given_mib: int
    used_mib: "float | None"
    given_core_percent: int
    used_core_percent: "float | None"
    containers: "tuple[str, ...] | None" = None


def by_memory(one: Row) -> "tuple[float, ...]":
    """Who really uses most memory first; who is not known by what was given, below all that are."""
    return (-1.0 if one.used_mib is None else one.used_mib, one.given_mib)


def by_compute(one: Row) -> "tuple[float, ...]":
    """The same by compute."""
    return (-1.0 if one.used_core_percent is None else one.used_core_percent, one.given_core_percent)


ORDERS: Final = {"memory": by_memory, "compute": by_compute}


def table(some: Sequence[Row], paint: Paint, width: "int | None" = None) -> list[str]:
    """The rows in columns below a heading; whoever uses clearly more than it was given is red.

    Where containers of a pod have different GPUs, a column more says which of them has the GPU.
    No line is longer than ``width``, in characters, where there is one: names become shorter first, then headings, then columns go,
    those that say least first; what is still too long is cut.
    """
    layouts = _layouts(containers=any(one.containers is not None for one in some))
    if width is None:
        head, *rest = _set(some, next(layouts))
    else:
        for layout in layouts:
            head, *rest = _set(some, layout, width)
            if max(map(len, (head, *rest))) <= width:
                break
        # Cut before it is coloured: what is cut off must not be the end of a colour.
        head, *rest = (line[:width] for line in (head, *rest))
    return [
        paint("bold", head),
        *(paint("red", line) if _is_over(one) else line for one, line in zip(some, rest)),  # noqa: B905 (as many)
    ]


def _figure(value: "float | None") -> str:
    return MISSING if value is None else f"{value:.0f}"


class _Column(NamedTuple):
    """``short``: the heading on a narrow screen. Cells of a ``name`` may be shortened."""

    heading: str
    short: str
    cell: "Callable[[Row], str]"
    name: bool = False


_NAMESPACE: Final = _Column("NAMESPACE", "NAMESPACE", lambda one: one.namespace, name=True)
_NODE: Final = _Column("NODE", "NODE", lambda one: one.node, name=True)
_GPU: Final = _Column("GPU", "GPU", lambda one: str(one.gpu))
_GIVEN: Final = _Column("GIVEN(MiB)", "GIVEN", lambda one: str(one.given_mib))
_GIVEN_CORE: Final = _Column("GIVEN(%)", "GIVEN%", lambda one: _figure(one.given_core_percent or None))
_CONTAINERS: Final = _Column(
    "CONTAINERS", "CONTAINERS", lambda one: ", ".join(one.containers or ()), name=True
)
_COLUMNS: Final = (
    _NAMESPACE,
    _Column("NAME", "NAME", lambda one: one.name, name=True),
    _NODE,
    _GPU,
    _GIVEN,
    _Column("USED(MiB)", "USED", lambda one: _figure(one.used_mib)),
    _GIVEN_CORE,
    _Column("USED(%)", "USED%", lambda one: _figure(one.used_core_percent)),
)
#: What a narrow screen goes without, one after the other: a GPU's number says nothing without its node.
_GOING: Final = ((_CONTAINERS,), (_NAMESPACE,), (_NODE, _GPU), (_GIVEN_CORE,), (_GIVEN,))

_Layout = Sequence[tuple[str, _Column]]


def _layouts(*, containers: bool) -> Iterator[_Layout]:
    """Columns with their headings, the widest layout first."""
    columns: Sequence[_Column] = (*_COLUMNS, _CONTAINERS) if containers else _COLUMNS
    yield [(one.heading, one) for one in columns]
    yield [(one.short, one) for one in columns]
    for going in _GOING:
        columns = [one for one in columns if one not in going]
        yield [(one.short, one) for one in columns]


def _set(some: Sequence[Row], layout: _Layout, width: "int | None" = None) -> list[str]:
    """The lines; of more than ``width`` the longest names are shortened, as far as they may be."""
    heading = [heading for heading, _ in layout]
    cells = [[column.cell(one) for _, column in layout] for one in some]
    lines = aligned([heading, *cells])
    if width is None or not cells:
        return lines
    over = max(map(len, lines)) - width
    names = [at for at, (_, column) in enumerate(layout) if column.name]
    # A column is never narrower than its heading.
    widths = [(max(len(line[at]) for line in (heading, *cells)), len(heading[at])) for at in names]
    most = max(widest for widest, _ in widths)
    while (
        most > _LEAST_NAME and sum(widest - max(min(widest, most), least) for widest, least in widths) < over
    ):
        most -= 1
    for line in cells:
        for at in names:
            line[at] = shortened(line[at], most)
    return aligned([heading, *cells])


def shortened(name: str, most: int) -> str:
    """``name`` in ``most`` characters: its middle goes, as what tells pods of one owner apart is at the end."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[len(name) - end :]}"


def _is_over(one: Row) -> bool:
    """By the bounds of the watchdog: less than that is how it is measured."""
    return (one.used_mib is not None and is_over_memory(one.used_mib, one.given_mib)) or (
        one.used_core_percent is not None and is_over_compute(one.used_core_percent, one.given_core_percent)
    )
