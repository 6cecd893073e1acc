"""A ledger in which a peer's rule chooses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from gpushare.api.allocation.allocation import Allocation, allocate_over
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.ledger.arrays import Places
from gpushare.ledger.fit import multi_gpu
from gpushare.ledger.node_book import SHUT
from gpushare.ledger.placement.policies import Candidate
from gpushare.simulate.peers.hami import Hami
from gpushare.simulate.peers.kai import Kai
from gpushare.simulate.peers.rule import Gpus, Rule

#: By the names in ``peers.names``.
RULES: Final[Mapping[str, Rule]] = {
    "hami-binpack-binpack": Hami(spread_nodes=False, spread_gpus=False),
    "hami-binpack-spread": Hami(spread_nodes=False, spread_gpus=True),
    "hami-spread-binpack": Hami(spread_nodes=True, spread_gpus=False),
    "hami-spread-spread": Hami(spread_nodes=True, spread_gpus=True),
    "kai-binpack": Kai(spread=False),
    "kai-spread": Kai(spread=True),
}


class PeerLedger(Ledger):
    """Chooses nodes (``best``) and GPUs by ``rule`` instead of the policies. ``chance`` (0 to 1) decides between equal nodes."""

    def __init__(self, rule: Rule, chance: Callable[[], float]) -> None:
        super().__init__()
        self._rule = rule
        self._chance = chance

    def best(self, request: Request, nodes: Sequence[str]) -> str | None:
        """The node that the rule chooses of those ``nodes`` that take ``request`` now."""
        fitting = self.fitting(request, nodes)
        if not fitting:
            return None
        if self._rule.first_by_name:
            fitting.sort()
        _, column_of = self.columns_by_node()
        at = np.array([column_of[name] for name in fitting], np.intp)
        scores = self._rule.score_nodes(self._gpus(request, at))
        equals: list[int] = (scores == scores.max()).nonzero()[0].tolist()
        chosen = 0 if self._rule.first_by_name else min(int(self._chance() * len(equals)), len(equals) - 1)
        return fitting[equals[chosen]]

    def choose(self, node: NodeDevices, candidates: list[Candidate], request: Request) -> Allocation | None:
        """The GPUs that the rule prefers."""
        _, column_of = self.columns_by_node()
        gpus = self._gpus(request, np.array([column_of[node.name]], np.intp))
        numa_nodes = np.full(len(gpus.total_mib), -1)
        numa_nodes[: len(node.devices)] = [device.numa_node for device in node.devices]
        fitting = {candidate.row for candidate in candidates}
        order = self._rule.order_gpus(gpus, numa_nodes).tolist()
        rows = [row for row in order if row in fitting][: request.gpu_count]
        if len(rows) < request.gpu_count:
            return None
        return allocate_over(node, [node.devices[row] for row in rows], request)

    def _gpus(self, request: Request, at: Places) -> Gpus:
        columns, _ = self.columns_by_node()
        asked = request.memory_units
        total_mib, pods = columns.total_mib.take(at, axis=1), columns.pods.take(at, axis=1)
        units = np.maximum(columns.units.take(at, axis=1), 1)
        whole = request.by_gpu or request.whole_device
        return Gpus(
            total_mib,
            columns.used_mib.take(at, axis=1),
            columns.used_core.take(at, axis=1),
            pods,
            (pods == 0) & (columns.room_units.take(at, axis=1) != SHUT),
            multi_gpu.fits(columns, request, asked, at),
            total_mib if whole else total_mib * asked // units,
            request.core_percent,
        )
