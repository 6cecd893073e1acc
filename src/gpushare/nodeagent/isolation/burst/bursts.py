"""Lets containers use more of a GPU than they request while it is free, and takes that back when a pod is placed there.

What containers may take is computed from the node's pods and the last sample of the GPUs' processes, and is in their files, so that a restarted
agent continues with what it finds.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.api.request.request import ContainerKind
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import EventType, Occurrence, Recorder
from gpushare.nodeagent.allocate.container_response import Grant
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.isolation.burst.plan import Sharer, plan, short_mib, victims
from gpushare.nodeagent.isolation.options import ReclaimPolicy
from gpushare.nodeagent.isolation.storage.allowance_file import read_allowance, write_allowance
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.storage.owners import owner_of
from gpushare.nodeagent.isolation.watchdog.violations import Use
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON_RECLAIMING: Final = "GPUMemoryReclaiming"
REASON_RECLAIMED: Final = "GPUMemoryReclaimed"
REASON_WAITS: Final = "WaitingForGPUMemory"

#: The name of a directory, and a GPU (UUID).
_Key = tuple[str, str]


class _Container(NamedTuple):
    """A container whose memory is limited by an allowance, and the folder with its files."""

    pod: AllocatedPod
    name: str
    claimed: Claimed
    folder: Path


class _Sampled(NamedTuple):
    """What a container used of a GPU in the last sample, and the processes that did; ``unreported``: the driver does not report all of it."""

    mib: int = 0
    pids: tuple[int, ...] = ()
    unreported: bool = False


class Bursts:
    """``acts``: whether this agent is the one that acts.

    With the policy ``kill`` the processes of a container that does not give back what other pods have requested get SIGKILL after ``grace_s``.
    """

    def __init__(
        self,
        book: NodeAllocations,
        *,
        acts: Callable[[], bool],
        policy: ReclaimPolicy,
        grace_s: float,
        events: Recorder,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._book = book
        self._directories: Callable[[], Iterable[tuple[Claimed, Path]]] = tuple
        self._kill: Callable[[Sequence[int]], str] = lambda pids: ""
        self._acts = acts
        self._policy = policy
        self._grace_s = grace_s
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._sampled_s: float | None = None
        """When the last sample began."""
        self._used: dict[tuple[str, str, str], _Sampled] = {}
        """By pod (UID), container (empty: unknown) and GPU."""
        self._lowered: dict[_Key, tuple[int, float]] = {}
        """What a container was allowed before, and when that was lowered, until a sample that began later."""
        self._asked_s: dict[_Key, float] = {}
        """Since when a container is to give memory back."""
        self._waiting: set[_Key] = set()
        self._unwritable = ""

    def attend(
        self,
        directories: Callable[[], Iterable[tuple[Claimed, Path]]],
        kill: Callable[[Sequence[int]], str],
    ) -> None:
        """``directories`` returns those of isolated containers, oldest first; ``kill`` ends processes, and returns what became of them."""
        self._directories = directories
        self._kill = kill

    @property
    def asked_s(self) -> dict[str, float]:
        """Since when containers are to give memory back, for the next agent."""
        return {" ".join(key): at_s for key, at_s in self._asked_s.items()}

    def restore(self, asked_s: Mapping[str, float]) -> None:
        """Continue the grace periods of the previous agent."""
        for key, at_s in asked_s.items():
            name, _, gpu = key.partition(" ")
            self._asked_s[name, gpu] = at_s

    def wants_sample(self) -> bool:
        """Whether memory was taken back since the last sample, so that others may have to wait for the next; also called in NVML's thread."""
        return bool(self._lowered)

    def limit_mib(self, uid: str, container: str, gpu: str) -> int:
        """The most that a container of a pod may use of a GPU beyond its share there, in MiB; without a ``container``, its whole pod."""
        bursting = (
            (claimed, folder)
            for claimed, folder in self._directories()
            if claimed.gpu == gpu and claimed.limit_mib > claimed.mib
        )
        return sum(
            one.claimed.limit_mib - one.claimed.mib
            for one in self._containers(bursting)
            if one.pod.uid == uid and container in ("", one.name)
        )

    def needs_allowance(self, grant: Grant) -> bool:
        """Whether the memory of a container that is being allocated may have to change while it runs: it may use more than its share, or
        others may still hold what it was allocated."""
        if not grant.container:
            return False
        if grant.limit_mib:
            return True
        for share in grant.shares:
            free, sharers = self._on_gpu(share.uuid)
            if sharers and self._sampled_s is None:
                return True
            if sum(one.may_hold_above for one in sharers.values()) > free:
                return True
        return False

    def sampled(self, uses: Iterable[Use], began_s: float) -> None:
        """A sample of the GPUs' processes that began at ``began_s``."""
        self._sampled_s = began_s
        self._used = {
            (use.holder.uid, use.holder.container, use.holder.gpu): _Sampled(
                use.mib, tuple(use.pids), use.unreported > 0
            )
            for use in uses
            if not use.holder.claim
        }
        self._lowered = {key: old for key, old in self._lowered.items() if old[1] >= began_s}
        self.refresh()

    def refresh(self) -> None:
        """Let each container take what it may from now on. Call it whenever pods, GPUs or samples have changed."""
        if not self._acts():
            return
        written: dict[Path, dict[str, int]] = {}
        due: set[_Key] = set()
        waiting: set[_Key] = set()
        containers = {one.folder.name: one for one in self._containers(self._directories())}
        for gpu in {gpu for one in containers.values() for gpu in one.claimed.mib_by_gpu}:
            free, sharers = self._on_gpu(gpu)
            on_gpu = list(sharers.values())
            short = short_mib(free, on_gpu)
            for name, mib in plan(free, on_gpu).items():
                one, sharer = containers[name], sharers[name]
                if self._sampled_s is None:
                    # What an agent before this one has taken back may still be in use.
                    mib = min(mib, sharer.allowed)
                if mib < sharer.allowed:
                    old = max(sharer.allowed, sharer.may_hold)
                    self._lowered[name, gpu] = (old, self._clock.monotonic())
                written.setdefault(one.folder, {})[gpu] = mib
                # Otherwise the next sample shows that it is free.
                if mib < sharer.request and short:
                    waiting.add((name, gpu))
                    self._report_waiting(one, gpu, mib, [containers[it.key] for it in on_gpu if it.above])
            for sharer in victims(free, on_gpu):
                due.add((sharer.key, gpu))
                self._reclaim(containers[sharer.key], gpu, sharer, short)
        for folder, mib_by_gpu in written.items():
            self._write(containers[folder.name], mib_by_gpu)
        if self._sampled_s is not None:
            self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if key in due}
        self._lowered = {key: old for key, old in self._lowered.items() if key[0] in containers}
        self._waiting = waiting

    def _containers(self, directories: Iterable[tuple[Claimed, Path]]) -> list[_Container]:
        """Those of ``directories`` with an allowance that run or are being started, in the same order."""
        found: dict[tuple[str, str], _Container] = {}
        for claimed, folder in directories:
            owner = owner_of(claimed, self._book) if claimed.allowance else None
            if owner is not None and not _has_ended(*owner):
                key = owner[0].uid, owner[1]
                # The last one that was made for a container is the one in use.
                found.pop(key, None)
                found[key] = _Container(*owner, claimed, folder)
        return list(found.values())

    def _on_gpu(self, gpu: str) -> tuple[int, dict[str, Sharer]]:
        """What no pod has requested of the GPU, and the containers with an allowance there, by the names of their directories."""
        device = next((one for one in self._book.node.devices if one.uuid == gpu), None)
        held = sum(share.mib for share in self._book.held().get(gpu, ()))
        free = 0 if device is None else max(device.total_mib - device.foreign_mib - held, 0)
        sharers = {}
        for one in self._containers(self._directories()):
            shares = one.claimed.mib_by_gpu
            if gpu not in shares:
                continue
            key = one.folder.name, gpu
            try:
                allowed = read_allowance(one.folder, len(shares))[list(shares).index(gpu)]
            except OSError as error:
                # It is created again soon.
                logger.debug("%s: %s", one.folder, error, extra=about(pod=one.pod.key, uid=one.pod.uid))
                continue
            sampled, limit = self._sampled_of(one, gpu), max(one.claimed.limit_mib, shares[gpu])
            sharers[one.folder.name] = Sharer(
                one.folder.name,
                shares[gpu],
                limit,
                limit if sampled.unreported else sampled.mib,
                allowed,
                self._lowered.get(key, (0, 0.0))[0],
            )
        return free, sharers

    def _sampled_of(self, one: _Container, gpu: str) -> _Sampled:
        # A process is its pod's while its container is not known.
        parts = [self._used.get((one.pod.uid, name, gpu), _Sampled()) for name in (one.name, "")]
        return _Sampled(
            sum(part.mib for part in parts),
            sum((part.pids for part in parts), ()),
            any(part.unreported for part in parts),
        )

    def _write(self, one: _Container, mib_by_gpu: Mapping[str, int]) -> None:
        try:
            now = read_allowance(one.folder, len(one.claimed.mib_by_gpu))
            wanted = [mib_by_gpu.get(gpu, mib) for gpu, mib in zip(one.claimed.mib_by_gpu, now, strict=False)]
            if wanted != now:
                write_allowance(one.folder, wanted)
        except OSError as error:
            text = f"{one.folder} cannot be changed: {error}"
            if text != self._unwritable:
                self._unwritable = text
                logger.error("%s", text, extra=about(pod=one.pod.key, uid=one.pod.uid))

    def _reclaim(self, one: _Container, gpu: str, sharer: Sharer, short: int) -> None:
        key, now_s = (sharer.key, gpu), self._clock.monotonic()
        using = (
            f"container {one.name} uses {sharer.used} MiB of {self._gpu(gpu)}, {sharer.above} MiB more than it requests, and other pods "
            f"have requested {short} MiB of that"
        )
        if key not in self._asked_s:
            self._asked_s[key] = now_s
            then = (
                f"; otherwise its processes there will be killed in {self._grace_s:g} s"
                if self._kills
                else ""
            )
            self._report(
                one,
                "Warning",
                REASON_RECLAIMING,
                f"{using}: it cannot allocate more until it has released that much{then}",
                gpu,
            )
        # What it has given back in time may not show in a sample that began before.
        if not self._kills or (self._sampled_s or 0.0) - self._asked_s[key] < self._grace_s:
            return
        # Again after as long, if that did not help.
        self._asked_s[key] = now_s
        done = self._kill(self._sampled_of(one, gpu).pids)
        self._metrics.memory_reclaims.add()
        self._report(one, "Warning", REASON_RECLAIMED, f"{using}; {done}", gpu, "each")

    @property
    def _kills(self) -> bool:
        return self._policy == "kill"

    def _report_waiting(self, one: _Container, gpu: str, mib: int, above: Iterable[_Container]) -> None:
        if (one.folder.name, gpu) in self._waiting:
            return
        users = " and ".join(sorted({f"pod {user.pod.key}" for user in above}))
        self._report(
            one,
            "Normal",
            REASON_WAITS,
            f"container {one.name} may use {mib} of its {one.claimed.mib_by_gpu[gpu]} MiB of {self._gpu(gpu)}, and is waiting for "
            f"{users} to release the rest",
            gpu,
        )

    def _gpu(self, uuid: str) -> str:
        device = next((one for one in self._book.node.devices if one.uuid == uuid), None)
        return f"GPU {uuid if device is None else device.label}"

    def _report(
        self,
        one: _Container,
        kind: EventType,
        reason: str,
        note: str,
        gpu: str,
        occurrence: Occurrence = "began",
    ) -> None:
        level = logging.WARNING if kind == "Warning" else logging.INFO
        logger.log(
            level, "pod %s: %s: %s", one.pod.key, reason, note, extra=about(pod=one.pod.key, uid=one.pod.uid)
        )
        self._events.record(
            one.pod.bound.reference,
            kind=kind,
            reason=reason,
            action="Reclaiming",
            note=note,
            cause=f"{one.name} {gpu}",
            occurrence=occurrence,
        )


def _has_ended(pod: AllocatedPod, container: str) -> bool:
    """Whether it is an init container of a pod that runs."""
    return pod.bound.running and any(
        one.name == container and one.kind is ContainerKind.INIT for one in pod.request.containers
    )
