"""A list of pods replayed by its own times: each comes when it came, waits where there is no room, and ends when it has run so long.

It runs as long as in the list, from the moment when it has its place. Who waits is tried again, in the order in which they came, each
time that a pod ends.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from gpushare.model.device import Placement
from gpushare.simulate.openb import MILLI, TraceNode, TracePod
from gpushare.simulate.replay import Cluster


class Instant(NamedTuple):
    """How it stood from ``at_s`` on: percent of all GPUs that is given, and pods with GPUs that wait."""

    at_s: int
    given_percent: float
    waiting: int


class TimedOutcome(NamedTuple):
    """What came of a list: percent of all GPUs over its time (mean and most), and the pods with GPUs that had to wait.

    ``longest_wait_s``: of those that had a place in the end; ``never`` had none.
    """

    mean_percent: float
    most_percent: float
    waited: int
    longest_wait_s: int
    never: int
    curve: list[Instant]


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
) -> TimedOutcome:
    """Replay ``pods``, which have times, by ``policy``. ``progress`` is told how many have come, of how many."""
    run = _Run(nodes, policy, seed)
    coming = sorted(enumerate(pods), key=lambda one: (one[1].created_s or 0, one[0]))
    for number, (index, pod) in enumerate(coming, 1):
        run.until(pod.created_s or 0)
        run.come(index, pod)
        progress(number, len(coming))
    run.until(None)
    return run.outcome()


class _Run:
    def __init__(self, nodes: Sequence[TraceNode], policy: Placement, seed: int) -> None:
        chance = random.Random(f"{policy.value} {seed}")  # noqa: S311 - the same seed must give the same again
        self._cluster = Cluster(nodes, policy, chance)
        self._capacity = sum(node.gpus for node in nodes) * MILLI
        self._now_s = 0
        self._ends: list[tuple[int, int, int, TracePod]] = []
        """A heap: when, the pod's number, its node's number, the pod."""
        self._waiting: dict[int, TracePod] = {}
        self._waited: list[int] = []
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
        in_vain: set[tuple[object, ...]] = set()
        for index, pod in list(self._waiting.items()):
            # Another like one that has found nothing just now finds nothing.
            shape = pod[:5]
            if shape in in_vain:
                continue
            if self._placed(index, pod, is_new=False):
                del self._waiting[index]
            else:
                in_vain.add(shape)

    def _placed(self, index: int, pod: TracePod, *, is_new: bool) -> bool:
        if pod.gpus:
            _, node = self._cluster.place(f"pod-{index}", pod, is_new=is_new)
        else:
            node = self._cluster.place_without_gpu(pod)
        if node is None:
            return False
        if pod.gpus and self._now_s > (pod.created_s or 0):
            self._waited.append(self._now_s - (pod.created_s or 0))
        heapq.heappush(self._ends, (self._now_s + pod.runs_s, index, node, pod))
        return True

    def _note(self) -> None:
        given = 100 * self._cluster.given_milli / self._capacity
        now = Instant(self._now_s, given, sum(pod.gpus > 0 for pod in self._waiting.values()))
        if self._curve[-1].at_s == self._now_s:
            self._curve[-1] = now
        else:
            self._curve.append(now)

    def outcome(self) -> TimedOutcome:
        """How it was."""
        pairs = zip(self._curve, self._curve[1:], strict=False)
        area = sum(one.given_percent * (after.at_s - one.at_s) for one, after in pairs)
        never = sum(pod.gpus > 0 for pod in self._waiting.values())
        return TimedOutcome(
            area / max(self._curve[-1].at_s, 1),
            max(one.given_percent for one in self._curve),
            len(self._waited) + never,
            max(self._waited, default=0),
            never,
            self._curve,
        )
