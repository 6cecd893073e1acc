"""kube-scheduler's summary of reasons."""

from collections import Counter
from collections.abc import Iterable


def fit_error(total: int, reasons: Iterable[list[str]]) -> str:
    """``0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods.``: reasons with counts, sorted as text."""
    counted = Counter(reason for refusals in reasons for reason in refusals)
    lines = sorted(f"{count} {reason}" for reason, count in counted.items())
    message = f"0/{total} nodes are available:"
    return f"{message} {', '.join(lines)}." if lines else message
