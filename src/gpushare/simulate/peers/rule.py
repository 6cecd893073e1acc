"""What a peer's placement rule sees and answers."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpushare.ledger.arrays import Ints, Mask

Floats = npt.NDArray[np.float64]


class Gpus(NamedTuple):
    """The GPUs of some nodes and what a pod asks of each: planes are (GPUs, nodes), in order of index, as high as the largest node.

    ``total_mib`` is 0 where a node has no such GPU. ``used_mib``, ``used_core`` (percent) and ``pods`` are what pods hold. ``idle``: in
    service and without pods. ``fits``: it takes the pod, of which it would give ``asked_mib``, and ``asked_core`` percent.
    """

    total_mib: Ints
    used_mib: Ints
    used_core: Ints
    pods: Ints
    idle: Mask
    fits: Mask
    asked_mib: Ints
    asked_core: int


class Rule(Protocol):
    """A peer's choice of a node, then of GPUs on it."""

    @property
    def first_by_name(self) -> bool:
        """Of nodes with equal scores the first by name is chosen; otherwise any of them."""

    def score_nodes(self, gpus: Gpus) -> Floats:
        """A score for each node; the highest is best."""

    def order_gpus(self, gpus: Gpus, numa_nodes: Ints) -> Ints:
        """The rows of the GPUs of one node, the most preferred first; ``numa_nodes`` by row. Those that do not fit are skipped later."""
