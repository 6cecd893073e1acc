"""What containers have used of their GPUs since this process began, in a bounded memory; told as JSON at ``/usage``.

Of each container and GPU: how often it was seen at work there, the most that it used, and how its use was spread, by which any
quantile is told to a sixteenth. It is memory alone: an agent that starts again says since when it knows.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from gpushare.kube.clock import Clock
from gpushare.nodeagent.isolation.judging import Holder, Use

#: The path at which it is served.
PATH: Final = "/usage"
#: Containers that are remembered; above that those are forgotten that were not seen for longest.
MOST_KEPT: Final = 256
_QUANTILE: Final = 95
_EXACT: Final = 16


class _Track:
    """What one container used of one GPU: looks by step of MiB, and by percent."""

    __slots__ = ("first_ns", "given_core", "given_mib", "last_mib", "last_ns", "mib", "peak_mib", "percent")

    def __init__(self, now_ns: int) -> None:
        self.first_ns = self.last_ns = now_ns
        self.peak_mib = self.last_mib = self.given_mib = self.given_core = 0
        self.mib: dict[int, int] = {}
        self.percent: dict[int, int] = {}


class UsageHistory:
    """Fed with every look at the processes. ``clock`` tells the time of day."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = clock.time_ns()
        self._tracks: dict[tuple[str, str, str, str], _Track] = {}

    def take(self, uses: Iterable[Use]) -> None:
        """Note what every holder with a process uses now."""
        now_ns = self._clock.time_ns()
        for use in uses:
            holder = use.holder
            key = _key(holder)
            track = self._tracks.pop(key, None) or _Track(now_ns)
            self._tracks[key] = track  # the order is that of the last looks
            track.last_ns, track.last_mib = now_ns, use.mib
            track.peak_mib = max(track.peak_mib, use.mib)
            track.given_mib, track.given_core = holder.mib, holder.core_percent
            step = step_of(use.mib)
            track.mib[step] = track.mib.get(step, 0) + 1
            percent = min(use.sm_percent, 100)
            track.percent[percent] = track.percent.get(percent, 0) + 1
        while len(self._tracks) > MOST_KEPT:
            del self._tracks[next(iter(self._tracks))]

    @property
    def pages(self) -> dict[str, Callable[[], bytes]]:
        """What is served, by path."""
        return {PATH: self.answer}

    def answer(self) -> bytes:
        """All that is known, as JSON; times are seconds since 1970."""
        return msgspec.json.encode(
            {
                "version": 1,
                "since": self._since_ns // 10**9,
                "containers": [_told(key, track) for key, track in self._tracks.items()],
            }
        )


def step_of(mib: int) -> int:
    """The number of the step in which ``mib`` lies: each doubling has sixteen."""
    doublings = max(mib.bit_length() - 5, 0)
    return doublings * _EXACT + (mib >> doublings)


def most_in(step: int) -> int:
    """The most MiB that lie in a step."""
    doublings = max(step // _EXACT - 1, 0)
    return (step - doublings * _EXACT + 1 << doublings) - 1


def _told(key: tuple[str, str, str, str], track: _Track) -> dict[str, Any]:
    pod, uid, container, gpu = key
    namespace, _, name = pod.partition("/")
    return {
        "namespace": namespace,
        "pod": name,
        "uid": uid,
        "container": container,
        "gpu": gpu,
        "looks": sum(track.mib.values()),
        "first": track.first_ns // 10**9,
        "last": track.last_ns // 10**9,
        "givenMiB": track.given_mib,
        "peakMiB": track.peak_mib,
        "p95MiB": min(most_in(_quantile(track.mib)), track.peak_mib),
        "lastMiB": track.last_mib,
        "givenCorePercent": track.given_core,
        "peakPercent": max(track.percent),
        "p95Percent": _quantile(track.percent),
    }


def _quantile(counts: dict[int, int]) -> int:
    """The least value below or at which 95 of 100 looks are."""
    wanted, below = -(-sum(counts.values()) * _QUANTILE // 100), 0
    for value in sorted(counts):
        below += counts[value]
        if below >= wanted:
            return value
    raise AssertionError("there is at least one look")


def _key(holder: Holder) -> tuple[str, str, str, str]:
    return holder.pod, holder.uid, holder.container, holder.gpu
