"""``--trace``: a list of pods in openb's form, replayed by one policy or by all."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpushare.inspect.columns import aligned
from gpushare.model.device import Placement
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.openb import (
    MILLI,
    TraceError,
    TraceNode,
    TracePod,
    arrivals,
    node_list,
    pod_lists,
    read_nodes,
    read_pods,
)
from gpushare.simulate.replay import Outcome, replay
from gpushare.simulate.timed import TimedOutcome, asked_over_time, has_times, replay_in_time

API_VERSION: Final = "gpushare.dev/trace-replay/v1"
#: Of the list that is taken where none is named.
USUAL: Final = "default"


class Replayed(NamedTuple):
    """What came of a list by each policy; ``pods`` have arrived on ``gpus`` GPUs of ``nodes`` nodes."""

    name: str
    nodes: int
    gpus: int
    pods: int
    outcomes: dict[Placement, Outcome]


class ReplayedInTime(NamedTuple):
    """What came of a list by its own times, by each policy. ``asked``: seconds, and percent of GPUs asked for, as the list has it."""

    name: str
    nodes: int
    gpus: int
    pods: int
    asked: list[tuple[int, float]]
    outcomes: dict[Placement, TimedOutcome]


def replayed_in_time(
    folder: Path,
    name: str | None,
    policies: Sequence[Placement],
    seed: int,
    progress: Callable[[int, int], None],
    some_nodes: int | None = None,
) -> ReplayedInTime:
    """Replay a list of ``folder`` by its own times; raises ``SimulateError``.

    ``some_nodes``: only so many of the nodes, drawn by ``seed``.
    """
    chosen, nodes, pods, gpus = _read(folder, name)
    if some_nodes is not None and some_nodes < len(nodes):
        nodes = random.Random(seed).sample(nodes, some_nodes)  # noqa: S311 - the same seed must give the same again
        gpus = sum(node.gpus for node in nodes)
    if not has_times(pods):
        raise SimulateError(
            f"--times: {chosen}",
            "does not say of each pod when it came and ended (creation_time and deletion_time)",
        )
    outcomes = {
        policy: replay_in_time(nodes, pods, policy, seed, _part(progress, number, len(policies)))
        for number, policy in enumerate(policies)
    }
    return ReplayedInTime(chosen, len(nodes), gpus, len(pods), asked_over_time(pods, gpus * MILLI), outcomes)


def replayed(
    folder: Path,
    name: str | None,
    policies: Sequence[Placement],
    ratio: float,
    seed: int,
    progress: Callable[[int, int], None],
) -> Replayed:
    """Replay a list of ``folder``; raises ``SimulateError``."""
    chosen, nodes, pods, gpus = _read(folder, name)
    arriving = arrivals(pods, gpus * MILLI, ratio, seed)
    outcomes = {
        policy: replay(nodes, arriving, policy, seed, _part(progress, number, len(policies)))
        for number, policy in enumerate(policies)
    }
    return Replayed(chosen, len(nodes), gpus, len(arriving), outcomes)


def _part(progress: Callable[[int, int], None], number: int, parts: int) -> Callable[[int, int], None]:
    return lambda done, of: progress(number * of + done, parts * of)


def _read(folder: Path, name: str | None) -> tuple[str, list[TraceNode], list[TracePod], int]:
    """The name of the list, the nodes, its pods, and how many GPUs there are."""
    if not folder.is_dir():
        raise SimulateError(f"--trace {folder}", "there is no such folder")
    try:
        nodes = read_nodes(node_list(folder))
        lists = pod_lists(folder)
        chosen = name or (USUAL if USUAL in lists or len(lists) != 1 else next(iter(lists)))
        if chosen not in lists:
            raise SimulateError(f"--list {chosen}", f"there are {', '.join(lists) or 'no lists of pods'}")
        pods = read_pods(lists[chosen])
    except TraceError as error:
        raise SimulateError("", str(error)) from None
    gpus = sum(node.gpus for node in nodes)
    if not gpus or not any(pod.gpus for pod in pods):
        raise SimulateError(f"--trace {folder}", f"no node, or no pod of {chosen}, has a GPU")
    return chosen, nodes, pods, gpus


def table(found: Replayed) -> str:
    """A row for each policy."""
    lines = [["POLICY", "GPUS GIVEN", "PODS DROPPED"]]
    lines += [
        [policy.value, f"{outcome.percent:.2f}%", str(outcome.dropped)]
        for policy, outcome in found.outcomes.items()
    ]
    head = f"{found.name}: {found.pods} pods on {found.gpus} GPUs of {found.nodes} nodes\n\n"
    return head + "\n".join(aligned(lines)) + "\n"


def table_in_time(found: ReplayedInTime) -> str:
    """A row for each policy."""
    lines = [["POLICY", "MEAN GIVEN", "MOST GIVEN", "PODS THAT WAITED", "LONGEST WAIT", "NEVER PLACED"]]
    lines += [
        [
            policy.value,
            f"{outcome.mean_percent:.2f}%",
            f"{outcome.most_percent:.2f}%",
            str(outcome.waited),
            long(outcome.longest_wait_s),
            str(outcome.never),
        ]
        for policy, outcome in found.outcomes.items()
    ]
    head = f"{found.name}: {found.pods} pods on {found.gpus} GPUs of {found.nodes} nodes, by the list's own times\n\n"
    return head + "\n".join(aligned(lines)) + "\n"


def long(seconds: int) -> str:
    """So many seconds for people: ``1d3h``, ``2h5m``, ``7m``; ``-`` for none."""
    if not seconds:
        return "-"
    minutes = -(-seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days}d{hours % 24}h"
    return f"{hours}h{minutes % 60}m" if hours else f"{minutes}m"


def structured_in_time(found: ReplayedInTime) -> dict[str, Any]:
    """The same for programs."""
    policies = [
        {
            "policy": policy.value,
            "meanGivenPercent": round(outcome.mean_percent, 4),
            "mostGivenPercent": round(outcome.most_percent, 4),
            "waited": outcome.waited,
            "longestWaitSeconds": outcome.longest_wait_s,
            "never": outcome.never,
            "curve": [
                {"seconds": one.at_s, "givenPercent": round(one.given_percent, 3), "waiting": one.waiting}
                for one in outcome.curve
            ],
        }
        for policy, outcome in found.outcomes.items()
    ]
    return _document(found, policies, by_time=True)


def structured(found: Replayed) -> dict[str, Any]:
    """The same for programs."""
    policies = [
        {
            "policy": policy.value,
            "givenPercent": round(outcome.percent, 4),
            "dropped": outcome.dropped,
            "curve": [
                {"askedPercent": round(asked, 3), "givenPercent": round(given, 3)}
                for asked, given in outcome.curve
            ],
        }
        for policy, outcome in found.outcomes.items()
    ]
    return _document(found, policies, by_time=False)


def _document(
    found: Replayed | ReplayedInTime, policies: list[dict[str, Any]], *, by_time: bool
) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "list": found.name,
        "nodes": found.nodes,
        "gpus": found.gpus,
        "pods": found.pods,
        "byTime": by_time,
        "policies": policies,
    }
