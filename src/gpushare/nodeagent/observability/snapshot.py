"""What both metrics endpoints report, collected at each scrape: GPUs, allocations, and processes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.request import ContainerKind
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.dra.claiming_pods import ClaimHolders
from gpushare.nodeagent.driver.telemetry import Readings
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess, Holder
from gpushare.nodeagent.isolation.watchdog.watchdog import Watchdog
from gpushare.nodeagent.observability.metrics import Family, Kind

#: Name → kind, help text, labels.
Families = Mapping[str, tuple[Kind, str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a scrape gets its values from."""

    present: Callable[[], NodeDevices]
    """The node as published in its annotation."""
    labels: Callable[[], Mapping[str, str]]
    """Labels of the node."""
    minors: Callable[[], Mapping[str, int]]
    """The numbers in the names of device nodes, by UUID."""
    book: NodeAllocations
    whole: ExclusivePods
    claims: ClaimHolders
    readings: Readings
    watchdog: Watchdog
    unanswering: Callable[[], Collection[str]]
    """GPUs (UUID) that do not respond, so their use is unknown."""
    directories: Callable[[], Iterable[tuple[Claimed, Path]]]
    """Directories of isolated containers, oldest first."""
    proc: Path
    """The node's procfs, for names of processes."""


class ContainerAllocation(NamedTuple):
    """A container's part of a GPU (UUID). ``whole``: exclusive."""

    namespace: str
    pod: str
    container: str
    gpu: str
    mib: int
    core_percent: int
    whole: bool


class ClaimAllocation(NamedTuple):
    """A ResourceClaim's part of a GPU (UUID)."""

    namespace: str
    claim: str
    gpu: str
    mib: int
    core_percent: int


class Process(NamedTuple):
    """A process on a GPU of this node; ``holder`` is ``None`` without an allocation there, ``whole``: exclusive."""

    process: GpuProcess
    holder: Holder | None
    whole: bool
    name: str


class Scrape:
    """All values at one moment."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.node = sources.present()
        self.gpus: dict[str, Device] = {device.uuid: device for device in self.node.devices}
        self._minors = sources.minors()
        self.held: dict[str, list[tuple[int, int]]] = {uuid: [] for uuid in self.gpus}
        """By GPU, what each pod or ResourceClaim has: MiB and percent of compute."""
        self.pods: dict[str, int] = dict.fromkeys(self.gpus, 0)
        """By GPU, how many pods have a part of it."""
        self.whole: dict[str, int] = dict.fromkeys(self.gpus, 0)
        """By GPU, how many pods have it exclusively."""
        self.allocations: list[ContainerAllocation] = []
        self.claims: list[ClaimAllocation] = []
        self._add_shares()
        self._add_whole()
        self._add_claims()

    def device_of(self, uuid: str) -> str:
        """The name of a GPU's device node, without its folder."""
        minor = self._minors.get(uuid, -1)
        return f"nvidia{minor if minor >= 0 else self.gpus[uuid].index}"

    @property
    def driver(self) -> str:
        """The driver's version; empty while no GPU has reported it."""
        return next((reading.driver for reading in self.sources.readings.last.values() if reading.driver), "")

    def processes(self) -> Iterator[Process]:
        """Processes whose owner is known."""
        watched = self.sources.watchdog
        for process in watched.processes:
            owner = watched.owners.get(process.pid)
            if process.gpu in self.gpus and owner is not None:
                holder, whole = watched.holder_of(owner, process.gpu), False
                if holder is None:
                    holder = self._whole_holder(owner, process.gpu)
                    whole = holder is not None
                yield Process(process, holder, whole, _named(self.sources.proc, process.pid))

    def _whole_holder(self, owner: Owner, uuid: str) -> Holder | None:
        pod = self.sources.whole.get(owner.pod_uid)
        if pod is None:
            return None
        container = pod.bound.containers.get(owner.container_id, "")
        own = pod.decided.get(container, frozenset()) if container else set().union(*pod.decided.values())
        if uuid not in own:
            return None
        return Holder(pod.bound.key, pod.uid, container, uuid, self.gpus[uuid].total_mib, 100)

    def _add_shares(self) -> None:
        book = self.sources.book
        for allocated in book.pods:
            for uuid in book.gpus_of(allocated):
                share = book.share_of(allocated, uuid, "")
                if share is None or uuid not in self.gpus:
                    continue
                self.held[uuid].append((share.mib, share.core_percent))
                self.pods[uuid] += 1
                for container in allocated.request.containers:
                    if container.kind is ContainerKind.INIT or not container.memory_units:
                        continue
                    share_of_container = book.share_of(allocated, uuid, container.name)
                    if share_of_container is not None:
                        self._add(
                            allocated.key,
                            container.name,
                            uuid,
                            (share_of_container.mib, share_of_container.core_percent),
                            whole=False,
                        )

    def _add_whole(self) -> None:
        for pod in self.sources.whole.pods:
            for uuid in set().union(*pod.decided.values()) & self.gpus.keys():
                self.held[uuid].append((self.gpus[uuid].total_mib, 100))
                self.whole[uuid] += 1
                self.pods[uuid] += 1
            for container, uuids in pod.decided.items():
                for uuid in uuids & self.gpus.keys():
                    self._add(pod.bound.key, container, uuid, (self.gpus[uuid].total_mib, 100), whole=True)

    def _add_claims(self) -> None:
        for prepared in self.sources.claims.prepared:
            for share in prepared.shares:
                if share.gpu in self.gpus:
                    amounts = share.mib, share.core_percent
                    self.held[share.gpu].append(amounts)
                    self.claims.append(
                        ClaimAllocation(prepared.claim.namespace, prepared.claim.name, share.gpu, *amounts)
                    )
        using: dict[str, set[str]] = {}
        for use in self.sources.claims.uses():
            gpu, amounts = use.share.gpu, (use.share.mib, use.share.core_percent)
            if gpu in self.gpus:
                using.setdefault(gpu, set()).add(use.pod.uid)
                self._add(use.pod.key, use.container, gpu, amounts, whole=False)
        for gpu, pods in using.items():
            self.pods[gpu] += len(pods)

    def _add(self, pod: str, container: str, uuid: str, amounts: tuple[int, int], *, whole: bool) -> None:
        namespace, _, name = pod.partition("/")
        self.allocations.append(ContainerAllocation(namespace, name, container, uuid, *amounts, whole))


class Page:
    """The ``families`` that have values, in this order."""

    def __init__(self, families: Families) -> None:
        self._all = families
        self._made: dict[str, Family] = {}

    def set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Set one sample of the family ``name``."""
        family = self._made.get(name)
        if family is None:
            kind, text, named = self._all[name]
            family = self._made[name] = Family(kind, name, text, *named)
        family.set(*labels, value=value)

    def lines(self) -> list[str]:
        """In Prometheus' text format."""
        return [line for name in self._all if name in self._made for line in self._made[name].lines()]


def _named(proc: Path, pid: int) -> str:
    """The process's name; empty once it has ended."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
