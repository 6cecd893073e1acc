"""The memory cost of a CUDA context, as containers measured it with their first one.

The agent creates no context itself: that would take some hundred MiB of a GPU that may be fully allocated (docs/decisions/0013).
"""

from collections.abc import Iterable
from pathlib import Path

from gpushare.api.node.context_cost import LEAST_MIB, MOST_MIB
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.storage.usage_file import read_usage

_MIB = 1 << 20


def contexts_mib(directories: Iterable[tuple[Claimed, Path]]) -> dict[str, int]:
    """MiB by UUID, rounded up: the least that any container reports.

    A tenant may write anything there: implausible values are skipped, and one that is too large is overruled by any other.
    """
    found: dict[str, int] = {}
    for claimed, folder in directories:
        shares = claimed.mib_by_gpu
        for gpu, use in zip(shares, read_usage(folder, len(shares)), strict=False):
            mib = -(-use.context_bytes // _MIB)
            if LEAST_MIB <= mib <= MOST_MIB:
                found[gpu] = min(found.get(gpu, mib), mib)
    return found
