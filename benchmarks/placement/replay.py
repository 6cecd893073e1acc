"""One replay: the arrivals of a seed, one after the other, through the scheduler's ledger.

A thousandth of a GPU is one of its 1,000 units of 128 MiB. The steps are those of the extender for a pod, in the same order:
the nodes with enough processors and memory, and GPUs of a model that the pod accepts (kube-scheduler's part), are
filtered and scored by the ledger; one of the best is drawn, as by kube-scheduler; there the ledger reserves. A pod
that fits nowhere is dropped. Pods that request no GPU never reach the extender: they go where kube-scheduler's defaults put
them (``NodeResourcesFit``: least allocated; ``NodeResourcesBalancedAllocation``), whatever the policy.
"""

import random
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.placement.openb import MILLI, TraceNode, TracePod
from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.ledger import Ledger
from gpushare.simulate.peers.ledger import RULES, PeerLedger
from gpushare.simulate.peers.names import PEERS

Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Refusals = Mapping[str, int]
"""Numbers of nodes that refused a pod, by the first reason of each."""

UNIT: Final = MemoryUnit.MIB_128
_GPU_MIB: Final = MILLI * UNIT.mib


#: Points of the curve of one replay.
_POINTS: Final = 400
#: Reasons of a node to refuse a pod: kube-scheduler's part, then the ledger's.
OTHER_MODEL: Final = "GPUs of another model"
FEW_PROCESSORS: Final = "too few processors free"
LITTLE_MEMORY: Final = "too little memory free"
FEW_GPUS: Final = "too few GPUs"
LITTLE_ON_GPUS: Final = "too little free on the GPUs"

NONE: Final[Refusals] = MappingProxyType({})


class Tried(NamedTuple):
    """The result of placing a pod: milliseconds in the ledger, the number of its node and its GPUs.

    ``node`` is ``None`` if no node took it; ``refusals`` has the reasons.
    """

    taken_ms: float
    node: int | None
    gpus: tuple[int, ...] = ()
    refusals: Refusals = NONE


class Landed(NamedTuple):
    """The node and GPUs of an arrived pod; without a node it was dropped because of ``refusals``."""

    pod: TracePod
    node: str
    gpus: tuple[int, ...]
    refusals: Refusals


class Outcome(NamedTuple):
    """``percent`` of the cluster's GPUs allocated in the end; milliseconds of each decision of the ledger.

    ``curve``: percent of the GPUs requested so far, and percent allocated. ``dropped``: pods with GPUs that fitted nowhere.
    ``landed``: all pods in order of arrival.
    """

    percent: float
    decisions_ms: list[float]
    curve: list[tuple[float, float]]
    dropped: int
    landed: list[Landed]


def replay(
    nodes: Sequence[TraceNode],
    arriving: Sequence[TracePod],
    policy: str,
    seed: int,
) -> Outcome:
    """Place ``arriving`` by ``policy``, among nodes and on each: the value of a ``Placement``, or one of ``PEERS``."""
    chance = random.Random(f"{policy} {seed}")
    cluster = Cluster(nodes, policy, chance)
    decisions_ms = []
    capacity = sum(node.gpus for node in nodes) * MILLI
    every = max(len(arriving) // _POINTS, 1)
    requested_milli, curve, dropped = 0, [(0.0, 0.0)], 0
    landed = []
    for number, pod in enumerate(arriving, 1):
        if pod.gpus:
            tried = cluster.place(f"pod-{number}", pod)
            decisions_ms.append(tried.taken_ms)
            dropped += tried.node is None
            requested_milli += pod.total_milli
        else:
            tried = cluster.place_without_gpu(pod)
        name = "" if tried.node is None else nodes[tried.node].name
        landed.append(Landed(pod, name, tried.gpus, tried.refusals))
        if number % every == 0 or number == len(arriving):
            curve.append((100 * requested_milli / capacity, 100 * cluster.allocated_milli / capacity))
    return Outcome(100 * cluster.allocated_milli / capacity, decisions_ms, curve, dropped, landed)


class Cluster:
    """Nodes with GPUs, and the handling of arriving pods by kube-scheduler and the ledger."""

    def __init__(self, nodes: Sequence[TraceNode], policy: str, chance: random.Random) -> None:
        self._by_peer = policy in PEERS
        placement = Placement.BINPACK if self._by_peer else Placement(policy)
        self._ledger = (
            PeerLedger(RULES[policy], chance.random) if self._by_peer else Ledger(node_policy=placement)
        )
        self._chance = chance
        self._names = [node.name for node in nodes]
        self._index = {name: at for at, name in enumerate(self._names)}
        self._cpu_milli = np.array([node.cpu_milli for node in nodes], np.int64)
        self._memory_mib = np.array([node.memory_mib for node in nodes], np.int64)
        self._free_cpu, self._free_memory = self._cpu_milli.copy(), self._memory_mib.copy()
        self._models = np.array([node.model for node in nodes])
        self.allocated_milli = 0
        for node in nodes:
            gpus = tuple(Device(index, f"{node.name}-{index}", _GPU_MIB) for index in range(node.gpus))
            self._ledger.set_node(NodeDevices(node.name, NodeMode.SHARE, UNIT, gpus, placement))
            self._ledger.set_free_cpu(node.name, node.cpu_milli)

    def place(self, uid: str, pod: TracePod, *, is_new: bool = True, only: int | None = None) -> Tried:
        """Place a pod that requests GPUs; ``only``: on that node or nowhere."""
        at = self._roomy(pod, only)
        names = [self._names[node] for node in at.tolist()]
        one = ContainerRequest("main", ContainerKind.APP, 0, pod.total_milli, 0)
        request = Request(pod.gpu_milli, 0, (one,), pod.gpus, cpu_milli=pod.cpu_milli)
        started = time.perf_counter()
        if is_new:
            self._ledger.arrived(request)
        if only is not None and not self._ledger.fitting(request, names):
            return Tried(0.0, None)
        verdict = self._ledger.filter(request, names)
        if not verdict.fits:
            taken_ms = (time.perf_counter() - started) * 1e3
            refusals = self._refusals(pod) | {
                FEW_GPUS: len(verdict.hopeless),
                LITTLE_ON_GPUS: len(verdict.refused),
            }
            return Tried(
                taken_ms, None, refusals={reason: nodes for reason, nodes in refusals.items() if nodes}
            )
        name = self._node_for(request, verdict.fits)
        allocation = self._ledger.reserve(uid, uid, request, name)
        taken_ms = (time.perf_counter() - started) * 1e3
        self.allocated_milli += pod.total_milli
        node = self._index[name]
        self._take(node, pod)
        return Tried(taken_ms, node, tuple(share.index for share in allocation.gpus))

    def _node_for(self, request: Request, fitting: list[str]) -> str:
        if self._by_peer:
            chosen = self._ledger.best(request, fitting)
            assert chosen is not None, "the request fits"
            return chosen
        scored = self._ledger.score(request, fitting)
        most = max(scored)
        return self._chance.choice(
            [name for name, score in zip(fitting, scored, strict=True) if score == most]
        )

    def place_without_gpu(self, pod: TracePod, *, only: int | None = None) -> Tried:
        """Place it as kube-scheduler's defaults would."""
        at = self._roomy(pod, only)
        if not at.size:
            return Tried(0.0, None, refusals=self._refusals(pod))
        cpu = (self._free_cpu[at] - pod.cpu_milli) / self._cpu_milli[at]
        memory = (self._free_memory[at] - pod.memory_mib) / self._memory_mib[at]
        least = (np.floor(100 * cpu) + np.floor(100 * memory)) // 2
        # The standard deviation of two shares is half of their difference.
        balanced = np.floor(100 * (1 - np.abs(cpu - memory) / 2))
        scored = least + balanced
        node: int = self._chance.choice(at[scored == scored.max()].tolist())
        self._take(node, pod)
        return Tried(0.0, node)

    def release(self, uid: str, node: int, pod: TracePod) -> None:
        """End a pod on ``node``."""
        if pod.gpus:
            self._ledger.release(uid)
            self.allocated_milli -= pod.total_milli
        self._take(node, pod, -1)

    def has_room(self, node: int, pod: TracePod) -> bool:
        """Whether the node has enough processors and memory; a fast check."""
        return bool(self._free_cpu[node] >= pod.cpu_milli and self._free_memory[node] >= pod.memory_mib)

    def _roomy(self, pod: TracePod, only: int | None = None) -> Ints:
        """The nodes (``only``: of that one) that kube-scheduler's own filters leave."""
        at = slice(only, None if only is None else only + 1)
        roomy = (self._free_cpu[at] >= pod.cpu_milli) & (self._free_memory[at] >= pod.memory_mib)
        if pod.models:
            roomy &= np.isin(self._models[at], sorted(pod.models))
        return np.flatnonzero(roomy) + (only or 0)

    def _refusals(self, pod: TracePod) -> dict[str, int]:
        """Numbers of nodes that those filters exclude, by the first that does."""
        left = self._of_models(pod) if pod.models else np.ones(len(self._names), np.bool_)
        found = {OTHER_MODEL: len(self._names) - int(left.sum())}
        for reason, short in (
            (FEW_PROCESSORS, self._free_cpu < pod.cpu_milli),
            (LITTLE_MEMORY, self._free_memory < pod.memory_mib),
        ):
            found[reason] = int((left & short).sum())
            left = left & ~short
        return {reason: nodes for reason, nodes in found.items() if nodes}

    def _of_models(self, pod: TracePod) -> Bools:
        return np.isin(self._models, sorted(pod.models))

    def _take(self, node: int, pod: TracePod, times: int = 1) -> None:
        self._free_cpu[node] -= times * pod.cpu_milli
        self._free_memory[node] -= times * pod.memory_mib
        self._ledger.set_free_cpu(self._names[node], int(self._free_cpu[node]))
