"""What containers have used of their GPUs since this process started, in bounded memory; served as JSON at ``/usage``.

Of each container and GPU: how often it was seen there, the most that it used, how its use was spread, by which any quantile is told
to a sixteenth (that of compute over the looks that found it computing), how long it computed, and for how long its threads waited for
their share of compute. It is memory alone: an agent that starts again says since when it knows.

Time is cut in slices, the young ones short and the older ones longer, so that a question about the last hours (``?window=SECONDS``) is
answered from the slices that reach into them, and says from when on.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpushare.kube.clock import Clock
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.storage.usage_file import read_usage
from gpushare.nodeagent.isolation.watchdog.violations import Holder, Use

#: The path it is served at.
PATH: Final = "/usage"
#: Containers kept; above that the least recently seen are dropped.
MOST_KEPT: Final = 256
#: How long a slice is at first, how many there are at most, and how many figures of a container and GPU in all of them.
SLICE_NS: Final = 600 * 10**9
MOST_SLICES: Final = 24
MOST_TRACKS: Final = 1024
_QUANTILE: Final = 95
_EXACT: Final = 16
#: If two samples are further apart than this, the time between them counts as unknown.
_LONGEST_NS: Final = 60 * 10**9
_MOST_DIGITS: Final = 9
_PAIR: Final = struct.Struct("<II")

ContainerKey = tuple[str, str, str, str]
"""Pod, UID, container, GPU."""


class _Track:
    """What one container used of one GPU: looks by step of MiB, and those at work by percent (packed once its slice is over)."""

    __slots__ = (
        "first_ns",
        "given_core",
        "given_mib",
        "last_mib",
        "last_ns",
        "mib",
        "peak_mib",
        "percent",
        "untold",
        "waited_ns",
        "work_ns",
    )

    def __init__(self, now_ns: int) -> None:
        self.first_ns = self.last_ns = now_ns
        self.peak_mib = self.last_mib = self.given_mib = self.given_core = 0
        self.work_ns = self.waited_ns = self.untold = 0
        self.mib: dict[int, int] | bytes = {}
        self.percent: dict[int, int] | bytes = {}

    def pack(self) -> None:
        """Pack it; nothing is added after this."""
        self.mib, self.percent = _packed(self.mib), _packed(self.percent)

    def add(self, other: "_Track") -> None:
        """What a younger slice, or the same, knows of it."""
        self.last_ns, self.last_mib = other.last_ns, other.last_mib
        self.given_mib, self.given_core = other.given_mib, other.given_core
        self.peak_mib = max(self.peak_mib, other.peak_mib)
        self.work_ns += other.work_ns
        self.waited_ns += other.waited_ns
        self.untold += other.untold
        self.mib = _sum(self.mib, other.mib)
        self.percent = _sum(self.percent, other.percent)


class _Slice:
    """A period of time and what was sampled in it. It ends where the next begins."""

    __slots__ = ("begin_ns", "tracks")

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.tracks: dict[ContainerKey, _Track] = {}

    def take_in(self, other: "_Slice") -> None:
        """Extend over both."""
        for key, track in other.tracks.items():
            known = self.tracks.pop(key, None)
            if known is not None:
                known.add(track)
                known.pack()
            self.tracks[key] = known or track
        _bound(self.tracks)


class UsageHistory:
    """Fed with every look at the processes. ``clock`` tells the time of day; ``directories`` are those of isolated containers."""

    def __init__(
        self, clock: Clock, directories: Callable[[], Iterable[tuple[Claimed, Path]]] = lambda: ()
    ) -> None:
        self._clock = clock
        self._directories = directories
        self._since_ns = clock.time_ns()
        self._slices = [_Slice(self._since_ns)]
        self._looked_ns: int | None = None
        self._waited: Mapping[tuple[str, str, str], int] | None = None
        self._waited_at_ns = 0

    def take(self, uses: Sequence[Use]) -> None:
        """Record what every container with a process uses now."""
        now_ns = self._clock.time_ns()
        between_ns = 0 if self._looked_ns is None else max(now_ns - self._looked_ns, 0)
        self._looked_ns = now_ns
        between_ns = between_ns if between_ns <= _LONGEST_NS else 0
        tracks = self._slices[-1].tracks
        for use in uses:
            # Of who is seen for the first time nothing is known of the time before.
            known = tracks.get(_key(use.holder))
            if known is not None and use.sm_percent > 0:
                known.work_ns += between_ns
        if now_ns >= self._slices[-1].begin_ns + SLICE_NS:
            self._settle(now_ns)
            self._cut(now_ns)
            tracks = self._slices[-1].tracks
        if self._waited is None or any(_key(use.holder) not in tracks for use in uses):
            # What threads have waited before it was seen is not of the time in which it was.
            self._settle(now_ns)
        for use in uses:
            self._note(tracks, use, now_ns)
        _bound(tracks)

    def _note(self, tracks: dict[ContainerKey, _Track], use: Use, now_ns: int) -> None:
        holder = use.holder
        key = _key(holder)
        track = tracks.pop(key, None) or _Track(now_ns)
        tracks[key] = track  # the order is that of the last looks
        track.last_ns, track.last_mib = now_ns, use.mib
        # What is told of some of its processes counts all the same: it holds that, and more.
        track.untold += use.untold > 0
        track.peak_mib = max(track.peak_mib, use.mib)
        track.given_mib, track.given_core = holder.mib, holder.core_percent
        assert isinstance(track.mib, dict)
        assert isinstance(track.percent, dict)
        step = step_of(use.mib)
        track.mib[step] = track.mib.get(step, 0) + 1
        if use.sm_percent > 0:
            # What it needs shows in the moments in which it computes: idle ones, however many, make it need no less.
            percent = min(use.sm_percent, 100)
            track.percent[percent] = track.percent.get(percent, 0) + 1

    @property
    def pages(self) -> dict[str, Callable[[str], bytes]]:
        """What is served, by path; each is handed what stands behind the question mark."""
        return {PATH: self.answer}

    def answer(self, query: str = "") -> bytes:
        """What is known, as JSON; times are seconds since 1970. Raises ``ValueError`` for a window that is no number of seconds.

        ``from`` is when the first of the slices begins that reach into the window; ``looked`` the last look, 0 for none. In
        ``untoldLooks`` of its ``looks`` the driver did not tell how much memory a container holds.
        """
        now_ns = self._clock.time_ns()
        window_s = _window_s(query)
        if self._waited is not None:
            self._settle(now_ns)
        some = self._slices
        if window_s is not None:
            ends = [one.begin_ns for one in some[1:]] + [now_ns + 1]
            reach_ns = now_ns - window_s * 10**9
            some = [one for one, end_ns in zip(some, ends, strict=True) if end_ns > reach_ns]
        told: dict[ContainerKey, _Track] = {}
        for one in some:
            for key, track in one.tracks.items():
                known = told.pop(key, None) or _Track(track.first_ns)
                known.add(track)
                told[key] = known
        _bound(told)
        return msgspec.json.encode(
            {
                "version": 1,
                "since": self._since_ns // 10**9,
                "from": some[0].begin_ns // 10**9,
                "looked": (self._looked_ns or 0) // 10**9,
                "containers": [_told(key, track) for key, track in told.items()],
            }
        )

    def _cut(self, now_ns: int) -> None:
        for track in self._slices[-1].tracks.values():
            track.pack()
        self._slices.append(_Slice(now_ns))
        while len(self._slices) > 2 and (
            len(self._slices) > MOST_SLICES or sum(len(one.tracks) for one in self._slices) > MOST_TRACKS
        ):
            self._join(now_ns)

    def _join(self, now_ns: int) -> None:
        """Make one of two neighbours: those that are shortest for their age, so that slices grow longer the older they are."""
        begins = [one.begin_ns for one in self._slices]

        def worth(at: int) -> float:
            end_ns = begins[at + 2]
            return (end_ns - begins[at]) / (now_ns - end_ns + SLICE_NS)

        at = min(range(len(begins) - 2), key=worth)
        self._slices[at].take_in(self._slices.pop(at + 1))

    def _settle(self, now_ns: int) -> None:
        """Note how long threads have waited since this was noted last."""
        before, passed_ns = self._waited, max(now_ns - self._waited_at_ns, 0)
        self._waited, self._waited_at_ns = _waited(self._directories()), now_ns
        if before is None:
            return
        for (pod, uid, container, gpu), track in self._slices[-1].tracks.items():
            del pod
            key = (uid, container, gpu)
            count = self._waited.get(key, 0)
            # A container that starts again counts from nothing. Of several threads at once one counts.
            more = count - before.get(key, 0)
            track.waited_ns += min(count if more < 0 else more, passed_ns)


def step_of(mib: int) -> int:
    """The number of the step in which ``mib`` lies: each doubling has sixteen."""
    doublings = max(mib.bit_length() - 5, 0)
    return doublings * _EXACT + (mib >> doublings)


def most_in(step: int) -> int:
    """The largest MiB of a step."""
    doublings = max(step // _EXACT - 1, 0)
    return (step - doublings * _EXACT + 1 << doublings) - 1


def _window_s(query: str) -> int | None:
    """What is asked for; other words are those of clients and proxies (kubectl adds its ``timeout``)."""
    for word in query.split("&"):
        name, _, value = word.partition("=")
        if name != "window":
            continue
        if not (value.isascii() and value.isdecimal()) or len(value) > _MOST_DIGITS or not int(value):
            raise ValueError(f"{word}: a window is a whole number of seconds from 1")
        return int(value)
    return None


def _waited(directories: Iterable[tuple[Claimed, Path]]) -> dict[tuple[str, str, str], int]:
    """How long the threads of a container have waited for a GPU's time, in ns; of all of a pod's with an empty name."""
    found: dict[tuple[str, str, str], int] = {}
    for claimed, folder in directories:
        if not claimed.core_percent:
            continue
        shares = claimed.mib_by_gpu
        for gpu, use in zip(shares, read_usage(folder, len(shares)), strict=False):
            for container in (claimed.container, ""):
                key = (claimed.uid, container, gpu)
                found[key] = found.get(key, 0) + use.waited_ns
    return found


def _bound(tracks: dict[ContainerKey, _Track]) -> None:
    while len(tracks) > MOST_KEPT:
        del tracks[next(iter(tracks))]


def _items(counts: dict[int, int] | bytes) -> Iterable[tuple[int, int]]:
    return _PAIR.iter_unpack(counts) if isinstance(counts, bytes) else counts.items()


def _packed(counts: dict[int, int] | bytes) -> bytes:
    return counts if isinstance(counts, bytes) else b"".join(_PAIR.pack(*one) for one in counts.items())


def _sum(some: dict[int, int] | bytes, more: dict[int, int] | bytes) -> dict[int, int]:
    found = dict(_items(some))
    for value, count in _items(more):
        found[value] = found.get(value, 0) + count
    return found


def _told(key: ContainerKey, track: _Track) -> dict[str, Any]:
    pod, uid, container, gpu = key
    namespace, _, name = pod.partition("/")
    mib, percent = dict(_items(track.mib)), dict(_items(track.percent))
    return {
        "namespace": namespace,
        "pod": name,
        "uid": uid,
        "container": container,
        "gpu": gpu,
        "looks": sum(mib.values()),
        "untoldLooks": track.untold,
        "first": track.first_ns // 10**9,
        "last": track.last_ns // 10**9,
        "workSeconds": track.work_ns // 10**9,
        "waitedSeconds": track.waited_ns // 10**9,
        "givenMiB": track.given_mib,
        "peakMiB": track.peak_mib,
        "p95MiB": min(most_in(_quantile(mib)), track.peak_mib),
        "lastMiB": track.last_mib,
        "givenCorePercent": track.given_core,
        "peakPercent": max(percent, default=0),
        "p95Percent": _quantile(percent),
    }


def _quantile(counts: dict[int, int]) -> int:
    """The 95th percentile of the samples; 0 without any."""
    wanted, below = -(-sum(counts.values()) * _QUANTILE // 100), 0
    for value in sorted(counts):
        below += counts[value]
        if below >= wanted:
            return value
    return 0


def _key(holder: Holder) -> ContainerKey:
    return holder.pod, holder.uid, holder.container, holder.gpu
