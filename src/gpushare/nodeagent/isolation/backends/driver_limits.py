"""The driver's own limits: sets containers' memory shares on their cgroups, where the driver supports that.

They also apply to programs that bypass our libraries. A limit can only be set once the container's cgroup exists and the pod's
status has its ID; from then on each look corrects it. It goes with its cgroup, so none is ever removed.

``look`` runs in NVML's thread, everything else in the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
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
NOT_LOOKED: Final = "limits by cgroup have not been checked yet"
#: A limit belongs to one container's cgroup, and the containers of a claim have one limit together.
NOT_FOR_CLAIMS: Final = "limits by cgroup do not apply to ResourceClaims; set isolation to auto or preload"

_OFF: Final = "the watchdog is off (--watchdog); set it to report or kill"
_MIB: Final = 1 << 20


class LimitsMemory(Protocol):
    """What is needed of NVML."""

    def can_limit(self, root: str) -> Mapping[str, str]:
        """By GPU, why the driver cannot limit cgroups; empty if it can."""

    def limit_bytes(self, uuid: str, cgroup: str) -> int:
        """The hard limit of a cgroup."""

    def set_limit(self, uuid: str, cgroup: str, hard_bytes: int) -> None:
        """Set it."""


class Due(NamedTuple):
    """A limit to set: ``mib`` of ``gpu`` (a UUID; ``gpu_label`` for people). ``pod`` is ``namespace/name``."""

    owner: Owner
    pod: str
    container: str
    gpu: str
    gpu_label: str
    mib: int

    def __str__(self) -> str:
        return f"pod {self.pod}: container {self.container}, {self.mib} MiB of GPU {self.gpu_label}"


class Looked(msgspec.Struct, frozen=True):
    """The result of a check: by GPU why it has no limits, the limits that are set, and why others could not be."""

    lacking: Mapping[str, str]
    held: frozenset[Due] = frozenset()
    faults: Mapping[Due, str] = {}


def due_of(book: NodeAllocations, burst_mib: Callable[[str, str, str], int]) -> Iterator[Due]:
    """The limits of containers with a part of a GPU and an ID in their pod's status.

    ``burst_mib``: how much more a container (pod's UID, name) may use of a GPU than its share.
    """
    totals_mib = {device.uuid: device.total_mib for device in book.node.devices}
    for allocated in book.pods:
        requesting = {one.name: one for one in allocated.request.containers if one.memory_units}
        for container_id, name in allocated.bound.containers.items():
            container = requesting.get(name)
            # Init containers have ended by then, and their cgroups are gone.
            ended = container is not None and container.kind is ContainerKind.INIT and allocated.bound.running
            if container is None or ended:
                continue
            # Some schedulers assign each container of a pod its own GPU.
            gpus = book.gpus_of(allocated) if allocated.on_same_gpus else allocated.decided_gpus(container)
            for gpu in gpus:
                share = book.share_of(allocated, gpu, name)
                # A container with the whole GPU needs no limit.
                if share is None:
                    continue
                mib = share.mib + burst_mib(allocated.uid, name, gpu)
                if mib < totals_mib.get(gpu, 0):
                    yield Due(Owner(allocated.uid, container_id), allocated.key, name, gpu, share.label, mib)


class DriverLimits:
    """``looks``: whether limits are used at all. ``attend`` sets the event loop that gets the results."""

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
        """Call in the event loop that is to get the results."""
        self._loop = asyncio.get_running_loop()

    async def changed(self) -> None:
        """Return once ``trouble``, ``lacking`` or ``offered`` may have changed."""
        await self._changed.wait()
        self._changed.clear()

    def want(self, due: Iterable[Due]) -> None:
        """The limits to set from now on. Others that are set stay."""
        self._due = frozenset(due)

    @property
    def offered(self) -> bool:
        """Whether the driver supports limits, for at least one GPU."""
        return self._seen is not None and not all(self._seen.lacking.values())

    @property
    def trouble(self) -> str:
        """Why no container can be limited, empty if some can."""
        if self._seen is None:
            return NOT_LOOKED if self._looks else _OFF
        return "" if self.offered else next(iter(self._seen.lacking.values()), "")

    def lacking(self) -> dict[str, str]:
        """GPUs (UUIDs) whose memory the driver cannot limit, and why."""
        return {gpu: why for gpu, why in self._seen.lacking.items() if why} if self._seen is not None else {}

    def take(self, seen: Looked) -> None:
        """Take in the result of a look."""
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
            note=f"container {due.container}: the driver's memory limit of {due.mib} MiB could not be set on GPU {due.gpu_label}: {why}",
            occurrence="lasting",
        )

    # --- in NVML's thread ---

    def look(self, nvml: LimitsMemory) -> None:
        """Check what the driver supports, and set limits; called in NVML's thread."""
        if not self._looks or self._loop is None:
            return
        seen = self._looked(nvml)
        try:
            self._loop.call_soon_threadsafe(self.take, seen)
        except RuntimeError:
            logger.debug("the event loop has ended")

    def look_at_new(self, nvml: LimitsMemory) -> None:
        """Set limits that were added since the last look: new containers must not wait for the next."""
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
                    # A broken GPU is reported elsewhere, and a container may end meanwhile.
                    if error.code not in GPU_IS_BROKEN and Path(path).is_dir():
                        faults[one] = f"{error.problem} ({path})"
            where = paths.get(one.owner)
            if where and all((one.gpu, path) in answers for path in where):
                held.append(one)
        self._answers = answers
        return Looked(lacking, frozenset(held), faults)

    def _hold(self, nvml: LimitsMemory, due: Due, path: str) -> tuple[int, int]:
        """Set the limit unless it is set; returns the wanted and the actual one in bytes. Raises ``NvmlFailed``."""
        wanted = due.mib * _MIB
        now = nvml.limit_bytes(due.gpu, path)
        before, answer = self._answers.get((due.gpu, path), (0, wanted))
        # A driver may round: then it should still report what it did when that limit was set.
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
    """The backend without libraries: only the driver limits containers."""

    in_place = False
    may_burst = False

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
                    f"the container would not be limited to its share of GPU {share.label}: {why}",
                    (grant.uid,),
                )
        return Injection()


class _Paths:
    """The cgroup directories of containers. Processes are read only to find unknown ones."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[Owner, frozenset[str]] = {}

    def of(self, owners: set[Owner]) -> Mapping[Owner, frozenset[str]]:
        """The directories of those that exist."""
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
