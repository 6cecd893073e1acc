"""Suggestions for a whole list of pending pods, on 5,000 nodes of eight GPUs that are full in different ways.

In this process, without HTTP: how long the scheduler is blocked, for the whole list and for a single pod.
Usage: ``python -m benchmarks.advice [--nodes 5000] [--requests 50] [--pods 500]``.
"""

import argparse
import random
import time

import msgspec

from benchmarks.api_server import GPUS_PER_NODE, described_node, node_name
from benchmarks.in_use import GPU_MIB, NO_EVENTS, request_of, settled
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.ledger import Ledger
from gpushare.scheduler.cache.cache import ClusterCache, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.explain.pending_pods import pending_pod

MODES = (NodeMode.SHARE, NodeMode.SHARE, NodeMode.CORE_MEM, NodeMode.CGPU, NodeMode.TOPOLOGY)
TIMES = 5


def crowded(nodes: int, choose: random.Random) -> ClusterCache:
    """Nodes of several modes, each GPU with a few pods of different sizes, so that few nodes are equal."""
    view = ClusterCache(Ledger(), NO_EVENTS, lambda uid: None)
    for number in range(nodes):
        node = msgspec.structs.replace(
            described_node(number, GPU_MIB, MemoryUnit.GIB), mode=choose.choice(MODES)
        )
        view.upsert_node(NodeRecord(node, ""))
        for pod in range(GPUS_PER_NODE * 3):
            units = choose.randint(20, 26)
            uid = f"{number}-{pod}"
            allocation = allocate_on(node, node.devices[pod % GPUS_PER_NODE], request_of(units))
            view.upsert_pod(
                PodRecord(uid, f"default/{uid}", node.name, finished=False, allocation=allocation)
            )
    return view


def waiting(view: ClusterCache, decisions: DecisionLog, requests: int, pods: int) -> None:
    """``pods`` pods with ``requests`` different requests, each already filtered on all nodes."""
    names = [node_name(number) for number in range(len(view.ledger.node_names()))]
    for number in range(pods):
        kind = number % requests
        request = request_of(30 + kind)
        if kind % 5 == 0:
            request = msgspec.structs.replace(request, core_percent=20 + kind)
        uid = f"waits-{number}"
        view.upsert_pod(PodRecord(uid, f"default/{uid}", "", finished=False, request=request))
        verdict = view.ledger.filter(request, names)
        decisions.filtered(uid, f"default/{uid}", request, names, verdict)
        decisions.of(uid)


def main() -> None:
    """Print the best times of a few runs, in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--pods", type=int, default=500)
    options = parser.parse_args()
    view = crowded(options.nodes, random.Random(1))
    decisions = DecisionLog(view, SYSTEM_CLOCK)
    waiting(view, decisions, options.requests, options.pods)
    settled()
    listed, single = [], []
    for _ in range(TIMES):
        started = time.perf_counter()
        found = decisions.waiting()
        listed.append(time.perf_counter() - started)
        assert len(found) == options.pods
        started = time.perf_counter()
        pending_pod(decisions, "waits-0")
        single.append(time.perf_counter() - started)
    print(
        f"all of {options.pods} pods with {options.requests} requests, {options.nodes} nodes: {1e3 * min(listed):.1f} ms"
    )
    print(f"one of them: {1e3 * min(single):.1f} ms")


if __name__ == "__main__":
    main()
