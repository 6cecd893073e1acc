"""HAMi's choice of nodes and GPUs.

Source: Project-HAMi/HAMi v2.10.0 (4707fb0): ``pkg/scheduler/policy/node_policy.go`` (a node's score is its load before the pod),
``pkg/scheduler/policy/gpu_policy.go`` (a GPU's score is its load with the pod; order of the GPUs), ``pkg/device/nvidia/device.go`` (``Fit``
takes GPUs from the end of that order), ``pkg/scheduler/scheduler.go`` (``Filter`` leaves kube-scheduler the best node only), and
``charts/hami/values.yaml`` for defaults (nodes ``binpack``, GPUs ``spread``, 10 parts of a GPU).

A load is the sum of three fractions: parts in use, compute, memory. A pod counts as one part; there, each of its containers.
Scoring weights (an annotation), ``mutex``, ``numa``, topology-aware choice and node scores of other vendors' devices are left out.
"""

from typing import Final, NamedTuple

import numpy as np

from gpushare.ledger.arrays import Ints
from gpushare.simulate.peers.rule import Floats, Gpus

#: ``devicePlugin.deviceSplitCount``.
_PARTS: Final = 10
_FULL_CORE: Final = 100


class Hami(NamedTuple):
    """Whether nodes, and GPUs of a node, are chosen by ``spread``, the least load first; otherwise by ``binpack``, the most load first."""

    spread_nodes: bool
    spread_gpus: bool

    @property
    def first_by_name(self) -> bool:
        """Nodes come from a map, and their sort is not stable."""
        return False

    def score_nodes(self, gpus: Gpus) -> Floats:
        """The load of each node."""
        count = np.maximum((gpus.total_mib > 0).sum(axis=0), 1)
        load: Floats = (
            gpus.pods.sum(axis=0) / (_PARTS * count)
            + gpus.used_core.sum(axis=0) / (_FULL_CORE * count)
            + gpus.used_mib.sum(axis=0) / np.maximum(gpus.total_mib.sum(axis=0), 1)
        )
        return -load if self.spread_nodes else load

    def order_gpus(self, gpus: Gpus, numa_nodes: Ints) -> Ints:
        """By load with the pod; of equals the one with the highest NUMA node, then with the highest index."""
        load = (
            (gpus.pods + 1) / _PARTS
            + (gpus.used_core + gpus.asked_core) / _FULL_CORE
            + (gpus.used_mib + gpus.asked_mib) / np.maximum(gpus.total_mib, 1)
        )[:, 0]
        order: Ints = np.lexsort((numa_nodes, -load if self.spread_gpus else load))
        return order[::-1]
