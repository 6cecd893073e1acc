"""Decisions on 5,000 nodes of eight GPUs with all features in use: gangs, preemption, reservations, policies, quotas, all
placements.

In this process, from a verb's body to its response, without HTTP, which ``benchmarks.extender`` measures. Usage:
``python -m benchmarks.in_use [--quick]``.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

import msgspec

from benchmarks.api_server import GPUS_PER_NODE, described_node, node_name, pod_object
from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.crd.elastic_quota_tree import decode_quota_tree
from gpushare.api.crd.resource_policy import decode_policy
from gpushare.api.node.device import Placement
from gpushare.api.objects import ObjectReference, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.ledger import Ledger
from gpushare.ledger.preemption.victims import sequence_from
from gpushare.scheduler.cache.cache import ClusterCache, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord, record_of
from gpushare.scheduler.framework.cycle import filter_nodes, prioritize_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.framework.precompute import Precomputer
from gpushare.scheduler.framework.runtime import Enabled, Framework
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.gangs.plugin import Gangs
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.plugins.preemption.ranks import lesser
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.server import protocol

GPU_MIB = 81920
#: Of 80 units of each GPU: seven pods of 11 leave 3, as on a full cluster.
PODS_PER_GPU, UNITS = 7, 11
GANG = 8
YOUNG_OBJECTS = 5000
ARRIVALS = 40_000
#: kube-scheduler offers a tenth of the nodes to preempt.
OFFERED_PART = 10

Figures = dict[str, tuple[float, str]]


class _NoEvents:
    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: str,
        reason: str,
        action: str,
        note: str,
        occurrence: str = "each",
    ) -> None:
        """Not read here."""


NO_EVENTS = _NoEvents()


def request_of(units: int) -> Request:
    """A request for memory of one GPU."""
    return Request(units, 0, (ContainerRequest("main", ContainerKind.APP, 0, units, 0),))


def cluster(
    nodes: int,
    priority_of: Callable[[int, int], int],
    policy: Placement = Placement.BINPACK,
    per_gpu: int = PODS_PER_GPU,
    namespace_of: Callable[[int, int], str] = lambda number, pod: "default",
) -> ClusterCache:
    """All GPUs with ``per_gpu`` pods, with priority and namespace by the numbers of node and pod."""
    gc.unfreeze()
    view = ClusterCache(Ledger(node_policy=policy), NO_EVENTS, lambda uid: None)
    request = request_of(UNITS)
    for number in range(nodes):
        node = described_node(number, GPU_MIB, MemoryUnit.GIB)
        if policy is not Placement.BINPACK:
            node = msgspec.structs.replace(node, placement=policy)
        view.upsert_node(NodeRecord(node, ""))
        for pod in range(per_gpu * GPUS_PER_NODE):
            uid = f"{number}-{pod}"
            allocation = allocate_on(node, node.devices[pod % GPUS_PER_NODE], request)
            view.upsert_pod(
                PodRecord(
                    uid,
                    f"{namespace_of(number, pod)}/{uid}",
                    node.name,
                    finished=False,
                    allocation=allocation,
                    amounts={names.GPU_MEM: 1000 * UNITS},
                    priority=priority_of(number, pod),
                    created=f"2026-01-{1 + pod % 28:02}T00:00:{number % 60:02}Z",
                )
            )
    settled()
    return view


def settled() -> None:
    """Exclude existing objects from garbage collection, as the scheduler does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def times_ms(calls: int, call: Callable[[int], object]) -> list[float]:
    """The sorted times of ``calls``."""
    times = []
    for number in range(calls):
        started = time.perf_counter()
        call(number)
        times.append((time.perf_counter() - started) * 1e3)
    return sorted(times)


def p99(times: list[float]) -> float:
    """The 99th percentile."""
    return times[min(len(times) - 1, int(len(times) * 0.99))]


def preemption(nodes: int, calls: int) -> Figures:
    """A pod that needs preemption: on all nodes, on few, on none."""
    found: Figures = {}
    all_names = [node_name(number) for number in range(nodes)]
    for scene, priority_of in (
        ("everywhere", lambda number, pod: (0, 100, 200)[pod % 3]),
        ("on_few", lambda number, pod: 0 if number % 97 == 0 else 5000),
        ("nowhere", lambda number, pod: 5000),
        ("nearly", lambda number, pod: 0 if pod < GPUS_PER_NODE else 5000),
    ):
        view = cluster(nodes, priority_of)
        request = request_of(40)

        def decide(number: int, view: ClusterCache = view, request: Request = request) -> object:
            turned = sequence_from(all_names, number * 631)
            return view.ledger.evictions.plan(request, turned, lesser(view, 1000), priority=1000)

        decide(0)
        found[f"preemption_p99_ms_{nodes}_{scene}"] = (p99(times_ms(calls, decide)), "ms")
        if scene == "everywhere":
            found[f"preempt_verb_p99_ms_{nodes}"] = (_verb(view, nodes, calls), "ms")
    return found


def _verb(view: ClusterCache, nodes: int, calls: int) -> float:
    """kube-scheduler's own preemption: victims on a tenth of the nodes; we check whether they are enough."""
    bodies = []
    for call in range(4):
        pod = pod_object(call, 1, 40, None)
        pod["spec"] |= {"priority": 1000}  # type: ignore[operator]
        victims = {
            node_name(number): {"Pods": [{"UID": f"{number}-0"}], "NumPDBViolations": 0}
            for number in range(call, nodes, OFFERED_PART)
        }
        bodies.append(msgspec.json.encode({"Pod": pod, "NodeNameToMetaVictims": victims}))
    return p99(
        times_ms(
            calls,
            lambda number: preempt_pods(view, protocol.read_preemption(bodies[number % 4]), lambda uid: None),
        )
    )


def _policies(nodes: int) -> Policies:
    """A policy for all pods: three kinds of nodes in order; the first is full and the second has room."""
    policies = Policies(SYSTEM_CLOCK)
    for number in range(nodes):
        policies.census.set_node(node_name(number), {"pool": str(number % 3)})
    units = [
        {"resource": "ecs", "nodeSelector": {"pool": str(pool)}, "max": most}
        for pool, most in enumerate((0, 1_000_000, 1_000_000))
    ]
    written = {
        "metadata": {"name": "pools", "namespace": "default", "uid": "pools", "generation": 1},
        "spec": {"selector": {}, "units": units},
    }
    policies.upsert_policy(decode_policy(msgspec.json.encode(written)))
    policies.unread.clear()
    return policies


def _quotas(view: ClusterCache) -> Quotas:
    """A tree of a hundred quotas, one of them for the pods' namespace."""
    leaves = [
        {
            "name": f"team-{number}",
            "namespaces": [f"ns-{number}" if number else "default"],
            "min": {names.GPU_MEM: 100},
        }
        for number in range(100)
    ]
    root = {
        "name": "root",
        "min": {names.GPU_MEM: 20_000_000},
        "max": {names.GPU_MEM: 20_000_000},
        "children": leaves,
    }
    return quotas_of(view, root)


def quotas_of(view: ClusterCache, root: Mapping[str, object]) -> Quotas:
    """Quotas with a tree of that root."""
    tree = {"metadata": {"name": "tree", "uid": "tree", "generation": 1}, "spec": {"root": root}}
    quotas = Quotas(view, NO_EVENTS)
    quotas.upsert(decode_quota_tree(msgspec.json.encode(tree)))
    quotas.synced()
    assert quotas.in_use
    return quotas


def _mix(view: ClusterCache) -> None:
    """Arrivals of more kinds than the mix considers: memory, compute, several GPUs, processors."""
    chance = random.Random(1)
    for _ in range(ARRIVALS):
        units = chance.choice((1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 30, 40))
        core_percent = chance.choice((0, 0, 0, 10, 25, 50))
        view.ledger.arrived(
            Request(
                units,
                core_percent,
                (ContainerRequest("main", ContainerKind.APP, 0, units, core_percent),),
                gpu_count=1 if core_percent else chance.choice((1,) * 9 + (2, 4, 8)),
                cpu_milli=chance.choice((0, 1000, 4000, 8000)),
            )
        )


def filters(nodes: int, calls: int, placements: Iterable[Placement] = Placement) -> Figures:
    """Filter by each placement policy, with everything in use; and the longest precomputation in the event loop before."""
    found: Figures = {}
    for one in placements:
        filtered, precomputed, uncached = _filter_in_use(nodes, calls, one)
        found[f"filter_in_use_p99_ms_{nodes}_{one.value}"] = (filtered, "ms")
        found[f"filter_uncached_p99_ms_{nodes}_{one.value}"] = (uncached, "ms")
        found[f"precompute_max_ms_{nodes}_{one.value}"] = (precomputed, "ms")
    return found


def _filter_in_use(nodes: int, calls: int, policy: Placement) -> tuple[float, float, float]:
    """Every eighth pod is the first of a gang of eight, there are reservations for a hundred pods, and each has a policy and a quota.

    Pods arrive one after the other, and their requests are precomputed before the filter call, as in the event loop: p99 of the
    filter, the longest block of the loop before it, and p99 of the filter for pods that are filtered immediately on arrival.
    """
    view = cluster(nodes, lambda number, pod: 0, policy, per_gpu=4)
    _mix(view)
    reserved = request_of(30)
    for number in range(0, nodes, max(1, nodes // 100)):
        plan = view.ledger.evictions.plan(reserved, (node_name(number),), lambda uid: None)
        assert plan is not None
        view.ledger.nominations.add(f"kept-{number}", reserved, plan)
    policies = _policies(nodes)
    quotas = _quotas(view)
    offered = [node_name(number) for number in range(nodes)]
    arrivals: list[list[PodRecord]] = []
    bodies = []
    for number in range(2 * calls):
        gang = number if number % GANG == 0 else None
        arrivals.append([])
        for member in range(GANG if gang is not None else 1):
            pod = pod_object(10**6 + GANG * number + member, 1, 1 + number % 30, None)
            if gang is not None:
                labels = {names.LABEL_GANG_NAME: f"gang-{gang}", names.LABEL_GANG_LEAST: str(GANG)}
                pod["metadata"]["labels"] = labels  # type: ignore[index]
            record = record_of(decode_pod(msgspec.json.encode(pod)))
            assert record is not None
            arrivals[-1].append(record)
            if member == 0:
                bodies.append(msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": offered}))
    settled()  # objects made only for the benchmark cost no garbage collection
    read = Bodies()
    gangs = Gangs(view, SYSTEM_CLOCK, quotas=quotas)
    decisions = DecisionLog(view, SYSTEM_CLOCK, gangs=gangs, quotas=quotas)
    framework = Framework(
        [
            Enabled("gangs", gangs),
            Enabled("elastic-quota", quotas),
            Enabled("policies", policies),
            Enabled("decisions", decisions),
        ]
    )
    precomputer = Precomputer(view.ledger)
    view.pod_arrived.subscribe(precomputer.arrived)
    spent: dict[str, list[float]] = {"precomputed": [], "uncached": [], "precomputing": []}

    def timed(what: str, call: Callable[[], object]) -> object:
        started = time.perf_counter()
        found = call()
        spent[what].append((time.perf_counter() - started) * 1e3)
        return found

    for number, (records, body) in enumerate(zip(arrivals, bodies, strict=True)):
        # In turns of eight, so that both have gangs and new sizes.
        ahead = number // GANG % 2 == 0
        with nullcontext() if ahead else view.pod_arrived.muted():
            for record in records:
                view.upsert_pod(record)
                while ahead and timed("precomputing", precomputer.work_out_one):
                    pass

        def call_filter(body: bytes = body) -> object:
            return filter_nodes(view, read.read(body), framework)

        timed("precomputed" if ahead else "uncached", call_filter)
    return p99(sorted(spent["precomputed"])), max(spent["precomputing"]), p99(sorted(spent["uncached"]))


def placements(nodes: int, calls: int) -> Figures:
    """A whole decision (filter, prioritize, reserve) by each placement policy."""
    found: Figures = {}
    offered = [node_name(number) for number in range(nodes)]
    for policy in Placement:
        view = cluster(nodes, lambda number, pod: 0, policy, per_gpu=3)
        pods = [pod_object(10**6 + number, 1, (1, 4, 16, 40)[number % 4], None) for number in range(calls)]
        bodies = [msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": offered}) for pod in pods]
        read = Bodies()

        def decide(
            number: int, view: ClusterCache = view, bodies: list[bytes] = bodies, read: Bodies = read
        ) -> None:
            state = read.read(bodies[number])
            assert state.request is not None
            view.ledger.arrived(state.request)
            fits = msgspec.json.decode(filter_nodes(view, state))["NodeNames"]
            prioritize_nodes(view, state)
            view.ledger.reserve(str(number), "default/x", state.request, fits[number % len(fits)])

        found[f"decision_p99_ms_{nodes}_{policy.value}"] = (p99(times_ms(calls, decide)), "ms")
    return found


def measure(quick: bool = False) -> Figures:
    """Every figure of decisions with everything in use."""
    nodes, calls = (100, 20) if quick else (5000, 300)
    return preemption(nodes, calls) | filters(nodes, 2 * calls) | placements(nodes, calls)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small and fast")
    for name, (value, unit) in measure(parser.parse_args().quick).items():
        print(f"{name:<44} {value:10.3f} {unit}", flush=True)
