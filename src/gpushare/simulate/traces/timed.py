"""A list of pods replayed by its own times: each comes when it came, waits where there is no room, and ends when it has run so long.

It runs as long as in the list, from the moment when it has its place. Who waits is tried again, in the order in which they came, each
time that a pod ends.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from gpushare.api.node.device import Placement
from gpushare.simulate.traces.openb import MILLI, TraceNode, TracePod
from gpushare.simulate.traces.replay import NONE, Cluster, Refusals


class Instant(NamedTuple):
    """How it stood from ``at_s`` on: percent of all GPUs that is given, and pods with GPUs that wait."""

    at_s: int
    given_percent: float
    waiting: int


class Stay(NamedTuple):
    """Where and when a pod ran, and on which GPUs; without a node it never did, for what ``refusals`` said when it was tried last."""

    pod: TracePod
    node: str
    gpus: tuple[int, ...] = ()
    began_s: int | None = None
    ended_s: int | None = None
    refusals: Refusals = NONE


class TimedOutcome(NamedTuple):
    """What came of a list: percent of all GPUs over its time (mean and most), and the pods with GPUs that had to wait.

    ``longest_wait_s``: of those that had a place in the end; ``never`` had none. ``stays``: all pods as they came.
    """

    mean_percent: float
    most_percent: float
    waited: int
    longest_wait_s: int
    never: int
    curve: list[Instant]
    stays: list[Stay]


def has_times(pods: Sequence[TracePod]) -> bool:
    """Whether each pod says when it came and when it ended."""
    return all(pod.created_s is not None and pod.ended_s is not None for pod in pods)


def asked_over_time(pods: Sequence[TracePod], capacity_milli: int) -> list[tuple[int, float]]:
    """Seconds, and percent of all GPUs that pods which were there then asked for, as the list has their times."""
    changes = []
    for pod in pods:
        if pod.gpus and pod.created_s is not None and pod.ended_s is not None:
            changes += [(pod.created_s, pod.total_milli), (pod.ended_s, -pod.total_milli)]
    asked, found = 0, [(0, 0.0)]
    for at_s, alike in groupby(sorted(changes), key=lambda one: one[0]):
        asked += sum(milli for _, milli in alike)
        found.append((at_s, 100 * asked / capacity_milli))
    return found


def replay_in_time(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    policy: Placement,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
    most_waited: int | None = None,
) -> TimedOutcome:
    """Replay ``pods``, which have times, by ``policy``. ``progress`` is told how many have come, of how many.

    It ends before all have come where more than ``most_waited`` pods with GPUs had to wait.
    """
    run = _Run(nodes, policy, seed)
    coming = sorted(enumerate(pods), key=lambda one: (one[1].created_s or 0, one[0]))
    for number, (index, pod) in enumerate(coming, 1):
        run.until(pod.created_s or 0)
        run.come(index, pod)
        if most_waited is not None and run.waited > most_waited:
            break
        progress(number, len(coming))
    run.until(None)
    return run.outcome()


class _Run:
    def __init__(self, nodes: Sequence[TraceNode], policy: Placement, seed: int) -> None:
        chance = random.Random(f"{policy.value} {seed}")  # noqa: S311 - the same seed must give the same again
        self._cluster = Cluster(nodes, policy, chance)
        self._nodes = nodes
        self._capacity = sum(node.gpus for node in nodes) * MILLI
        self._now_s = 0
        self._ends: list[tuple[int, int, int, TracePod]] = []
        """A heap: when, the pod's number, its node's number, the pod."""
        self._waiting: dict[int, TracePod] = {}
        self._waited: list[int] = []
        self._stays: dict[int, Stay] = {}
        self._curve = [Instant(0, 0.0, 0)]

    def come(self, index: int, pod: TracePod) -> None:
        """A pod comes now."""
        if not self._placed(index, pod, is_new=True):
            self._waiting[index] = pod
        self._note()

    def until(self, to_s: int | None) -> None:
        """Let pods end that end until then (``None``: all), and others have their room."""
        while self._ends and (to_s is None or self._ends[0][0] <= to_s):
            self._now_s = self._ends[0][0]
            while self._ends and self._ends[0][0] == self._now_s:
                _, index, node, pod = heapq.heappop(self._ends)
                self._cluster.end(f"pod-{index}", node, pod)
            self._try_again()
            self._note()
        if to_s is not None:
            self._now_s = to_s

    def _try_again(self) -> None:
        in_vain: dict[tuple[object, ...], Stay] = {}
        for index, pod in list(self._waiting.items()):
            # Another like one that has found nothing just now finds nothing.
            shape = pod[:5]
            if shape in in_vain:
                self._stays[index] = in_vain[shape]._replace(pod=pod)
            elif self._placed(index, pod, is_new=False):
                del self._waiting[index]
            else:
                in_vain[shape] = self._stays[index]

    def _placed(self, index: int, pod: TracePod, *, is_new: bool) -> bool:
        if pod.gpus:
            tried = self._cluster.place(f"pod-{index}", pod, is_new=is_new)
        else:
            tried = self._cluster.place_without_gpu(pod)
        node = tried.node
        if node is None:
            self._stays[index] = Stay(pod, "", refusals=tried.refusals)
            return False
        ends_s = self._now_s + pod.runs_s
        self._stays[index] = Stay(pod, self._nodes[node].name, tried.gpus, self._now_s, ends_s)
        if pod.gpus and self._now_s > (pod.created_s or 0):
            self._waited.append(self._now_s - (pod.created_s or 0))
        heapq.heappush(self._ends, (ends_s, index, node, pod))
        return True

    @property
    def waited(self) -> int:
        """How many pods with GPUs had to wait so far."""
        return len(self._waited) + self._waiting_now()

    def _waiting_now(self) -> int:
        return sum(pod.gpus > 0 for pod in self._waiting.values())

    def _note(self) -> None:
        given = 100 * self._cluster.given_milli / self._capacity
        now = Instant(self._now_s, given, self._waiting_now())
        if self._curve[-1].at_s == self._now_s:
            self._curve[-1] = now
        else:
            self._curve.append(now)

    def outcome(self) -> TimedOutcome:
        """How it was."""
        pairs = zip(self._curve, self._curve[1:], strict=False)
        area = sum(one.given_percent * (after.at_s - one.at_s) for one, after in pairs)
        never = self._waiting_now()
        stays = sorted(self._stays.items(), key=lambda one: (one[1].pod.created_s or 0, one[0]))
        return TimedOutcome(
            area / max(self._curve[-1].at_s, 1),
            max(one.given_percent for one in self._curve),
            len(self._waited) + never,
            max(self._waited, default=0),
            never,
            self._curve,
            [stay for _, stay in stays],
        )
