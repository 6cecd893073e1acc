"""The cost of an event in the ledger, with few and with many pods, and of a filter without HTTP.

An event pair is a bound pod and a deleted pod (``hold``, ``release``), each pair
on another node of 5,000 with eight GPUs each. A third figure is that of 1,000 pods on 100 nodes, which
all fit a processor's cache: the difference to the others is the memory's, not the ledger's.
Usage: ``python -m benchmarks.ledger_events [--quick]``.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import msgspec

from gpushare.api.allocation.allocation import Allocation, allocate_on
from gpushare.api.node.device import Device, NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.ledger import Ledger

Figures = dict[str, tuple[float, str]]

NODES = 5_000
GPUS_PER_NODE = 8
GPU_MIB = 81559


def measure(*, quick: bool) -> Figures:
    """Median microseconds of an event pair by number of pods, and milliseconds of a filter in process."""
    rounds = 200 if quick else 2_000
    clusters = {
        "ledger_event_us_1000": _cluster(NODES, 1_000),
        "ledger_event_us_50000": _cluster(NODES, 50_000),
        "ledger_event_us_1000_on_100_nodes": _cluster(100, 1_000),
    }
    samples: dict[str, list[float]] = {figure: [] for figure in clusters}
    for turn in range(5):
        # In turns, so that other work of the machine affects all.
        for figure, ledger in clusters.items():
            samples[figure] += _event_pairs_us(ledger, rounds, turn)
    figures = {figure: (statistics.median(taken), "us") for figure, taken in samples.items()}
    few, many = figures["ledger_event_us_1000"][0], figures["ledger_event_us_50000"][0]
    figures["ledger_event_ratio_50000_to_1000"] = (many / few, "ratio")
    figures |= _filter_figures(clusters["ledger_event_us_50000"], 20 if quick else 200)
    return figures | _fragmentation_figures(20 if quick else 300)


def _request(memory_units: int) -> Request:
    one = ContainerRequest("main", ContainerKind.APP, 0, memory_units, 0)
    return Request(memory_units, 0, (one,))


def _node(number: int) -> NodeDevices:
    devices = tuple(Device(index, f"GPU-{number}-{index}", GPU_MIB) for index in range(GPUS_PER_NODE))
    return NodeDevices(f"node-{number}", NodeMode.CGPU, MemoryUnit.MIB_128, devices, max_pods=16)


def _cluster(nodes: int, pods: int, policy: Placement = Placement.BINPACK) -> Ledger:
    """``pods`` of 5 to 25 GiB each, evenly on ``nodes``."""
    ledger = Ledger(node_policy=policy)
    sizes = random.Random(pods)
    for number in range(nodes):
        ledger.set_node(_node(number))
    for pod in range(pods):
        uid, name = f"uid-{pod}", f"node-{pod % nodes}"
        ledger.hold(uid, uid, name, ledger.reserve(uid, uid, _request(sizes.randint(40, 200)), name))
    return ledger


def _event_pairs_us(ledger: Ledger, rounds: int, turn: int) -> list[float]:
    events: list[tuple[str, str, Allocation]] = []
    choice = random.Random(turn)
    nodes = ledger.totals().nodes
    for event in range(rounds):
        node = ledger.node(f"node-{choice.randrange(nodes)}")
        assert node is not None
        allocation = allocate_on(node, node.devices[choice.randrange(GPUS_PER_NODE)], _request(8))
        events.append((f"uid-of-event-{event}", node.name, allocation))
    taken = []
    for uid, name, allocation in events:
        started = time.perf_counter_ns()
        ledger.hold(uid, "default/pod", name, allocation)
        ledger.release(uid)
        taken.append((time.perf_counter_ns() - started) / 1e3)
    return taken


def _filter_figures(ledger: Ledger, rounds: int) -> Figures:
    """5,000 names in random order: all fit, none fits, none fits and (nearly) each for its own reason."""
    names = [f"node-{number}" for number in range(NODES)]
    random.Random(5).shuffle(names)
    fits, full = _request(64), _request(600)
    figures: Figures = {
        "ledger_filter_fits_ms_5000": (_median_ms(ledger.filter, fits, names, rounds), "ms"),
        "ledger_score_ms_5000": (_median_ms(ledger.score, fits, names, rounds), "ms"),
    }
    for number, name in enumerate(names):
        node = ledger.node(name)
        assert node is not None
        # All GPUs but one are full, that one to a level of its own.
        for device in node.devices:
            filled = 637 if device.index != number % GPUS_PER_NODE else 38 + number // GPUS_PER_NODE % 599
            uid = f"{name}-{device.index}"
            ledger.hold(uid, uid, name, allocate_on(node, device, _request(filled)))
    refused = ledger.filter(full, names).refused
    figures["ledger_filter_reasons_5000"] = (len(set(refused.values())), "texts")
    figures["ledger_filter_refused_ms_5000"] = (_median_ms(ledger.filter, full, names, rounds), "ms")
    return figures


def _fragmentation_figures(rounds: int) -> Figures:
    """Scores of 5,000 names by fragmentation: 20 sizes of pods arrive in turns, each placed on the best node.

    The first time of a size, and the first after a renewal of the mix (every 8,192 arrivals), are separate figures.
    """
    ledger = _cluster(NODES, 20_000, Placement.FRAGMENTATION)
    names = [f"node-{number}" for number in range(NODES)]
    chance = random.Random(8)
    requests = [_request(chance.randint(40, 400)) for _ in range(20)]
    for _ in range(9_000):
        ledger.arrived(chance.choice(requests))
    recomputed_ms: list[float] = []
    cached_ms: list[float] = []
    for turn in range(len(requests) + rounds):
        request = requests[turn] if turn < len(requests) else chance.choice(requests)
        started = time.perf_counter_ns()
        scored = ledger.score(request, names)
        taken_ms = (time.perf_counter_ns() - started) / 1e6
        (recomputed_ms if turn < len(requests) else cached_ms).append(taken_ms)
        ledger.reserve(f"uid-of-turn-{turn}", "default/pod", request, names[scored.index(max(scored))])
    return {
        "ledger_score_by_fragments_ms_5000": (statistics.median(cached_ms), "ms"),
        "ledger_score_by_fragments_recomputed_ms_5000": (statistics.median(recomputed_ms), "ms"),
    }


def _median_ms(
    call: Callable[[Request, list[str]], object], request: Request, names: list[str], rounds: int
) -> float:
    taken = []
    text = msgspec.json.encode(names)
    for _ in range(rounds):
        # New strings each time, as from a request's body: their hashes are not computed yet.
        fresh = msgspec.json.decode(text, type=list[str])
        started = time.perf_counter_ns()
        call(request, fresh)
        taken.append((time.perf_counter_ns() - started) / 1e6)
    return statistics.median(taken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and fast")
    for figure, (value, unit) in measure(quick=parser.parse_args().quick).items():
        print(f"{figure:<34} {value:10.3f} {unit}")
