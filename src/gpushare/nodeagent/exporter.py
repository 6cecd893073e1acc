"""Per GPU and per container: what was given, what is used, what was refused. Loaded by the first scrape.

Three namings side by side. Where NVIDIA's DCGM exporter has a metric it is that one, with its labels; ACK's own
(``DCGM_CUSTOM_*``) have ACK's; what neither has is ``gpushare_gpu_*`` and ``gpushare_container_*``, in base units, with
DCGM's labels ``gpu`` and ``UUID`` to join by. Source of the names: the reference pages of both exporters.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gpushare.model.device import Device, NodeDevices
from gpushare.model.request import ContainerKind
from gpushare.nodeagent.claims import ClaimBook
from gpushare.nodeagent.gpu_readings import Readings
from gpushare.nodeagent.isolation.cgroups import Owner
from gpushare.nodeagent.isolation.files import Claimed
from gpushare.nodeagent.isolation.judging import GpuProcess, Holder
from gpushare.nodeagent.isolation.region import read_usage
from gpushare.nodeagent.metrics import Family
from gpushare.nodeagent.whole_gpus import WholeGpus

_MIB: Final = 1 << 20
_NS: Final = 1e9

_DCGM: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")
_ACK_GPU: Final = ("NodeName", "UUID", "device", "gpu", "modelName")
_ACK_CONTAINER: Final = ("AllocateMode", "ContainerName", "NamespaceName", "PodName", *_ACK_GPU)
_ACK_PROCESS: Final = (*_ACK_CONTAINER, "ProcessId", "ProcessName")
_GPU: Final = ("node", "gpu", "UUID")
_CONTAINER: Final = ("namespace", "pod", "container", *_GPU)

#: Name → kind, what it is, labels.
FAMILIES: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "DCGM_FI_DEV_GPU_UTIL": (
        "gauge",
        "GPU utilization in percent: how much of the time any kernel ran.",
        _DCGM,
    ),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Utilization of the GPU's memory bus in percent.", _DCGM),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Memory in use in MiB.", _DCGM),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Memory not in use in MiB.", _DCGM),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "Temperature in degrees Celsius.", _DCGM),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw in watts.", _DCGM),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "The last XID that the driver reported; 0 for none.", _DCGM),
    "DCGM_CUSTOM_ALLOCATE_MODE": (
        "gauge",
        "How pods hold this node's GPUs: 0 not at all, 1 whole, 2 in shares.",
        ("NodeName",),
    ),
    "DCGM_CUSTOM_DEV_FB_TOTAL": ("gauge", "Memory of the GPU in MiB.", _ACK_GPU),
    "DCGM_CUSTOM_DEV_FB_ALLOCATED": (
        "gauge",
        "Part of the GPU's memory that pods were given, 0 to 1.",
        _ACK_GPU,
    ),
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED": (
        "gauge",
        "Memory that the container was given in MiB.",
        _ACK_CONTAINER,
    ),
    "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED": (
        "gauge",
        "Part of the GPU's compute that the container was given, 0 to 1; 0 where none was counted.",
        _ACK_CONTAINER,
    ),
    "DCGM_CUSTOM_PROCESS_MEM_USED": ("gauge", "Memory that the process holds in MiB.", _ACK_PROCESS),
    "DCGM_CUSTOM_PROCESS_SM_UTIL": (
        "gauge",
        "How much of the GPU's time the process computes, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED": (
        "gauge",
        "Memory in MiB of a process that was given nothing of the GPU.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL": (
        "gauge",
        "How much of the GPU's time a process computes that was given nothing of it, in percent.",
        _ACK_PROCESS,
    ),
    "gpushare_gpu_healthy": (
        "gauge",
        "1 while the GPU may be given to pods, 0 while it is out of service.",
        _GPU,
    ),
    "gpushare_gpu_memory_total_bytes": ("gauge", "Memory of the GPU.", _GPU),
    "gpushare_gpu_memory_given_bytes": ("gauge", "Memory of the GPU that pods were given.", _GPU),
    "gpushare_gpu_compute_given_ratio": (
        "gauge",
        "Part of the GPU's compute that pods were given, 0 to 1.",
        _GPU,
    ),
    "gpushare_gpu_pods": ("gauge", "Pods that were given something of the GPU.", _GPU),
    "gpushare_gpu_foreign_memory_bytes": (
        "gauge",
        "Memory of the GPU that is kept back, as processes hold it that were given none.",
        _GPU,
    ),
    "gpushare_gpu_foreign_processes": ("gauge", "Processes on the GPU that were given nothing of it.", _GPU),
    "gpushare_gpu_xid_errors_total": ("counter", "XIDs that the driver reported.", (*_GPU, "xid")),
    "gpushare_container_memory_given_bytes": (
        "gauge",
        "Memory of the GPU that the container was given.",
        _CONTAINER,
    ),
    "gpushare_container_compute_given_ratio": (
        "gauge",
        "Part of the GPU's compute that the container was given, 0 to 1; 0 where none was counted.",
        _CONTAINER,
    ),
    "gpushare_container_memory_used_bytes": (
        "gauge",
        "Memory that the driver says the container holds; container is empty where only the pod is known.",
        _CONTAINER,
    ),
    "gpushare_container_compute_used_ratio": (
        "gauge",
        "Part of the GPU's time that the driver says the container computes, 0 to 1.",
        _CONTAINER,
    ),
    "gpushare_container_memory_counted_bytes": (
        "gauge",
        "Memory that the isolation library counts as taken by the container.",
        _CONTAINER,
    ),
    "gpushare_container_memory_refused_total": (
        "counter",
        "How often the container asked for more memory than was left of its share.",
        _CONTAINER,
    ),
    "gpushare_container_gpu_seconds_total": (
        "counter",
        "GPU time of the container's work, as the isolation library measures it where compute is limited.",
        _CONTAINER,
    ),
    "gpushare_container_compute_throttled_seconds_total": (
        "counter",
        "How long the container's threads waited for its share of the GPU's time.",
        _CONTAINER,
    ),
}


class Watched(Protocol):
    """What the watchdog saw last."""

    processes: tuple[GpuProcess, ...]
    """On the GPUs of this node."""

    owners: Mapping[int, Owner]
    """Whose they are, by PID."""

    def holder_of(self, whose: Owner, gpu: str) -> Holder | None:
        """Who was given that GPU; ``None``: they were not."""


class _Gpu(NamedTuple):
    """The labels of one GPU in each naming."""

    dcgm: tuple[str, ...]
    ack: tuple[str, ...]
    ours: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom to ask at each scrape."""

    present: Callable[[], NodeDevices]
    """The node as it is described."""
    minors: Callable[[], Mapping[str, int]]
    """The numbers in the names of device nodes, by UUID."""
    book: ClaimBook
    whole: WholeGpus
    readings: Readings
    watched: Watched
    directories: Callable[[], Iterable[tuple[Claimed, Path]]]
    """Those of isolated containers; the oldest first."""
    proc: Path
    """Where processes have their names."""


def lines(asked: Sources) -> list[str]:
    """All families that have values, as Prometheus reads them."""
    return [line for one in _Scrape(asked).families() for line in one.lines()]


class _Scrape:
    """One look at everything."""

    def __init__(self, asked: Sources) -> None:
        self._asked = asked
        self._families: dict[str, Family] = {}
        self._node = asked.present()
        minors = asked.minors()
        self._gpus = {one.uuid: _labels(self._node.name, one, minors) for one in self._node.devices}
        self._given: dict[str, list[tuple[int, int]]] = {uuid: [] for uuid in self._gpus}

    def families(self) -> list[Family]:
        self._take_readings()
        self._take_shares()
        self._take_whole()
        self._take_gpus()
        self._take_processes()
        self._take_directories()
        return [self._families[name] for name in FAMILIES if name in self._families]

    def _set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        family = self._families.get(name)
        if family is None:
            kind, text, named = FAMILIES[name]
            family = self._families[name] = Family(
                "counter" if kind == "counter" else "gauge", name, text, *named
            )
        family.set(*labels, value=value)

    def _take_readings(self) -> None:
        for uuid, gpu in self._gpus.items():
            self._set("DCGM_FI_DEV_XID_ERRORS", gpu.dcgm, self._asked.readings.last_xid.get(uuid, 0))
            reading = self._asked.readings.last.get(uuid)
            if reading is None:
                continue
            for name, value in (
                ("DCGM_FI_DEV_GPU_UTIL", reading.busy_percent),
                ("DCGM_FI_DEV_MEM_COPY_UTIL", reading.copy_percent),
                ("DCGM_FI_DEV_FB_USED", reading.used_mib),
                ("DCGM_FI_DEV_FB_FREE", reading.free_mib),
                ("DCGM_FI_DEV_GPU_TEMP", reading.celsius),
                (
                    "DCGM_FI_DEV_POWER_USAGE",
                    None if reading.milliwatts is None else reading.milliwatts / 1000,
                ),
            ):
                if value is not None:
                    self._set(name, gpu.dcgm, value)
        for (uuid, xid), count in self._asked.readings.xids.items():
            if uuid in self._gpus:
                self._set("gpushare_gpu_xid_errors_total", (*self._gpus[uuid].ours, str(xid)), count)

    def _take_shares(self) -> None:
        book = self._asked.book
        for claim in book.claims:
            for uuid in book.gpus_of(claim):
                whole = book.share_of(claim, uuid, "")
                if whole is None or uuid not in self._gpus:
                    continue
                self._given[uuid].append((whole.mib, whole.core_percent))
                for container in claim.request.containers:
                    if container.kind is ContainerKind.INIT or not container.memory_units:
                        continue
                    share = book.share_of(claim, uuid, container.name)
                    if share is not None:
                        self._give(
                            claim.pod.key, container.name, uuid, share.mib, share.core_percent, "share"
                        )

    def _take_whole(self) -> None:
        sizes = {one.uuid: one.total_mib for one in self._node.devices}
        for pod in self._asked.whole.pods:
            for uuid in set().union(*pod.decided.values()) & self._given.keys():
                self._given[uuid].append((sizes[uuid], 100))
            for container, uuids in pod.decided.items():
                for uuid in uuids & self._given.keys():
                    self._give(pod.pod.key, container, uuid, sizes[uuid], 100, "exclusive")

    def _give(self, pod: str, container: str, uuid: str, mib: int, core_percent: int, mode: str) -> None:
        namespace, _, name = pod.partition("/")
        gpu = self._gpus[uuid]
        ack = (mode, container, namespace, name, *gpu.ack)
        ours = (namespace, name, container, *gpu.ours)
        self._set("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", ack, mib)
        self._set("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", ack, core_percent / 100)
        self._set("gpushare_container_memory_given_bytes", ours, mib * _MIB)
        self._set("gpushare_container_compute_given_ratio", ours, core_percent / 100)

    def _take_gpus(self) -> None:
        pods = bool(self._asked.book.claims), bool(self._asked.whole.pods)
        mode = 2 if pods[0] else int(pods[1])
        self._set("DCGM_CUSTOM_ALLOCATE_MODE", (self._node.name,), mode)
        for device in self._node.devices:
            gpu = self._gpus[device.uuid]
            given = self._given[device.uuid]
            mib = sum(one for one, _ in given)
            self._set("DCGM_CUSTOM_DEV_FB_TOTAL", gpu.ack, device.total_mib)
            self._set("DCGM_CUSTOM_DEV_FB_ALLOCATED", gpu.ack, mib / max(device.total_mib, 1))
            self._set("gpushare_gpu_healthy", gpu.ours, float(device.healthy))
            self._set("gpushare_gpu_memory_total_bytes", gpu.ours, device.total_mib * _MIB)
            self._set("gpushare_gpu_memory_given_bytes", gpu.ours, mib * _MIB)
            self._set("gpushare_gpu_compute_given_ratio", gpu.ours, sum(core for _, core in given) / 100)
            self._set("gpushare_gpu_pods", gpu.ours, len(given))
            self._set("gpushare_gpu_foreign_memory_bytes", gpu.ours, device.foreign_mib * _MIB)

    def _take_processes(self) -> None:
        used: dict[tuple[str, ...], tuple[int, int]] = {}
        foreign = dict.fromkeys(self._gpus, 0)
        watched = self._asked.watched
        for process in watched.processes:
            gpu = self._gpus.get(process.gpu)
            owner = watched.owners.get(process.pid)
            if gpu is None or owner is None:
                continue
            holder = watched.holder_of(owner, process.gpu)
            if holder is None:
                foreign[process.gpu] += 1
                self._take_process("DCGM_CUSTOM_ILLEGAL_PROCESS", process, gpu, ("none", "", "", ""))
                continue
            namespace, _, name = holder.pod.partition("/")
            self._take_process(
                "DCGM_CUSTOM_PROCESS", process, gpu, ("share", holder.container, namespace, name)
            )
            labels = (namespace, name, holder.container, *gpu.ours)
            mib, percent = used.get(labels, (0, 0))
            used[labels] = mib + max(process.mib, 0), percent + max(process.sm_percent, 0)
        for labels, (mib, percent) in used.items():
            self._set("gpushare_container_memory_used_bytes", labels, mib * _MIB)
            self._set("gpushare_container_compute_used_ratio", labels, percent / 100)
        for uuid, count in foreign.items():
            self._set("gpushare_gpu_foreign_processes", self._gpus[uuid].ours, count)

    def _take_process(self, prefix: str, process: GpuProcess, gpu: _Gpu, whose: tuple[str, ...]) -> None:
        labels = (*whose, *gpu.ack, str(process.pid), _named(self._asked.proc, process.pid))
        if process.mib >= 0:
            self._set(f"{prefix}_MEM_USED", labels, process.mib)
        if process.sm_percent >= 0:
            self._set(f"{prefix}_SM_UTIL", labels, process.sm_percent)

    def _take_directories(self) -> None:
        for claimed, folder in self._asked.directories():
            if self._asked.book.claim(claimed.uid) is None:
                continue
            shares = claimed.mib_by_gpu
            namespace, _, name = claimed.pod.partition("/")
            for uuid, use in zip(shares, read_usage(folder, len(shares)), strict=False):
                gpu = self._gpus.get(uuid)
                if gpu is None:
                    continue
                labels = (namespace, name, claimed.container, *gpu.ours)
                self._set("gpushare_container_memory_counted_bytes", labels, use.memory_bytes)
                self._set("gpushare_container_memory_refused_total", labels, use.refused)
                if claimed.core_percent:
                    self._set("gpushare_container_gpu_seconds_total", labels, use.busy_ns / _NS)
                    self._set(
                        "gpushare_container_compute_throttled_seconds_total", labels, use.waited_ns / _NS
                    )


def _labels(node: str, device: Device, minors: Mapping[str, int]) -> _Gpu:
    index = str(device.index)
    minor = minors.get(device.uuid, -1)
    name = f"nvidia{minor}" if minor >= 0 else f"nvidia{index}"
    return _Gpu(
        (index, device.uuid, device.pci_bus_id, name, device.model, node),
        (node, device.uuid, name, index, device.model),
        (node, index, device.uuid),
    )


def _named(proc: Path, pid: int) -> str:
    """What the kernel calls the process; empty once it has ended."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
