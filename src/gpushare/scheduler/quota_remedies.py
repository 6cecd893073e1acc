"""What would let a pod in that an elastic quota refuses."""

from collections.abc import Sequence

from gpushare.ledger.quota import Over


def would_help(over: Sequence[Over]) -> str:
    """``over``: the quotas that the pod would pass, its own first; not empty."""
    many = len(over) > 1
    which = f"elastic quota{'s' if many else ''} {' and '.join(one.quota for one in over)}"
    if any(one.alone for one in over):
        return f"ask for less, or a larger max of {which}: it asks for more than that alone"
    return f"pods of {which} that end, or a larger max of {'each' if many else 'it'}"
