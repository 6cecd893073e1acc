"""KAI Scheduler's choice of nodes and GPUs.

Source: kai-scheduler/KAI-Scheduler v0.17.0, ``pkg/scheduler/plugins``: ``gpusharingorder`` (a node with a shared GPU that takes the pod gets
10000 points, with ``binpack`` only), ``nodeplacement`` (``pack.go``: up to 9 points, the more the fewer GPUs are idle; ``spread.go``: the
idle fraction of the GPUs), ``gpupack`` and ``gpuspread`` (order of GPUs by the used fraction of their memory, where an idle one counts
as unused), ``resourcetype`` (nothing for pods with GPUs); ``pkg/scheduler/framework/session.go`` (of equal nodes the first by name);
``pkg/apis/kai/v1/schedulingshard_types.go`` for what the strategies turn on (default: ``binpack``).

``pack.go`` scales to the fewest and most idle GPUs of all nodes, which changes no order, so it is left out. Where its code has no order, of
two GPUs with equal scores the lower index is chosen.
"""

from typing import Final, NamedTuple

import numpy as np

from gpushare.ledger.arrays import Ints
from gpushare.simulate.peers.rule import Floats, Gpus

#: More than any number of GPUs of a node.
_SHARING: Final = 10_000.0


class Kai(NamedTuple):
    """Its placement strategy for GPUs: ``spread``, or ``binpack``."""

    spread: bool

    @property
    def first_by_name(self) -> bool:
        """Its nodes are sorted by name within a score."""
        return True

    def score_nodes(self, gpus: Gpus) -> Floats:
        """Nodes with room on a GPU in use first, then those with the fewest idle GPUs; with ``spread`` the idle fraction."""
        idle = gpus.idle.sum(axis=0)
        if self.spread:
            fraction: Floats = idle / np.maximum((gpus.total_mib > 0).sum(axis=0), 1)
            return fraction
        joins = (gpus.fits & (gpus.pods > 0)).any(axis=0)
        points: Floats = _SHARING * joins - idle
        return points

    def order_gpus(self, gpus: Gpus, numa_nodes: Ints) -> Ints:
        """By the used fraction of memory, highest first; with ``spread`` lowest first."""
        used = (gpus.used_mib / np.maximum(gpus.total_mib, 1))[:, 0]
        order: Ints = np.argsort(used if self.spread else -used, kind="stable")
        return order
