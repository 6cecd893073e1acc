"""What both pages of figures tell of, taken at each scrape: GPUs, what was given of them, and who uses them. Loaded by the first."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.request import ContainerKind
from gpushare.nodeagent.allocate.exclusive_gpus import ExclusiveGpus
from gpushare.nodeagent.allocate.matcher import ClaimBook
from gpushare.nodeagent.driver.telemetry import Readings
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess, Holder
from gpushare.nodeagent.observability.metrics import Family

#: Name → kind, what it is, labels.
Families = Mapping[str, tuple[str, str, tuple[str, ...]]]


class Watched(Protocol):
    """What the watchdog saw last."""

    @property
    def looks(self) -> bool:
        """Whether it has seen who uses the GPUs: else nobody knows of processes."""

    processes: tuple[GpuProcess, ...]
    """On the GPUs of this node."""

    owners: Mapping[int, Owner]
    """Whose they are, by PID."""

    def holder_of(self, whose: Owner, gpu: str) -> Holder | None:
        """Who was given that GPU; ``None``: they were not."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom to ask at each scrape."""

    present: Callable[[], NodeDevices]
    """The node as it is described."""
    labels: Callable[[], Mapping[str, str]]
    """Those of the node."""
    minors: Callable[[], Mapping[str, int]]
    """The numbers in the names of device nodes, by UUID."""
    book: ClaimBook
    whole: ExclusiveGpus
    readings: Readings
    watched: Watched
    unanswering: Callable[[], Collection[str]]
    """GPUs (UUID) that the driver does not tell anything of that could be relied on."""
    directories: Callable[[], Iterable[tuple[Claimed, Path]]]
    """Those of isolated containers; the oldest first."""
    proc: Path
    """Where processes have their names."""


class Given(NamedTuple):
    """What a container was given of a GPU (UUID). ``whole``: all of it, to it alone."""

    namespace: str
    pod: str
    container: str
    gpu: str
    mib: int
    core_percent: int
    whole: bool


class Process(NamedTuple):
    """A process on a GPU of this node; ``holder`` is ``None`` for one that was given nothing of it, ``whole``: it was given all."""

    seen: GpuProcess
    holder: Holder | None
    whole: bool
    name: str


class Scrape:
    """One look at everything."""

    def __init__(self, asked: Sources) -> None:
        self.asked = asked
        self.node = asked.present()
        self.gpus: dict[str, Device] = {one.uuid: one for one in self.node.devices}
        self._minors = asked.minors()
        self.held: dict[str, list[tuple[int, int]]] = {uuid: [] for uuid in self.gpus}
        """By GPU, what each pod has of it: MiB, and percent of its compute."""
        self.whole: dict[str, int] = dict.fromkeys(self.gpus, 0)
        """By GPU, pods that have all of it."""
        self.given: list[Given] = []
        """To containers."""
        self._take_shares()
        self._take_whole()

    def device_of(self, uuid: str) -> str:
        """The name of a GPU's device node, without its folder."""
        minor = self._minors.get(uuid, -1)
        return f"nvidia{minor if minor >= 0 else self.gpus[uuid].index}"

    @property
    def driver(self) -> str:
        """The driver's version; empty while no GPU has told it."""
        return next((one.driver for one in self.asked.readings.last.values() if one.driver), "")

    def processes(self) -> Iterator[Process]:
        """Those whose owner is known."""
        watched = self.asked.watched
        for one in watched.processes:
            owner = watched.owners.get(one.pid)
            if one.gpu in self.gpus and owner is not None:
                holder, whole = watched.holder_of(owner, one.gpu), False
                if holder is None:
                    holder = self._whole_holder(owner, one.gpu)
                    whole = holder is not None
                yield Process(one, holder, whole, _named(self.asked.proc, one.pid))

    def _whole_holder(self, owner: Owner, uuid: str) -> Holder | None:
        pod = self.asked.whole.get(owner.pod_uid)
        if pod is None:
            return None
        container = pod.pod.containers.get(owner.container_id, "")
        given = pod.decided.get(container, frozenset()) if container else set().union(*pod.decided.values())
        if uuid not in given:
            return None
        return Holder(pod.pod.key, pod.uid, container, uuid, self.gpus[uuid].total_mib, 100)

    def _take_shares(self) -> None:
        book = self.asked.book
        for claim in book.claims:
            for uuid in book.gpus_of(claim):
                share = book.share_of(claim, uuid, "")
                if share is None or uuid not in self.gpus:
                    continue
                self.held[uuid].append((share.mib, share.core_percent))
                for container in claim.request.containers:
                    if container.kind is ContainerKind.INIT or not container.memory_units:
                        continue
                    its = book.share_of(claim, uuid, container.name)
                    if its is not None:
                        self._give(
                            claim.pod.key, container.name, uuid, (its.mib, its.core_percent), whole=False
                        )

    def _take_whole(self) -> None:
        for pod in self.asked.whole.pods:
            for uuid in set().union(*pod.decided.values()) & self.gpus.keys():
                self.held[uuid].append((self.gpus[uuid].total_mib, 100))
                self.whole[uuid] += 1
            for container, uuids in pod.decided.items():
                for uuid in uuids & self.gpus.keys():
                    self._give(pod.pod.key, container, uuid, (self.gpus[uuid].total_mib, 100), whole=True)

    def _give(self, pod: str, container: str, uuid: str, what: tuple[int, int], *, whole: bool) -> None:
        namespace, _, name = pod.partition("/")
        self.given.append(Given(namespace, name, container, uuid, *what, whole))


class Page:
    """The families of a page that have values, in the order of ``families``."""

    def __init__(self, families: Families) -> None:
        self._all = families
        self._made: dict[str, Family] = {}

    def set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Tell ``value`` under a family's name."""
        family = self._made.get(name)
        if family is None:
            kind, text, named = self._all[name]
            family = self._made[name] = Family(kind_of(kind), name, text, *named)
        family.set(*labels, value=value)

    def lines(self) -> list[str]:
        """As Prometheus reads them."""
        return [line for name in self._all if name in self._made for line in self._made[name].lines()]


def kind_of(kind: str) -> Literal["counter", "gauge"]:
    """A family's kind, as its class takes it."""
    return "counter" if kind == "counter" else "gauge"


def _named(proc: Path, pid: int) -> str:
    """What the kernel calls the process; empty once it has ended."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
