"""Pods that wait although there is room in all, and which pods would have to move for them: pure.

A pod needs its share of one GPU, so free memory on several helps it nothing. For each that waits, and each node whose GPUs together
have enough free, the cheapest way is looked for: one or two pods that leave one GPU for others that take them as they are. What
other rules say of a node (taints, processors, selectors) is not known here.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from gpushare.inspect.usage import ClusterUsage, NodeUsage, PodUsage
from gpushare.model.request import Request

#: Pods that move for one, at most.
MOST_MOVES: Final = 2
#: Nodes with a way that are compared, and GPUs elsewhere that may take who moves (the roomiest): enough for a good one, in bounded time.
_NODES: Final = 200
_ELSEWHERE: Final = 64


class Spot(NamedTuple):
    """A GPU by its node's name and its index."""

    node: str
    gpu: int

    def __str__(self) -> str:
        return f"GPU {self.gpu} of {self.node}"


class Move(NamedTuple):
    """A pod (``namespace/name``) that leaves ``source`` for ``target`` with its ``units`` and MiB."""

    pod: str
    units: int
    mib: int
    source: Spot
    target: Spot


class Outlook(NamedTuple):
    """What would let a waiting pod in: ``spot`` once ``moves`` are made, now if there are none; ``None``: nothing of that kind."""

    spot: Spot | None
    moves: tuple[Move, ...] = ()

    @property
    def cost_mib(self) -> int:
        """What has to move."""
        return sum(move.mib for move in self.moves)


class _Room:
    """A GPU and what is free on it, in units of its node and percent of compute."""

    def __init__(self, node: NodeUsage, row: int) -> None:
        gpu = node.gpus[row]
        self.node = node
        self.spot = Spot(node.name, gpu.device.index)
        self.units = gpu.total_units - gpu.used_units
        self.core_percent = 100 - gpu.used_core_percent
        self.pods = [pod for pod in node.pods if any(share.device is gpu.device for share in pod.shares)]

    def takes(self, units: int, core_percent: int, pods: int = 0) -> bool:
        cap = self.node.devices.max_pods
        return (
            units <= self.units
            and core_percent <= self.core_percent
            and (cap is None or len(self.pods) + pods < cap)
        )


def outlook(cluster: ClusterUsage, request: Request) -> Outlook:
    """What would let a pod with ``request`` in, of all nodes the cheapest; only for a share of one GPU."""
    rooms = [_Room(node, row) for node in cluster.nodes if not node.closed for row in _in_service(node)]
    elsewhere = sorted(rooms, key=lambda room: -room.units)[:_ELSEWHERE]
    of_node: dict[str, list[_Room]] = {}
    for room in rooms:
        of_node.setdefault(room.node.name, []).append(room)
    best: Outlook | None = None
    looked = 0
    for node in cluster.nodes:
        if node.closed or not _same_kind(node, request):
            continue
        here = of_node.get(node.name, [])
        now = next((room for room in here if room.takes(request.memory_units, request.core_percent)), None)
        if now is not None:
            return Outlook(now.spot)
        if looked == _NODES or sum(max(room.units, 0) for room in here) < request.memory_units:
            continue
        looked += 1
        targets = here + [room for room in elsewhere if room.node is not node]
        for room in here:
            for found in _ways(room, targets, request):
                if best is None or (found.cost_mib, len(found.moves)) < (best.cost_mib, len(best.moves)):
                    best = found
    return best or Outlook(None)


def _in_service(node: NodeUsage) -> Iterator[int]:
    return (row for row, gpu in enumerate(node.gpus) if gpu.device.in_service)


def _same_kind(node: NodeUsage, request: Request) -> bool:
    """Pods with compute and pods without are never on one node."""
    if request.wants_core and not node.devices.mode.gives_core:
        return False
    return all(_has_core(pod) is request.wants_core for pod in node.pods if pod.shares)


def _has_core(pod: PodUsage) -> bool:
    return any(share.core_percent for share in pod.shares)


def _ways(room: _Room, rooms: Sequence[_Room], request: Request) -> Iterator[Outlook]:
    """Ways to empty enough of ``room``."""
    may_move = [pod for pod in room.pods if len(pod.shares) == 1]
    for count in range(1, MOST_MOVES + 1):
        for some in combinations(may_move, count):
            units = room.units + sum(pod.shares[0].units for pod in some)
            core_percent = room.core_percent + sum(pod.shares[0].core_percent for pod in some)
            if units < request.memory_units or core_percent < request.core_percent:
                continue
            moves = _placed(some, room, rooms)
            if moves is not None:
                yield Outlook(room.spot, moves)


def _placed(pods: Iterable[PodUsage], source: _Room, rooms: Sequence[_Room]) -> tuple[Move, ...] | None:
    """Each of ``pods`` on the GPU on which the least is left over then, on its own node if that has one."""
    taken: dict[Spot, tuple[int, int, int]] = {}
    moves = []
    for pod in sorted(pods, key=lambda one: -one.shares[0].mib):
        share = pod.shares[0]
        best: tuple[bool, int, _Room, int] | None = None
        for room in rooms:
            if room is source or (room.node is not source.node and not _welcome(room.node, pod)):
                continue
            # It asks for as many units again; where these are larger or smaller, for as much memory.
            unit = room.node.unit
            units = share.units if unit is source.node.unit else -(-share.mib // unit.mib)
            used, used_core, used_pods = taken.get(room.spot, (0, 0, 0))
            if not room.takes(units + used, share.core_percent + used_core, used_pods):
                continue
            left = (room.node is not source.node, room.units - used - units)
            if best is None or left < best[:2]:
                best = (*left, room, units)
        if best is None:
            return None
        _, _, room, units = best
        used, used_core, used_pods = taken.get(room.spot, (0, 0, 0))
        taken[room.spot] = (used + units, used_core + share.core_percent, used_pods + 1)
        moves.append(Move(f"{pod.namespace}/{pod.name}", share.units, share.mib, source.spot, room.spot))
    return tuple(moves)


def _welcome(node: NodeUsage, pod: PodUsage) -> bool:
    """Whether another node takes a pod of this kind."""
    if _has_core(pod) and not node.devices.mode.gives_core:
        return False
    return all(_has_core(other) is _has_core(pod) for other in node.pods if other.shares)
