"""``--trace``: a list of pods in openb's form, replayed by one policy or by all."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.api.node.device import Placement
from gpushare.api.request.pluralize import counted
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.progress import Bar
from gpushare.simulate.traces.min_nodes import EnoughNodes, TriedFn, ample, drawn, enough_nodes
from gpushare.simulate.traces.openb import (
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
from gpushare.simulate.traces.replay import Outcome, replay
from gpushare.simulate.traces.timed import TimedOutcome, asked_over_time, has_times, replay_in_time

#: Of the list that is taken where none is named.
USUAL: Final = "default"


class Replaying(NamedTuple):
    """What is replayed: a list of ``folder`` (``None``: the usual one) by each of ``policies``.

    ``some_nodes``: on so many nodes, drawn by ``seed``, instead of those of the list. ``enough``: how many would be enough is looked for.
    """

    folder: Path
    name: str | None
    policies: Sequence[Placement]
    seed: int = 0
    some_nodes: int | None = None
    enough: bool = False


class Replayed(NamedTuple):
    """What came of a list by each policy; ``pods`` have arrived on ``gpus`` GPUs of ``nodes`` nodes."""

    name: str
    nodes: int
    gpus: int
    pods: int
    outcomes: dict[Placement, Outcome]
    enough: dict[Placement, EnoughNodes]


class ReplayedInTime(NamedTuple):
    """What came of a list by its own times, by each policy. ``asked``: seconds, and percent of GPUs asked for, as the list has it."""

    name: str
    nodes: int
    gpus: int
    pods: int
    asked: list[tuple[int, float]]
    outcomes: dict[Placement, TimedOutcome]
    enough: dict[Placement, EnoughNodes]


class _Read(NamedTuple):
    """The list's name, all of its nodes, those that are replayed on, its pods, and the GPUs of all and of those nodes."""

    name: str
    whole: list[TraceNode]
    nodes: list[TraceNode]
    pods: list[TracePod]
    gpus_of_whole: int
    gpus: int


def replayed_in_time(what: Replaying, bar: Bar) -> ReplayedInTime:
    """Replay a list by its own times; raises ``SimulateError``."""
    read = _read(what)
    pods, seed = read.pods, what.seed
    if not has_times(pods):
        raise SimulateError(
            f"--times: {read.name}",
            "does not say of each pod when it came and ended (creation_time and deletion_time)",
        )
    outcomes = {
        policy: replay_in_time(read.nodes, pods, policy, seed, _part(bar, number, len(what.policies)))
        for number, policy in enumerate(what.policies)
    }

    def tried(policy: Placement, nodes: Sequence[TraceNode], most: int | None) -> tuple[int, float]:
        outcome = replay_in_time(nodes, pods, policy, seed, most_waited=most)
        return outcome.waited, outcome.mean_percent

    asked = asked_over_time(pods, read.gpus * MILLI)
    found = _enough(what, read.whole, 1.0, lambda policy: partial(tried, policy), bar)
    return ReplayedInTime(read.name, len(read.nodes), read.gpus, len(pods), asked, outcomes, found)


def replayed(what: Replaying, ratio: float, bar: Bar) -> Replayed:
    """Replay a list, of which ``ratio`` times what the GPUs of all its nodes have arrives; raises ``SimulateError``."""
    read = _read(what)
    seed = what.seed
    # The same pods come, on however many nodes.
    arriving = arrivals(read.pods, read.gpus_of_whole * MILLI, ratio, seed)
    outcomes = {
        policy: replay(read.nodes, arriving, policy, seed, _part(bar, number, len(what.policies)))
        for number, policy in enumerate(what.policies)
    }

    def tried(policy: Placement, nodes: Sequence[TraceNode], most: int | None) -> tuple[int, float]:
        outcome = replay(nodes, arriving, policy, seed, most_dropped=most)
        return outcome.dropped, outcome.percent

    found = _enough(what, read.whole, ratio, lambda policy: partial(tried, policy), bar)
    return Replayed(read.name, len(read.nodes), read.gpus, len(arriving), outcomes, found)


def _enough(
    what: Replaying,
    whole: Sequence[TraceNode],
    ratio: float,
    tried: Callable[[Placement], TriedFn],
    bar: Bar,
) -> dict[Placement, EnoughNodes]:
    if not what.enough:
        return {}
    return {
        policy: enough_nodes(whole, what.seed, ample(whole, ratio), tried(policy), partial(_say, bar, policy))
        for policy in what.policies
    }


def _say(bar: Bar, policy: Placement, nodes: int) -> None:
    bar.said(f"{policy.value}: {counted(nodes, 'node')}")


def _part(bar: Bar, number: int, parts: int) -> Callable[[int, int], None]:
    return lambda done, of: bar.shown(number * of + done, parts * of)


def _read(what: Replaying) -> _Read:
    folder, name = what.folder, what.name
    if not folder.is_dir():
        raise SimulateError(f"--trace {folder}", "there is no such folder")
    try:
        whole = read_nodes(node_list(folder))
        lists = pod_lists(folder)
        chosen = name or (USUAL if USUAL in lists or len(lists) != 1 else next(iter(lists)))
        if chosen not in lists:
            raise SimulateError(f"--list {chosen}", f"there are {', '.join(lists) or 'no lists of pods'}")
        pods = read_pods(lists[chosen])
    except TraceError as error:
        raise SimulateError("", str(error)) from None
    gpus_of_whole = sum(node.gpus for node in whole)
    if not gpus_of_whole or not any(pod.gpus for pod in pods):
        raise SimulateError(f"--trace {folder}", f"no node, or no pod of {chosen}, has a GPU")
    nodes = whole if what.some_nodes is None else drawn(whole, what.some_nodes, what.seed)
    return _Read(chosen, whole, nodes, pods, gpus_of_whole, sum(node.gpus for node in nodes))
