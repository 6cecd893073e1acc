"""Replays as tasks for other processes."""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.placement.bound import most_percent
from benchmarks.placement.openb import (
    MILLI,
    TraceNode,
    TracePod,
    arrivals,
    node_list,
    pod_lists,
    read_nodes,
    read_pods,
)
from benchmarks.placement.replay import replay

#: Requests of the arrivals relative to the cluster's GPUs.
RATIO: Final = 1.3
#: A quick replay uses about this many nodes, from all over the list.
_QUICK_NODES: Final = 40


class Task(NamedTuple):
    """One replay of one list of pods."""

    folder: Path
    trace: str
    policy: str
    seed: int
    quick: bool = False


class Done(NamedTuple):
    """The result; ``sorted_ms`` are the times of the ledger's decisions."""

    task: Task
    percent: float
    sorted_ms: list[float]
    bound_percent: float
    """The upper bound for any policy with these arrivals."""


def carry_out(task: Task) -> Done:
    """Run a task, in a separate process."""
    nodes, pods = read(task.folder, task.trace)
    if task.quick:
        nodes = nodes[:: -(-len(nodes) // _QUICK_NODES)]
    capacity_milli = sum(node.gpus for node in nodes) * MILLI
    arriving = arrivals(pods, capacity_milli, RATIO, task.seed)
    outcome = replay(nodes, arriving, task.policy, task.seed)
    return Done(task, outcome.percent, sorted(outcome.decisions_ms), most_percent(nodes, arriving))


@cache
def read(folder: Path, trace: str) -> tuple[list[TraceNode], list[TracePod]]:
    """The nodes in ``folder`` and the pods of one list there; raises ``TraceError``."""
    return read_nodes(node_list(folder)), read_pods(pod_lists(folder)[trace])
