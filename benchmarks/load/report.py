"""Results of each attack, as figures with budgets and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.budgets import Figures
from benchmarks.load.clients import Response

#: ``make bench`` promises no more for filter: below that, on few processors, only the kernel's scheduling is measured.
UNNOTICED_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Probed:
    """The probes of one part during an attack."""

    healthz: Sequence[Response]
    readyz: Sequence[Response]
    failures: int
    """Number of failed liveness probes in a row until the container is restarted."""

    @property
    def failed_in_a_row(self) -> int:
        """The longest sequence of failed probes of one kind."""
        return max(_row_of_failed(self.healthz), _row_of_failed(self.readyz))

    @property
    def is_restarted(self) -> bool:
        """Whether the kubelet would have restarted the container."""
        return _row_of_failed(self.healthz) >= self.failures


@dataclass(frozen=True, slots=True)
class Row:
    """One attack. Times in seconds, memory in MiB by part; ``sent``: counts of the attackers' actions."""

    door: str
    part: str
    kind: str
    filter_at_rest: Sequence[float]
    filter_attacked: Sequence[float]
    review_at_rest: Sequence[float]
    review_attacked: Sequence[float]
    allocate_at_rest: Sequence[float]
    allocate_attacked: Sequence[float]
    probes: dict[str, Probed]
    clients: Sequence[Response]
    memory_mib: dict[str, float]
    sent: dict[str, int] = field(default_factory=dict)

    @property
    def filter_ratio(self) -> float:
        """The ratio of filter's p99 to that before; values below ``UNNOTICED_S`` count as that."""
        attacked, at_rest = (percentile(one, 0.99) for one in (self.filter_attacked, self.filter_at_rest))
        return max(attacked, UNNOTICED_S) / max(at_rest, UNNOTICED_S)

    def failed_probes(self) -> list[tuple[str, Response]]:
        """Failed probes with their parts."""
        return [
            (part, one)
            for part, probed in self.probes.items()
            for one in (*probed.healthz, *probed.readyz)
            if not one.good
        ]


def _row_of_failed(probes: Sequence[Response]) -> int:
    longest = row = 0
    for one in probes:
        row = 0 if one.good else row + 1
        longest = max(longest, row)
    return longest


def percentile(times: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the times lie; 0 without times."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def figures_of(rows: Sequence[Row], limits_mib: dict[str, int]) -> Figures:
    """The worst result of all attacks for each budget."""
    found: Figures = {}
    for door in dict.fromkeys(row.door for row in rows):
        ratios = [row.filter_ratio for row in rows if row.door == door]
        found[f"load_filter_p99_ratio_{door}"] = (max(ratios), "ratio")
        found[f"load_unanswered_{door}"] = (
            float(sum(not one.answered for row in rows if row.door == door for one in row.clients)),
            "requests",
        )
    for part, limit in limits_mib.items():
        peak = max(row.memory_mib[part] for row in rows)
        found[f"load_memory_mib_{part}"] = (peak, "MiB")
        found[f"load_memory_percent_of_limit_{part}"] = (100 * peak / limit, "%")
        probed = [row.probes[part] for row in rows]
        found[f"load_probes_failed_in_a_row_{part}"] = (
            float(max(one.failed_in_a_row for one in probed)),
            "probes",
        )
        found[f"load_probe_most_s_{part}"] = (
            # On a busy machine no probe may end within the short time of ``--quick``.
            max((one.took_s for each in probed for one in (*each.healthz, *each.readyz)), default=0.0),
            "s",
        )
    found["load_restarts"] = (
        float(sum(one.is_restarted for row in rows for one in row.probes.values())),
        "containers",
    )
    found["load_probes_failed"] = (float(sum(len(row.failed_probes()) for row in rows)), "probes")
    for what, at_rest in (
        ("filter", [one for row in rows for one in row.filter_at_rest]),
        ("review", [one for row in rows for one in row.review_at_rest]),
        ("allocate", [one for row in rows for one in row.allocate_at_rest]),
    ):
        found[f"load_{what}_p50_ms_at_rest"] = (1e3 * percentile(at_rest, 0.5), "ms")
        found[f"load_{what}_p99_ms_at_rest"] = (1e3 * percentile(at_rest, 0.99), "ms")
    return found


HEAD = (
    "attacked",
    "by",
    "connections",
    "filter p50, p99",
    "p99 to that at rest",
    "review p99",
    "Allocate p99",
    "probes failed, longest",
    "client: answered, longest",
    "peak of memory",
)


def line(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    probes = [one for probed in row.probes.values() for one in (*probed.healthz, *probed.readyz)]
    answered = sum(one.answered for one in row.clients)
    return (
        row.door,
        row.kind,
        f"{row.sent.get('opened', 0):,}",
        f"{_ms(row.filter_attacked, 0.5)}, {_ms(row.filter_attacked, 0.99)} ms",
        f"{row.filter_ratio:.2f}",
        f"{_ms(row.review_attacked, 0.99)} ms",
        f"{_ms(row.allocate_attacked, 0.99)} ms",
        f"{len(row.failed_probes())} of {len(probes)}, {1e3 * max((one.took_s for one in probes), default=0):.0f} ms",
        f"{answered} of {len(row.clients)}, {1e3 * max((one.took_s for one in row.clients), default=0):.0f} ms",
        f"{row.memory_mib[row.part]:.0f} MiB",
    )


def table(rows: Sequence[Row]) -> str:
    """All rows, as Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *map(line, rows)]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def _ms(times: Sequence[float], share: float) -> str:
    return f"{1e3 * percentile(times, share):.2f}"
