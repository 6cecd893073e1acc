"""A node as it might be, tried with a request: what is advised to a pod was tried before it is said."""

from typing import Final

from gpushare.ledger import Ledger
from gpushare.model.allocation import Allocation
from gpushare.model.device import NodeDevices
from gpushare.model.request import Request

#: Nodes that are tried for one that would do; of thousands of equal ones the first is as good.
MOST_TRIED: Final = 8


def refusal(
    ledger: Ledger,
    request: Request,
    node: NodeDevices,
    *,
    emptied: bool = False,
    kept: bool | None = None,
) -> str:
    """Why the node, were it as ``node`` says, would not take ``request`` beside the pods that are there; empty where it would.

    Those for which room is kept count as there. ``emptied``: without both; ``kept`` says otherwise of the latter.
    """
    trial = Ledger()
    trial.set_node(node)
    for uid in () if emptied else pods_on(ledger, node.name):
        held = ledger.held(uid)
        assert held is not None
        trial.hold(uid, held.pod, held.node, held.allocation)
    if kept if kept is not None else not emptied:
        for uid, shares in ledger.kept_there(node.name).items():
            trial.hold(f"kept:{uid}", uid, node.name, Allocation(shares, {}))
    verdict = trial.filter(request, (node.name,))
    return "" if verdict.fits else {**verdict.refused, **verdict.hopeless}[node.name]


def pods_on(ledger: Ledger, name: str) -> set[str]:
    """UIDs of the pods that hold something of the node."""
    usage = ledger.usage(name)
    return {uid for gpu in usage.gpus for uid in gpu.pods} | {one.uid for one in usage.pending}
