"""A node as it might be, tried with a request: what is advised to a pod was tried before it is said."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from gpushare.api.allocation.allocation import Allocation
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger

#: Nodes that are tried for one that would do; of thousands of equal ones the first is as good.
_MOST_TRIED: Final = 8


def to_try(
    nodes: Iterable[NodeDevices], text_of: Callable[[str], str | None] = lambda name: None
) -> list[NodeDevices]:
    """As many of ``nodes`` as are tried, the first of each kind before others: one that would do is not hidden behind many that would not.

    Nodes are of one kind that have the same and give it out alike, and are refused in the same words where ``text_of`` says in which.
    """
    kinds: dict[tuple[object, ...], NodeDevices] = {}
    more: list[NodeDevices] = []
    for node in nodes:
        gpus = tuple((one.total_mib, one.healthy, one.cordoned, one.foreign_mib) for one in node.devices)
        kind = (node.mode, node.unit, node.max_pods, node.max_node_pods, gpus, text_of(node.name))
        if kinds.setdefault(kind, node) is not node:
            more.append(node)
        elif len(kinds) == _MOST_TRIED:
            break
    return [*kinds.values(), *more][:_MOST_TRIED]


def fewest_first(ledger: Ledger, nodes: Iterable[NodeDevices]) -> list[NodeDevices]:
    """By how many pods are there, those for which room is kept among them."""
    there, column_of = _pods_by_node(ledger)
    return sorted(nodes, key=lambda node: there[column_of[node.name]] if node.name in column_of else 0)


def idle_of(ledger: Ledger, names: Iterable[str]) -> list[str]:
    """Those on whose GPUs there is no pod, and for no pod room is kept."""
    there, column_of = _pods_by_node(ledger)
    return [name for name in names if name in column_of and not there[column_of[name]]]


def _pods_by_node(ledger: Ledger) -> tuple[list[int], Mapping[str, int]]:
    columns, column_of = ledger.columns_by_node()
    return (columns.memory_pods + columns.core_pods).tolist(), column_of


def refusal(
    ledger: Ledger,
    request: Request,
    node: NodeDevices,
    *,
    emptied: bool = False,
    kept: bool | None = None,
    ended: Collection[str] = (),
) -> str:
    """Why the node, were it as ``node`` says, would not take ``request`` beside the pods that are there; empty where it would.

    Those for which room is kept count as there. ``emptied``: without both; ``kept`` says otherwise of the latter.
    ``ended``: UIDs of pods that are there no more.
    """
    trial = Ledger()
    trial.set_node(node)
    for uid in () if emptied else pods_on(ledger, node.name).difference(ended):
        held = ledger.held(uid)
        assert held is not None
        trial.hold(uid, held.pod, held.node, held.allocation)
    if kept if kept is not None else not emptied:
        for uid, shares in ledger.nominations.on_node(node.name).items():
            trial.hold(f"kept:{uid}", uid, node.name, Allocation(shares, {}))
    verdict = trial.filter(request, (node.name,))
    return "" if verdict.fits else {**verdict.refused, **verdict.hopeless}[node.name]


def pods_on(ledger: Ledger, name: str) -> set[str]:
    """UIDs of the pods that hold something of the node."""
    usage = ledger.usage(name)
    return {uid for gpu in usage.gpus for uid in gpu.pods} | {one.uid for one in usage.pending}
