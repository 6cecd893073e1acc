"""Figures and a readable table of runs."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.budgets import Figures
from benchmarks.cluster.measuring import Run, percentile
from benchmarks.cluster.variants import ALONE


def _slug(variant: str) -> str:
    return variant.replace(",", "").replace(" ", "_")


def _share(share: int) -> str:
    return f"{share}" if share else "adaptive"


def named(share: int) -> str:
    """The share of scored nodes as text."""
    return f"{share} % of nodes scored" if share else "adaptive share of nodes scored"


def _median_of(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: statistics.median(part.get(name, 0.0) for part in parts) for name in names}


def ratios(runs: Mapping[str, Sequence[Run]], variant: str) -> list[float]:
    """The variant's rate relative to the ceiling's, turn by turn."""
    pairs = zip(runs[variant], runs[ALONE], strict=True)
    return [one.pods_per_s / ceiling.pods_per_s for one, ceiling in pairs]


def figures_of(nodes: int, share: int, runs: Mapping[str, Sequence[Run]]) -> Figures:
    """All figures, named after nodes, share of nodes scored, and variant."""
    found: Figures = {}
    for variant, made in runs.items():
        prefix = f"{_slug(variant)}_{nodes}_{_share(share)}"
        found[f"pods_per_s_{prefix}"] = (statistics.median(one.pods_per_s for one in made), "1/s")
        for kind, times in (
            ("burst", [time for one in made for time in one.burst_s]),
            ("steady", [time for one in made for time in one.steady_s]),
        ):
            for share_below, name in ((0.5, "p50"), (0.99, "p99")):
                if times:
                    found[f"bound_{kind}_{name}_ms_{prefix}"] = (percentile(times, share_below) * 1e3, "ms")
        for name, value in _median_of([one.cpu_ms for one in made]).items():
            found[f"cpu_ms_{_slug(name)}_{prefix}"] = (value, "ms/pod")
        for name, value in _median_of([one.rss for one in made]).items():
            found[f"rss_mb_{_slug(name)}_{prefix}"] = (value, "MB")
        for name, value in _median_of([one.scheduler for one in made]).items():
            found[f"scheduler_ms_{_slug(name)}_{prefix}"] = (value, "ms")
        for name, value in _median_of([one.verbs for one in made]).items():
            found[f"verb_ms_{name}_{prefix}"] = (value, "ms")
        if variant != ALONE:
            rates = [statistics.median(one.pods_per_s for one in runs[which]) for which in (variant, ALONE)]
            found[f"ratio_{prefix}"] = (rates[0] / rates[1], "ratio")
            spent = [statistics.median(one.cpu_sum_ms for one in runs[which]) for which in (variant, ALONE)]
            # The ratio of rates if only processor time decided: valid on a busy machine, too.
            found[f"ratio_by_cpu_{prefix}"] = (spent[1] / spent[0], "ratio")
            turns = ratios(runs, variant)
            found[f"ratio_least_{prefix}"] = (min(turns), "ratio")
            found[f"ratio_most_{prefix}"] = (max(turns), "ratio")
    return found


def table(nodes: int, share: int, runs: Mapping[str, Sequence[Run]]) -> str:
    """A readable table with a column per variant."""
    figures = figures_of(nodes, share, runs)
    suffixes = {variant: f"_{_slug(variant)}_{nodes}_{_share(share)}" for variant in runs}
    rows: dict[str, list[str]] = {}
    for suffix in suffixes.values():
        for name, (_, unit) in figures.items():
            if name.endswith(suffix):
                rows.setdefault(f"{name.removesuffix(suffix)} [{unit}]", [])
    for row, cells in rows.items():
        stem = row.partition(" [")[0]
        for suffix in suffixes.values():
            figure = figures.get(stem + suffix)
            cells.append(f"{figure[0]:14.2f}" if figure else f"{'–':>14}")
    rates = "; ".join(
        f"{variant}: {', '.join(f'{one.pods_per_s:.0f}' for one in made)}" for variant, made in runs.items()
    )
    head = f"  {nodes} nodes, {named(share)}"
    columns = "".join(f"{variant[:13]:>14}" for variant in runs)
    body = "\n".join(f"  {row:<42}{''.join(cells)}" for row, cells in rows.items())
    return f"\n{head}\n  {'':<42}{columns}\n{body}\n  pods/s of each turn: {rates}"
