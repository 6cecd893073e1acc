"""The driver's own limits: what the containers of this node were given is set on their cgroups, where the driver has that.

It holds whoever gets past our libraries. A limit can only be set once the container's cgroup is there, and the kubelet has
told whose it is; from then on each look makes it what it should be. It goes with its cgroup, so none is ever taken back.

``look`` runs in the thread that speaks to NVML, all else in the event loop.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from gpushare.api.objects import ObjectReference
from gpushare.api.request.request import ContainerKind
from gpushare.kube.event_recorder import Recorder
from gpushare.nodeagent.allocate.container_response import Grant, Injection
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.driver.cgroup_memory_limits import GPU_IS_BROKEN
from gpushare.nodeagent.errors import AllocationRefused, NvmlFailed
from gpushare.nodeagent.isolation.options import Watch
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.processes import container_cgroups
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON_NOT_LIMITED: Final = "FailedSettingGPULimit"
NOT_LOOKED: Final = "it has not been looked yet whether the driver has limits by cgroup"

_OFF: Final = "nothing is looked at (--watchdog off); set it to report or kill"
_MIB: Final = 1 << 20


class LimitsMemory(Protocol):
    """What is asked of NVML."""

    def can_limit(self, root: str) -> Mapping[str, str]:
        """By GPU, why the driver cannot hold cgroups to limits; empty where it can."""

    def limit_bytes(self, uuid: str, cgroup: str) -> int:
        """The hard limit of a cgroup."""

    def set_limit(self, uuid: str, cgroup: str, hard_bytes: int) -> None:
        """Set it."""


class Due(NamedTuple):
    """What a container is to be held to: ``mib`` of ``gpu`` (a UUID; ``gpu_index`` for people). ``pod`` is ``namespace/name``."""

    owner: Owner
    pod: str
    container: str
    gpu: str
    gpu_index: int
    mib: int

    def __str__(self) -> str:
        return f"pod {self.pod}: container {self.container}, {self.mib} MiB of GPU {self.gpu_index}"


class Looked(msgspec.Struct, frozen=True):
    """What came of a look: by GPU why it cannot limit, what is held, and why what is due could not be."""

    lacking: Mapping[str, str]
    held: frozenset[Due] = frozenset()
    faults: Mapping[Due, str] = {}


def due_of(book: NodeAllocations) -> Iterator[Due]:
    """What each container is to be held to that has a part of a GPU and that the kubelet has told the ID of."""
    totals_mib = {device.uuid: device.total_mib for device in book.node.devices}
    for allocated in book.pods:
        asking = {one.name: one for one in allocated.request.containers if one.memory_units}
        for container_id, name in allocated.bound.containers.items():
            container = asking.get(name)
            # Init containers have ended by then, and nobody would find their cgroups.
            ended = container is not None and container.kind is ContainerKind.INIT and allocated.bound.running
            if container is None or ended:
                continue
            # Some schedulers give each container of a pod a GPU of its own.
            gpus = book.gpus_of(allocated) if allocated.on_same_gpus else allocated.decided_gpus(container)
            for gpu in gpus:
                share = book.share_of(allocated, gpu, name)
                # Who has all of a GPU needs no limit.
                if share is not None and share.mib < totals_mib.get(gpu, 0):
                    owner = Owner(allocated.uid, container_id)
                    yield Due(owner, allocated.key, name, gpu, share.index, share.mib)


class DriverLimits:
    """``looks``: whether anything is to be asked at all. ``attend`` says who hears of it."""

    def __init__(self, watch: Watch, *, looks: bool, events: Recorder, metrics: Metrics) -> None:
        self._watch = watch
        self._looks = looks
        self._events = events
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: frozenset[Due] = frozenset()
        self._tried: frozenset[Due] = frozenset()
        self._seen: Looked | None = None
        self._paths = _Paths(watch)
        self._answers: dict[tuple[str, str], tuple[int, int]] = {}
        self._changed = asyncio.Event()

    # --- in the event loop ---

    def attend(self) -> None:
        """Called in the event loop that is to hear of what is seen."""
        self._loop = asyncio.get_running_loop()

    async def changed(self) -> None:
        """Until ``trouble``, ``lacking`` or ``offered`` may read otherwise."""
        await self._changed.wait()
        self._changed.clear()

    def want(self, due: Iterable[Due]) -> None:
        """Hold containers to this from now on. What is not named any more keeps its limit, if it is there still."""
        self._due = frozenset(due)

    @property
    def offered(self) -> bool:
        """Whether the driver has such limits, for some GPU at least."""
        return self._seen is not None and not all(self._seen.lacking.values())

    @property
    def trouble(self) -> str:
        """Why no container could be held by the driver, empty when some can."""
        if self._seen is None:
            return NOT_LOOKED if self._looks else _OFF
        return "" if self.offered else next(iter(self._seen.lacking.values()), "")

    def lacking(self) -> dict[str, str]:
        """GPUs (UUIDs) whose memory the driver cannot limit, and why."""
        return {gpu: why for gpu, why in self._seen.lacking.items() if why} if self._seen is not None else {}

    def take(self, seen: Looked) -> None:
        """What came of a look."""
        first = self._seen is None
        before, self._seen = self._seen or Looked({}), seen
        self._metrics.driver_limit_bytes.replace(
            {(*one.pod.split("/", 1), one.container, one.gpu): float(one.mib << 20) for one in seen.held}
        )
        for due in seen.held - before.held:
            logger.info("%s: the driver limit is set", due, extra=about(pod=due.pod, uid=due.owner.pod_uid))
        for due, why in seen.faults.items():
            if before.faults.get(due) != why:
                self._tell(due, why)
        if first or seen.lacking != before.lacking:
            self._changed.set()

    def _tell(self, due: Due, why: str) -> None:
        logger.warning(
            "%s: the driver limit cannot be set: %s",
            due,
            why,
            extra=about(pod=due.pod, uid=due.owner.pod_uid),
        )
        self._metrics.driver_limit_failures.add()
        namespace, _, name = due.pod.partition("/")
        self._events.record(
            ObjectReference("Pod", name, namespace, due.owner.pod_uid),
            kind="Warning",
            reason=REASON_NOT_LIMITED,
            action="Limiting",
            note=f"container {due.container}: the driver does not hold it to {due.mib} MiB of GPU {due.gpu_index}: {why}",
            telling="standing",
        )

    # --- in NVML's thread ---

    def look(self, nvml: LimitsMemory) -> None:
        """See what the driver can do, and that what is due is set; called in NVML's thread."""
        if not self._looks or self._loop is None:
            return
        seen = self._looked(nvml)
        try:
            self._loop.call_soon_threadsafe(self.take, seen)
        except RuntimeError:
            logger.debug("the event loop has ended")

    def look_at_new(self, nvml: LimitsMemory) -> None:
        """See to what is due since the last look, if anything is: who has just begun should not have to be waited for."""
        if not self._due <= self._tried:
            self.look(nvml)

    def _looked(self, nvml: LimitsMemory) -> Looked:
        root = self._watch.cgroups
        lacking = dict(nvml.can_limit(str(root)))
        if not (root / "cgroup.controllers").exists():
            lacking = {gpu: why or f"{root} has no cgroups of version 2" for gpu, why in lacking.items()}
        self._tried = self._due
        due = [one for one in self._tried if lacking.get(one.gpu) == ""]
        paths = self._paths.of({one.owner for one in due})
        held, faults, answers = [], {}, {}
        for one in due:
            for path in paths.get(one.owner, ()):
                try:
                    answers[one.gpu, path] = self._hold(nvml, one, path)
                except NvmlFailed as error:
                    # That a GPU is broken is told as that; and a container may end meanwhile.
                    if error.code not in GPU_IS_BROKEN and Path(path).is_dir():
                        faults[one] = f"{error.problem} ({path})"
            where = paths.get(one.owner)
            if where and all((one.gpu, path) in answers for path in where):
                held.append(one)
        self._answers = answers
        return Looked(lacking, frozenset(held), faults)

    def _hold(self, nvml: LimitsMemory, due: Due, path: str) -> tuple[int, int]:
        """Set the limit unless it is set; in bytes what it is to be, and what the driver says that it is. Raises ``NvmlFailed``."""
        wanted = due.mib * _MIB
        now = nvml.limit_bytes(due.gpu, path)
        before, answer = self._answers.get((due.gpu, path), (0, wanted))
        # A driver may round: then what it said when that limit was set is what it should say.
        if now == wanted or (before == wanted and now == answer):
            return wanted, now
        if before == wanted:
            logger.warning(
                "%s: its driver limit was changed externally; setting it again",
                due,
                extra=about(pod=due.pod, uid=due.owner.pod_uid),
            )
        nvml.set_limit(due.gpu, path, wanted)
        return wanted, nvml.limit_bytes(due.gpu, path)


class DriverAlone:
    """The backend: containers get nothing, the driver alone holds them. Raises ``AllocationRefused`` where it cannot."""

    in_place = False

    def __init__(self, limits: DriverLimits) -> None:
        self._limits = limits

    async def inject(self, grant: Grant, *, in_place: bool) -> Injection:
        """Nothing to add."""
        lacking = self._limits.lacking()
        for share in grant.shares:
            why = self._limits.trouble or lacking.get(share.uuid)
            if why:
                raise AllocationRefused(
                    "",
                    f"nothing would hold the container to its share of GPU {share.index}: {why}",
                    (grant.uid,),
                )
        return Injection()


class _Paths:
    """Where the cgroups of containers are. Processes are read only while some are looked for."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[Owner, frozenset[str]] = {}

    def of(self, owners: set[Owner]) -> Mapping[Owner, frozenset[str]]:
        """The directories of those that are there."""
        known = {owner: paths for owner, paths in self._known.items() if owner in owners and _there(paths)}
        if owners - known.keys():
            found = container_cgroups(self._watch.proc)
            for owner in owners - known.keys():
                paths = frozenset(f"{self._watch.cgroups}{path}" for path in found.get(owner, ()))
                if paths:
                    known[owner] = paths
        self._known = known
        return known


def _there(paths: frozenset[str]) -> bool:
    return all(Path(path).is_dir() for path in paths)
