"""Tries a request on a changed node in a separate ledger: suggestions are verified before they are reported."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from gpushare.api.allocation.allocation import Allocation
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger

#: Nodes tried per suggestion; equal nodes are tried once.
_MAX_TRIED: Final = 8


def to_try(
    nodes: Iterable[NodeDevices], text_of: Callable[[str], str | None] = lambda name: None
) -> list[NodeDevices]:
    """The nodes to try, the first of each kind before others, so that a fitting node is not hidden behind many equal ones.

    Nodes are of one kind if they have the same GPUs, settings and reason (``text_of``).
    """
    kinds: dict[tuple[object, ...], NodeDevices] = {}
    more: list[NodeDevices] = []
    for node in nodes:
        gpus = tuple(
            (device.total_mib, device.model, device.healthy, device.cordoned, device.foreign_mib)
            for device in node.devices
        )
        kind = (node.mode, node.unit, node.max_pods, node.max_node_pods, gpus, text_of(node.name))
        if kinds.setdefault(kind, node) is not node:
            more.append(node)
        elif len(kinds) == _MAX_TRIED:
            break
    return [*kinds.values(), *more][:_MAX_TRIED]


def fewest_first(ledger: Ledger, nodes: Iterable[NodeDevices]) -> list[NodeDevices]:
    """``nodes`` sorted by number of pods, including pods with reserved capacity."""
    pod_counts, column_of = _pods_by_node(ledger)
    return sorted(nodes, key=lambda node: pod_counts[column_of[node.name]] if node.name in column_of else 0)


def idle_nodes(ledger: Ledger, names: Iterable[str]) -> list[str]:
    """The nodes without pods on their GPUs and without reservations for pods."""
    pod_counts, column_of = _pods_by_node(ledger)
    return [name for name in names if name in column_of and not pod_counts[column_of[name]]]


def _pods_by_node(ledger: Ledger) -> tuple[list[int], Mapping[str, int]]:
    columns, column_of = ledger.columns_by_node()
    return (columns.memory_pods + columns.core_pods).tolist(), column_of


def refusal(
    ledger: Ledger,
    request: Request,
    node: NodeDevices,
    *,
    emptied: bool = False,
    with_reserved: bool | None = None,
    ended: Collection[str] = (),
) -> str:
    """Why ``node``, a changed node, would refuse ``request`` beside its present pods; empty if the request would fit.

    Pods with reserved capacity count as present. ``emptied``: without all of these pods; ``with_reserved`` overrides this for the reservations.
    ``ended``: UIDs of pods to leave out.
    """
    trial = Ledger()
    trial.set_node(node)
    for uid in () if emptied else pods_on(ledger, node.name).difference(ended):
        held = ledger.held(uid)
        assert held is not None
        trial.hold(uid, held.pod, held.node, held.allocation)
    if with_reserved if with_reserved is not None else not emptied:
        for uid, shares in ledger.nominations.on_node(node.name).items():
            trial.hold(f"kept:{uid}", uid, node.name, Allocation(shares, {}))
    verdict = trial.filter(request, (node.name,))
    return "" if verdict.fits else {**verdict.refused, **verdict.hopeless}[node.name]


def pods_on(ledger: Ledger, name: str) -> set[str]:
    """UIDs of the pods that hold a share on the node."""
    usage = ledger.usage(name)
    return {uid for gpu in usage.gpus for uid in gpu.pods} | {pending.uid for pending in usage.pending}
