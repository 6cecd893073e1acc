"""Who holds how many MiB and how much compute on which GPU of which node.

Pure: no input or output, no clock, no event loop. ``Ledger`` is fed what the API server says (nodes,
and what pods hold) and answers where a request fits, why it does not, and what a node has left.
Amounts are kept in MiB as they were recorded, so that the memory unit may change under running pods.
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
