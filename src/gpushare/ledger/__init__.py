"""The allocation of every GPU of every node: MiB and compute, by pod.

Pure: no input or output, no clock, no event loop. ``Ledger`` is fed with what the API server reports (nodes and the
allocations of pods). It answers where a request fits, why it does not fit elsewhere, and what is free on a node.
Amounts are stored in MiB as recorded, so the memory unit may change while pods run.
"""

import gpushare.ledger.arrays  # noqa: F401 - before all others that import numpy
from gpushare.ledger.errors import LedgerError, Refused
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.results import GpuUsage, Held, NodeUsage, PendingShare, Totals, Verdict

__all__ = [
    "GpuUsage",
    "Held",
    "Ledger",
    "LedgerError",
    "NodeUsage",
    "PendingShare",
    "Refused",
    "Totals",
    "Verdict",
]
