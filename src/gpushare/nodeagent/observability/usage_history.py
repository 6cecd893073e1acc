"""GPU use of containers since this process started, in bounded memory; served as JSON at ``/usage``.

For each container and GPU: how often it was sampled there, its peak, the distribution of its use, from which any quantile is known to
a sixteenth (for compute: over the samples in which it computed), how long it computed, and how long its threads waited for their
share of compute. It is in memory only: the response of a restarted agent contains the time since which it has data.

Time is divided into slices, recent ones short and older ones longer. A query for the last hours (``?window=SECONDS``) is answered
from the slices that overlap them, and the response contains the start time.
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
#: The most containers; beyond that the least recently seen are dropped.
MOST_KEPT: Final = 256
#: Initial length of a slice, the most slices, and the most entries (container and GPU) in all of them.
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
    """Use of one GPU by one container: samples by step of MiB, and those at work by percent (packed once the slice has ended)."""

    __slots__ = (
        "allocated_core",
        "allocated_mib",
        "first_ns",
        "last_mib",
        "last_ns",
        "mib",
        "peak_mib",
        "percent",
        "unreported",
        "waited_ns",
        "work_ns",
    )

    def __init__(self, now_ns: int) -> None:
        self.first_ns = self.last_ns = now_ns
        self.peak_mib = self.last_mib = self.allocated_mib = self.allocated_core = 0
        self.work_ns = self.waited_ns = self.unreported = 0
        self.mib: dict[int, int] | bytes = {}
        self.percent: dict[int, int] | bytes = {}

    def pack(self) -> None:
        """Pack it; nothing is added after this."""
        self.mib, self.percent = _packed(self.mib), _packed(self.percent)

    def add(self, other: "_Track") -> None:
        """Add the data of the same slice or a later one."""
        self.last_ns, self.last_mib = other.last_ns, other.last_mib
        self.allocated_mib, self.allocated_core = other.allocated_mib, other.allocated_core
        self.peak_mib = max(self.peak_mib, other.peak_mib)
        self.work_ns += other.work_ns
        self.waited_ns += other.waited_ns
        self.unreported += other.unreported
        self.mib = _sum(self.mib, other.mib)
        self.percent = _sum(self.percent, other.percent)


class _Slice:
    """A period of time and what was sampled in it. It ends where the next begins."""

    __slots__ = ("begin_ns", "tracks")

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.tracks: dict[ContainerKey, _Track] = {}

    def take_in(self, other: "_Slice") -> None:
        """Extend this slice over ``other``."""
        for key, track in other.tracks.items():
            known = self.tracks.pop(key, None)
            if known is not None:
                known.add(track)
                known.pack()
            self.tracks[key] = known or track
        _bound(self.tracks)


class UsageHistory:
    """Fed with every sample of the processes. ``clock`` is the time of day; ``directories`` are those of isolated containers."""

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
            # For a container that is seen for the first time nothing is known of the time before.
            known = tracks.get(_key(use.holder))
            if known is not None and use.sm_percent > 0:
                known.work_ns += between_ns
        if now_ns >= self._slices[-1].begin_ns + SLICE_NS:
            self._settle(now_ns)
            self._cut(now_ns)
            tracks = self._slices[-1].tracks
        if self._waited is None or any(_key(use.holder) not in tracks for use in uses):
            # Waiting time from before the container was seen is not attributed to this slice.
            self._settle(now_ns)
        for use in uses:
            self._note(tracks, use, now_ns)
        _bound(tracks)

    def _note(self, tracks: dict[ContainerKey, _Track], use: Use, now_ns: int) -> None:
        holder = use.holder
        key = _key(holder)
        track = tracks.pop(key, None) or _Track(now_ns)
        tracks[key] = track  # in the order of the last samples
        track.last_ns, track.last_mib = now_ns, use.mib
        # Partial data counts, too: the container holds at least that much.
        track.unreported += use.unreported > 0
        track.peak_mib = max(track.peak_mib, use.mib)
        track.allocated_mib, track.allocated_core = holder.mib, holder.core_percent
        assert isinstance(track.mib, dict)
        assert isinstance(track.percent, dict)
        step = step_of(use.mib)
        track.mib[step] = track.mib.get(step, 0) + 1
        if use.sm_percent > 0:
            # Idle samples are not counted: what the container needs shows while it computes.
            percent = min(use.sm_percent, 100)
            track.percent[percent] = track.percent.get(percent, 0) + 1

    @property
    def pages(self) -> dict[str, Callable[[str], bytes]]:
        """The pages by path; each takes the query string."""
        return {PATH: self.answer}

    def answer(self, query: str = "") -> bytes:
        """All data as JSON; times are seconds since 1970. Raises ``ValueError`` for a window that is not a number of seconds.

        ``from`` is the beginning of the first slice that overlaps the window; ``looked`` is the last sample, 0 for none. In
        ``untoldLooks`` of its ``looks`` the driver did not report how much memory a container holds.
        """
        now_ns = self._clock.time_ns()
        window_s = _window_s(query)
        if self._waited is not None:
            self._settle(now_ns)
        slices = self._slices
        if window_s is not None:
            ends = [part.begin_ns for part in slices[1:]] + [now_ns + 1]
            reach_ns = now_ns - window_s * 10**9
            slices = [part for part, end_ns in zip(slices, ends, strict=True) if end_ns > reach_ns]
        totals: dict[ContainerKey, _Track] = {}
        for part in slices:
            for key, track in part.tracks.items():
                total = totals.pop(key, None) or _Track(track.first_ns)
                total.add(track)
                totals[key] = total
        _bound(totals)
        return msgspec.json.encode(
            {
                "version": 1,
                "since": self._since_ns // 10**9,
                "from": slices[0].begin_ns // 10**9,
                "looked": (self._looked_ns or 0) // 10**9,
                "containers": [_container_json(key, track) for key, track in totals.items()],
            }
        )

    def _cut(self, now_ns: int) -> None:
        for track in self._slices[-1].tracks.values():
            track.pack()
        self._slices.append(_Slice(now_ns))
        while len(self._slices) > 2 and (
            len(self._slices) > MOST_SLICES or sum(len(part.tracks) for part in self._slices) > MOST_TRACKS
        ):
            self._join(now_ns)

    def _join(self, now_ns: int) -> None:
        """Merge two neighbours, those that are shortest for their age, so that slices are longer the older they are."""
        begins = [part.begin_ns for part in self._slices]

        def worth(at: int) -> float:
            end_ns = begins[at + 2]
            return (end_ns - begins[at]) / (now_ns - end_ns + SLICE_NS)

        at = min(range(len(begins) - 2), key=worth)
        self._slices[at].take_in(self._slices.pop(at + 1))

    def _settle(self, now_ns: int) -> None:
        """Record how long threads have waited since the last call."""
        before, passed_ns = self._waited, max(now_ns - self._waited_at_ns, 0)
        self._waited, self._waited_at_ns = _waited(self._directories()), now_ns
        if before is None:
            return
        for (pod, uid, container, gpu), track in self._slices[-1].tracks.items():
            del pod
            key = (uid, container, gpu)
            count = self._waited.get(key, 0)
            # A restarted container counts from zero. Of several threads that wait at the same time one counts.
            more = count - before.get(key, 0)
            track.waited_ns += min(count if more < 0 else more, passed_ns)


def step_of(mib: int) -> int:
    """The number of the step that contains ``mib``: each doubling has sixteen steps."""
    doublings = max(mib.bit_length() - 5, 0)
    return doublings * _EXACT + (mib >> doublings)


def most_in(step: int) -> int:
    """The largest MiB of a step."""
    doublings = max(step // _EXACT - 1, 0)
    return (step - doublings * _EXACT + 1 << doublings) - 1


def _window_s(query: str) -> int | None:
    """The window in the query; other parameters are those of clients and proxies (kubectl adds ``timeout``)."""
    for word in query.split("&"):
        name, _, value = word.partition("=")
        if name != "window":
            continue
        if not (value.isascii() and value.isdecimal()) or len(value) > _MOST_DIGITS or not int(value):
            raise ValueError(f"{word}: a window is a whole number of seconds from 1")
        return int(value)
    return None


def _waited(directories: Iterable[tuple[Claimed, Path]]) -> dict[tuple[str, str, str], int]:
    """How long the threads of a container have waited for GPU time, in ns; for an empty name those of all of the pod's containers."""
    waited_ns: dict[tuple[str, str, str], int] = {}
    for claimed, folder in directories:
        if not claimed.core_percent:
            continue
        shares = claimed.mib_by_gpu
        for gpu, use in zip(shares, read_usage(folder, len(shares)), strict=False):
            for container in (claimed.container, ""):
                key = (claimed.uid, container, gpu)
                waited_ns[key] = waited_ns.get(key, 0) + use.waited_ns
    return waited_ns


def _bound(tracks: dict[ContainerKey, _Track]) -> None:
    while len(tracks) > MOST_KEPT:
        del tracks[next(iter(tracks))]


def _items(counts: dict[int, int] | bytes) -> Iterable[tuple[int, int]]:
    return _PAIR.iter_unpack(counts) if isinstance(counts, bytes) else counts.items()


def _packed(counts: dict[int, int] | bytes) -> bytes:
    return counts if isinstance(counts, bytes) else b"".join(_PAIR.pack(*one) for one in counts.items())


def _sum(counts: dict[int, int] | bytes, more: dict[int, int] | bytes) -> dict[int, int]:
    total = dict(_items(counts))
    for value, count in _items(more):
        total[value] = total.get(value, 0) + count
    return total


def _container_json(key: ContainerKey, track: _Track) -> dict[str, Any]:
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
        "untoldLooks": track.unreported,
        "first": track.first_ns // 10**9,
        "last": track.last_ns // 10**9,
        "workSeconds": track.work_ns // 10**9,
        "waitedSeconds": track.waited_ns // 10**9,
        "givenMiB": track.allocated_mib,
        "peakMiB": track.peak_mib,
        "p95MiB": min(most_in(_quantile(mib)), track.peak_mib),
        "lastMiB": track.last_mib,
        "givenCorePercent": track.allocated_core,
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
