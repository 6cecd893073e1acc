"""Preemption by an elastic quota, on 5,000 nodes of eight GPUs with 56 pods each.

Only the ledger, as in ``benchmarks.in_use``: a quota reclaims within its ``min`` what another one borrowed. Usage: ``python -m
benchmarks.claims [--quick]``.
"""

import argparse
from collections.abc import Callable

from benchmarks.api_server import GPUS_PER_NODE, node_name
from benchmarks.in_use import PODS_PER_GPU, UNITS, Figures, cluster, p99, quotas_of, request_of, times_ms
from gpushare.api import names
from gpushare.ledger.preemption.victims import MOST_TRIED_BY_RULE, Plan, sequence_from
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas
from gpushare.scheduler.plugins.preemption.ranks import lesser, reach

#: Units requested by the pod that reclaims; its quota has no pods yet.
REQUESTED = 40
#: Other quotas, as many as a cluster of this size may have.
OTHERS = 98


def lent(view: ClusterCache, nodes: int, taken_min: int) -> Quotas:
    """A tree of a hundred quotas: ``default`` is owed, ``other`` has ``taken_min`` guaranteed units and borrowed the rest;
    ``ns-0`` borrowed nothing."""

    all_units = nodes * GPUS_PER_NODE * PODS_PER_GPU * UNITS
    leaves = [
        {"name": "owed", "namespaces": ["default"], "min": {names.GPU_MEM: 1000}},
        {"name": "took", "namespaces": ["other"], "min": {names.GPU_MEM: taken_min}},
        *(
            {
                "name": f"team-{number}",
                "namespaces": [f"ns-{number}"],
                "min": {names.GPU_MEM: 0 if number else all_units},
            }
            for number in range(OTHERS)
        ),
    ]
    most = {names.GPU_MEM: 3 * all_units}
    return quotas_of(view, {"name": "root", "min": most, "max": most, "children": leaves})


def _plans(view: ClusterCache, quotas: Quotas, all_names: list[str]) -> Callable[[int], Plan | None]:
    """Successive plans, each starting at other nodes."""
    request, uid = request_of(REQUESTED), "waits"
    amounts = {names.GPU_MEM: 1000 * REQUESTED}

    def plan(number: int) -> Plan | None:
        claim = quotas.claim(uid, f"default/{uid}", amounts)
        turned = sequence_from(all_names, number * (MOST_TRIED_BY_RULE // 2 - 1))
        rank, below = lesser(view, 0, (), claim), reach(view, 0, claim)
        return view.ledger.evictions.plan(request, turned, rank, rule=claim, priority=below)

    return plan


def claims(nodes: int, calls: int) -> Figures:
    """Candidates for preemption: all pods, few, all but leaving too little, and none."""
    found: Figures = {}
    all_names = [node_name(number) for number in range(nodes)]
    units = nodes * GPUS_PER_NODE * PODS_PER_GPU * UNITS
    few = 97
    for scene, namespace_of, taken_min in (
        ("everywhere", lambda number, pod: "other", 0),
        ("on_few", lambda number, pod: "other" if number % few == 0 else "ns-0", 0),
        ("nearly", lambda number, pod: "other", units - REQUESTED // 2),
        ("nowhere", lambda number, pod: "other", units),
    ):
        view = cluster(nodes, lambda number, pod: 0, namespace_of=namespace_of)
        plans = _plans(view, lent(view, nodes, taken_min), all_names)
        assert (plans(0) is not None) == (scene in ("everywhere", "on_few"))
        found[f"preemption_claim_p99_ms_{nodes}_{scene}"] = (p99(times_ms(calls, plans)), "ms")
    return found


def measure(quick: bool = False) -> Figures:
    """All figures of reclaiming."""
    nodes, calls = (100, 20) if quick else (5000, 300)
    return claims(nodes, calls)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small and fast")
    for name, (value, unit) in measure(parser.parse_args().quick).items():
        print(f"{name:<44} {value:10.3f} {unit}", flush=True)
