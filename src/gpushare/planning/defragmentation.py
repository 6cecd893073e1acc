"""Pods that wait although there is room in all, and which pods would have to move for them: pure, no clock, no I/O.

A pod needs its share of one GPU, so free memory on several helps it nothing. For each node whose GPUs together have enough free the
cheapest way is looked for: one or two pods that leave one GPU for others that take them as they are. ``kubectl inspect cgpu
--fragmentation`` shows it, and the scheduler's defragmentation acts by it. What other rules say of a node (taints, processors,
selectors) is not known here, but for the nodes that pods want, where the caller names them.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from gpushare.api.node.device import Device, gpu_label
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request

#: Pods that move for one, at most.
MOST_MOVES: Final = 2
#: Nodes with a way that are compared, and GPUs elsewhere that may take who moves (the roomiest): enough for a good one, in bounded time.
MOST_HOSTS: Final = 200
MOST_ELSEWHERE: Final = 64
#: Pods, or pairs, for which a place is looked for at once: some milliseconds.
LOOKED_AT_ONCE: Final = 32
#: What stands for no cap on pods.
NO_CAP: Final = 1 << 30


class Spot(NamedTuple):
    """A GPU, or MIG ``instance``, by its node's name and its index."""

    node: str
    gpu: int
    instance: bool = False

    def __str__(self) -> str:
        return f"GPU {gpu_label(self.gpu, instance=self.instance)} of {self.node}"


class Move(NamedTuple):
    """A pod (``Occupant.key``) that leaves ``source`` for ``target`` with its ``units`` and MiB."""

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

    @property
    def cost(self) -> tuple[int, int]:
        """Smaller is better: MiB that move, then pods."""
        return self.cost_mib, len(self.moves)


class Occupant(NamedTuple):
    """A pod on a GPU: what names it, its units of the node's unit, MiB and percent there, and whether it may be moved.

    ``nodes`` names those that it may go to from its own, hashable; ``None``: to any, as far as is known. ``selection``: the GPUs that it may
    have; ``None``: any.
    """

    key: str
    units: int
    mib: int
    core_percent: int
    may_move: bool = True
    nodes: Container[str] | None = None
    selection: GpuSelection | None = None


class Gpu(NamedTuple):
    """A GPU in service: what is free in units and percent, how many more pods it takes, and who is there."""

    device_index: int
    free_units: int
    free_core: int
    spare_pods: int
    pods: tuple[Occupant, ...]
    device: Device | None = None
    """``None``: unknown, so that no pod with a selection goes there."""

    def spot(self, node: str) -> Spot:
        """Where it is, on ``node``."""
        return Spot(node, self.device_index, self.device is not None and self.device.is_instance)

    def is_allowed(self, selection: GpuSelection | None) -> bool:
        """Whether a pod with ``selection`` may have this GPU, whatever is free."""
        return selection is None or (self.device is not None and selection.allows(self.device))

    def takes(self, units: int, core_percent: int, pods: int = 0) -> bool:
        """Whether a share fits beside ``pods`` others that are about to come."""
        return units <= self.free_units and core_percent <= self.free_core and pods < self.spare_pods


class Host(NamedTuple):
    """A node that takes pods, its GPUs in service, and how many pods hold memory alone and compute too."""

    name: str
    unit_mib: int
    gpus: tuple[Gpu, ...]
    gives_core: bool
    memory_pods: int
    core_pods: int
    spare_pods: int = NO_CAP
    """How many more pods may hold something of it."""

    def takes_kind(self, *, core: bool) -> bool:
        """Pods with compute and pods without are never on one node."""
        return self.gives_core and not self.memory_pods if core else not self.core_pods

    def may_hold(self, request: Request) -> bool:
        """Whether pods of that kind are here, and units that were counted in some unit are units of this node."""
        return request.unit_mib in (0, self.unit_mib) and self.takes_kind(core=request.wants_core)


Place = tuple[Host, Gpu]
# Quoted: Python 3.9, which the kubectl plugin supports, evaluates it.
Shape = tuple[int, int, int, object, "GpuSelection | None"]
"""Units, MiB and percent of a pod, and the nodes and GPUs that it may go to."""
Places = dict[Shape, list[Place]]
"""The GPUs that take a pod of that shape, if no other comes."""


def roomiest(hosts: Iterable[Host]) -> list[Place]:
    """The GPUs with the most free units, those first."""
    places = [(host, gpu) for host in hosts for gpu in host.gpus]
    return sorted(places, key=lambda place: -place[1].free_units)[:MOST_ELSEWHERE]


def outlook(hosts: Sequence[Host], request: Request, wanted: Container[str] | None = None) -> Outlook:
    """What would let a pod with ``request`` in, of all nodes the cheapest; only for a share of one GPU.

    ``wanted`` names the nodes that it may go to; ``None``: to any.
    """
    elsewhere = roomiest(hosts)
    best = Outlook(None)
    looked = 0
    for host in hosts:
        if not host.may_hold(request) or (wanted is not None and host.name not in wanted):
            continue
        now = room_now(host, request)
        if now is not None:
            return Outlook(now)
        free_units = sum(max(gpu.free_units, 0) for gpu in host.gpus if gpu.is_allowed(request.selection))
        if looked == MOST_HOSTS or free_units < request.memory_units:
            continue
        looked += 1
        best = cheaper_way(host, elsewhere, request, best)
    return best


def room_now(host: Host, request: Request) -> Spot | None:
    """The first GPU of the node that takes the request as it is."""
    fits = (
        gpu
        for gpu in host.gpus
        if gpu.takes(request.memory_units, request.core_percent) and gpu.is_allowed(request.selection)
    )
    gpu = next(fits, None) if host.spare_pods > 0 else None
    return None if gpu is None else gpu.spot(host.name)


def cheaper_way(
    host: Host,
    elsewhere: Sequence[Place],
    request: Request,
    best: Outlook,
    *,
    most_moves: int = MOST_MOVES,
) -> Outlook:
    """The cheapest way to let ``request`` in on ``host``, if it is cheaper than ``best``, and ``best`` otherwise."""
    *_, found = cheaper_ways(host, elsewhere, request, best, most_moves=most_moves)
    return found


def cheaper_ways(
    host: Host,
    elsewhere: Sequence[Place],
    request: Request,
    best: Outlook,
    *,
    most_moves: int = MOST_MOVES,
) -> Iterator[Outlook]:
    """The best that is known, every so often while it is looked for: the last one is what ``cheaper_way`` finds.

    A node with many pods takes long: between two of these others can have their turn.
    """
    # Where the node is at its cap of pods, who moves has to leave it.
    targets = [(host, gpu) for gpu in host.gpus if host.spare_pods > 0]
    targets += [place for place in elsewhere if place[0].name != host.name]
    places: Places = {}
    kinds = {_shape(pod): pod for gpu in host.gpus for pod in gpu.pods if pod.may_move}
    for number, (shape, pod) in enumerate(kinds.items()):
        if number % LOOKED_AT_ONCE == 0:
            yield best
        places[shape] = [place for place in targets if _takes(place, host, pod)]
    looked = 0
    for gpu in host.gpus:
        yield best
        if not gpu.is_allowed(request.selection):
            continue
        source = gpu.spot(host.name)
        may_move = [
            pod for pod in gpu.pods if pod.may_move and _placed((pod,), host, source, places) is not None
        ]
        # Who is alike has no place just as well.
        failed: set[tuple[Shape, ...]] = set()
        for some in _cheapest_first(may_move, most_moves):
            cost = (sum(pod.mib for pod in some), len(some))
            if best.spot is not None and cost >= best.cost:
                break
            shapes = tuple([_shape(pod) for pod in some])
            if shapes in failed or not _enough(gpu, some, request) or host.spare_pods + len(some) <= 0:
                continue
            moves = _placed(some, host, source, places)
            looked += 1
            if moves is not None:
                best = Outlook(source, moves)
                break
            failed.add(shapes)
            if looked % LOOKED_AT_ONCE == 0:
                yield best
    yield best


def _shape(pod: Occupant) -> Shape:
    return pod.units, pod.mib, pod.core_percent, pod.nodes, pod.selection


def _cheapest_first(pods: Sequence[Occupant], most: int) -> Iterator[tuple[Occupant, ...]]:
    found = [some for count in range(1, most + 1) for some in combinations(pods, count)]
    yield from sorted(found, key=lambda some: (sum(pod.mib for pod in some), len(some)))


def _enough(gpu: Gpu, some: Sequence[Occupant], request: Request) -> bool:
    """Whether the request fits once these have left."""
    return (
        gpu.free_units + sum(pod.units for pod in some) >= request.memory_units
        and gpu.free_core + sum(pod.core_percent for pod in some) >= request.core_percent
        and gpu.spare_pods + len(some) > 0
    )


def _placed(pods: Iterable[Occupant], host: Host, source: Spot, places: Places) -> tuple[Move, ...] | None:
    """Each of ``pods`` on the GPU on which the least is left over then, on its own node if that has one."""
    taken: dict[Spot, tuple[int, int, int]] = {}
    come: dict[str, int] = {}
    moves = []
    for pod in sorted(pods, key=lambda one: -one.mib):
        best: tuple[bool, int] | None = None
        target = source
        for other, gpu in places[_shape(pod)]:
            away = other.name != host.name
            spot = gpu.spot(other.name)
            if spot == source or (away and not _welcome(other, host, pod, come.get(other.name, 0))):
                continue
            units, core_percent, others = taken.get(spot, (0, 0, 0))
            if not gpu.takes(pod.units + units, pod.core_percent + core_percent, others):
                continue
            left = (away, gpu.free_units - units - pod.units)
            if best is None or left < best:
                best, target = left, spot
        if best is None:
            return None
        units, core_percent, others = taken.get(target, (0, 0, 0))
        taken[target] = (units + pod.units, core_percent + pod.core_percent, others + 1)
        come[target.node] = come.get(target.node, 0) + 1
        moves.append(Move(pod.key, pod.units, pod.mib, source, target))
    return tuple(moves)


def _takes(place: Place, host: Host, pod: Occupant) -> bool:
    other, gpu = place
    there = other.name == host.name or _welcome(other, host, pod, 0)
    return there and gpu.takes(pod.units, pod.core_percent) and gpu.is_allowed(pod.selection)


def _welcome(other: Host, host: Host, pod: Occupant, come: int) -> bool:
    """Whether another node takes a pod of this kind: it asks for as many units again, which must mean as much."""
    return (
        (pod.nodes is None or other.name in pod.nodes)
        and other.unit_mib == host.unit_mib
        and other.takes_kind(core=pod.core_percent > 0)
        and come < other.spare_pods
    )
