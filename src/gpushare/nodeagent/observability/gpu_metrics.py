"""``/metrics``: per GPU, container and process: allocated, used, failed allocations.

``gpushare_gpu_*``, ``gpushare_container_*`` and ``gpushare_process_*``, in base units, with DCGM's labels ``gpu`` and ``UUID`` for
joins. They include everything that also has a DCGM or ACK name (``/metrics/dcgm``).
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.nodeagent.isolation.storage.allowance_file import read_allowance
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.storage.usage_file import read_usage
from gpushare.nodeagent.observability.snapshot import Families, Page, Scrape, Sources

_MIB: Final = 1 << 20
_MHZ: Final = 1_000_000
_NS: Final = 1e9

_GPU: Final = ("node", "gpu", "UUID")
_CONTAINER: Final = ("namespace", "pod", "container", *_GPU)
_CLAIM: Final = ("namespace", "claim", *_GPU)
_PROCESS: Final = (*_CONTAINER, "pid", "process", "type")

FAMILIES: Final[Families] = {
    "gpushare_gpu_info": (
        "gauge",
        "1, with the GPU's model and driver_version, empty while the driver has not reported them.",
        (*_GPU, "pci_bus_id", "device", "model", "driver_version"),
    ),
    "gpushare_gpu_utilization_ratio": ("gauge", "Part of the time in which any kernel ran, 0 to 1.", _GPU),
    "gpushare_gpu_memory_bus_utilization_ratio": (
        "gauge",
        "Part of the time in which the GPU's memory was read or written, 0 to 1.",
        _GPU,
    ),
    "gpushare_gpu_memory_used_bytes": ("gauge", "Memory of the GPU in use, reported by the driver.", _GPU),
    "gpushare_gpu_memory_free_bytes": (
        "gauge",
        "Memory of the GPU not in use, reported by the driver; what the driver reserves is neither used nor free.",
        _GPU,
    ),
    "gpushare_gpu_temperature_celsius": ("gauge", "Temperature of the GPU.", _GPU),
    "gpushare_gpu_power_watts": ("gauge", "Power that the GPU draws.", _GPU),
    "gpushare_gpu_energy_joules_total": (
        "counter",
        "Energy that the GPU drew since the driver was loaded.",
        _GPU,
    ),
    "gpushare_gpu_sm_clock_hertz": ("gauge", "Clock of the GPU's multiprocessors.", _GPU),
    "gpushare_gpu_memory_clock_hertz": ("gauge", "Clock of the GPU's memory.", _GPU),
    "gpushare_gpu_encoder_utilization_ratio": (
        "gauge",
        "Part of the time in which the GPU's encoder worked, 0 to 1.",
        _GPU,
    ),
    "gpushare_gpu_decoder_utilization_ratio": (
        "gauge",
        "Part of the time in which the GPU's decoder worked, 0 to 1.",
        _GPU,
    ),
    "gpushare_gpu_pcie_replays_total": (
        "counter",
        "Transfers over PCIe that were sent again since the driver was loaded.",
        _GPU,
    ),
    "gpushare_gpu_last_xid": (
        "gauge",
        "The last XID that the driver reported since this agent began; 0 for none.",
        _GPU,
    ),
    "gpushare_gpu_healthy": ("gauge", "1 while the GPU is healthy, 0 while it is out of service.", _GPU),
    "gpushare_gpu_memory_capacity_bytes": (
        "gauge",
        "Memory of the GPU that can be allocated or kept back.",
        _GPU,
    ),
    "gpushare_gpu_memory_allocated_bytes": (
        "gauge",
        "Memory of the GPU that is allocated to pods, or to ResourceClaims.",
        _GPU,
    ),
    "gpushare_gpu_compute_allocated_ratio": (
        "gauge",
        "Part of the GPU's compute that is allocated to pods, or to ResourceClaims, 0 to 1.",
        _GPU,
    ),
    "gpushare_gpu_pods": ("gauge", "Pods with an allocation on the GPU.", _GPU),
    "gpushare_gpu_exclusive_pods": ("gauge", "Pods that have the GPU exclusively.", _GPU),
    "gpushare_gpu_memory_unmanaged_bytes": (
        "gauge",
        "Memory of the GPU that is used without an allocation, and therefore not allocated.",
        _GPU,
    ),
    "gpushare_gpu_unmanaged_processes": ("gauge", "Processes on the GPU without an allocation of it.", _GPU),
    "gpushare_gpu_xid_errors_total": (
        "counter",
        "XIDs that the driver reported since this agent began.",
        (*_GPU, "xid"),
    ),
    "gpushare_container_memory_allocated_bytes": (
        "gauge",
        "Memory of the GPU that is allocated to the container. Containers that use one ResourceClaim have its memory each: for sums there is gpushare_claim_memory_allocated_bytes.",
        _CONTAINER,
    ),
    "gpushare_container_compute_allocated_ratio": (
        "gauge",
        "Part of the GPU's compute that is allocated to the container, 0 to 1; 0 where compute is not counted.",
        _CONTAINER,
    ),
    "gpushare_container_memory_used_bytes": (
        "gauge",
        "Memory that the container uses, reported by the driver: 0 without a process, absent where the driver does not report it; container is empty where only the pod is known.",
        _CONTAINER,
    ),
    "gpushare_container_compute_used_ratio": (
        "gauge",
        "Part of the GPU's time that the container uses, reported by the driver, 0 to 1; 0 without a process.",
        _CONTAINER,
    ),
    "gpushare_container_memory_charged_bytes": (
        "gauge",
        "Memory that the isolation library has charged to the container, without the driver's own; that of ended processes until the next allocation.",
        _CONTAINER,
    ),
    "gpushare_container_memory_limit_bytes": (
        "gauge",
        "Memory of the GPU that the container may use at most, where that is more than is allocated to it.",
        _CONTAINER,
    ),
    "gpushare_container_memory_allowed_bytes": (
        "gauge",
        "Memory of the GPU that the container may use at the moment, where that changes while it runs: more than is allocated to it while the GPU has that free, less while other containers have to give it back.",
        _CONTAINER,
    ),
    "gpushare_container_memory_allocation_failures_total": (
        "counter",
        "Allocations of GPU memory that failed because the container's share was exhausted.",
        _CONTAINER,
    ),
    "gpushare_container_gpu_seconds_total": (
        "counter",
        "GPU time of the container's work, as the isolation library measures it where compute is limited.",
        _CONTAINER,
    ),
    "gpushare_container_compute_throttled_seconds_total": (
        "counter",
        "How long the container's threads were delayed to keep its compute share.",
        _CONTAINER,
    ),
    "gpushare_claim_memory_allocated_bytes": (
        "gauge",
        "Memory of the GPU that is allocated to the ResourceClaim, for all containers that use it.",
        _CLAIM,
    ),
    "gpushare_claim_compute_allocated_ratio": (
        "gauge",
        "Part of the GPU's compute that is allocated to the ResourceClaim, 0 to 1; 0 where it is not limited.",
        _CLAIM,
    ),
    "gpushare_claim_memory_charged_bytes": (
        "gauge",
        "Memory that the isolation library has charged to the ResourceClaim's containers, without the driver's own.",
        _CLAIM,
    ),
    "gpushare_claim_memory_allocation_failures_total": (
        "counter",
        "Allocations of GPU memory that failed because the ResourceClaim's memory was exhausted.",
        _CLAIM,
    ),
    "gpushare_claim_gpu_seconds_total": (
        "counter",
        "GPU time of the ResourceClaim's containers, as the isolation library measures it where compute is limited.",
        _CLAIM,
    ),
    "gpushare_claim_compute_throttled_seconds_total": (
        "counter",
        "How long threads of the ResourceClaim's containers were delayed to keep its compute share.",
        _CLAIM,
    ),
    "gpushare_process_memory_used_bytes": (
        "gauge",
        "Memory that the process uses, reported by the driver; namespace and pod are empty where it has no allocation on the GPU.",
        _PROCESS,
    ),
    "gpushare_process_compute_used_ratio": (
        "gauge",
        "Part of the GPU's time that the process uses, reported by the driver, 0 to 1.",
        _PROCESS,
    ),
    "gpushare_process_engine_used_ratio": (
        "gauge",
        "Part of the time that the process uses an engine of the GPU (memory_bus, encoder, decoder), reported by the driver, 0 to 1.",
        (*_PROCESS, "engine"),
    ),
}


def lines(sources: Sources) -> list[str]:
    """All families that have values, in Prometheus' text format."""
    return _Ours(Scrape(sources)).lines()


class _Ours:
    """One scrape under our names."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._page = Page(FAMILIES)
        self._gpus = {uuid: (scrape.node.name, one.label, uuid) for uuid, one in scrape.gpus.items()}

    def lines(self) -> list[str]:
        self._add_gpus()
        self._add_readings()
        self._add_allocated()
        self._add_processes()
        self._add_directories()
        return self._page.lines()

    def _add_gpus(self) -> None:
        scrape, driver = self._scrape, self._scrape.driver
        for uuid, device in scrape.gpus.items():
            labels, held = self._gpus[uuid], scrape.held[uuid]
            info = (device.pci_bus_id, scrape.device_of(uuid), device.model, driver)
            self._page.set("gpushare_gpu_info", (*labels, *info), 1)
            for name, value in (
                ("last_xid", scrape.sources.readings.last_xid.get(uuid, 0)),
                ("healthy", float(not device.is_faulty)),
                ("memory_capacity_bytes", device.total_mib * _MIB),
                ("memory_allocated_bytes", sum(mib for mib, _ in held) * _MIB),
                ("compute_allocated_ratio", sum(core for _, core in held) / 100),
                ("pods", scrape.pods[uuid]),
                ("exclusive_pods", scrape.whole[uuid]),
                ("memory_unmanaged_bytes", device.foreign_mib * _MIB),
            ):
                self._page.set(f"gpushare_gpu_{name}", labels, value)
        for (uuid, xid), count in scrape.sources.readings.xids.items():
            if uuid in self._gpus:
                self._page.set("gpushare_gpu_xid_errors_total", (*self._gpus[uuid], str(xid)), count)

    def _add_readings(self) -> None:
        for uuid, labels in self._gpus.items():
            reading = self._scrape.sources.readings.last.get(uuid)
            if reading is None:
                continue
            for name, value, times, per in (
                ("utilization_ratio", reading.busy_percent, 1, 100),
                ("memory_bus_utilization_ratio", reading.copy_percent, 1, 100),
                ("memory_used_bytes", reading.used_mib, _MIB, 1),
                ("memory_free_bytes", reading.free_mib, _MIB, 1),
                ("temperature_celsius", reading.celsius, 1, 1),
                ("power_watts", reading.milliwatts, 1, 1000),
                ("energy_joules_total", reading.millijoules, 1, 1000),
                ("sm_clock_hertz", reading.sm_mhz, _MHZ, 1),
                ("memory_clock_hertz", reading.memory_mhz, _MHZ, 1),
                ("encoder_utilization_ratio", reading.encoder_percent, 1, 100),
                ("decoder_utilization_ratio", reading.decoder_percent, 1, 100),
                ("pcie_replays_total", reading.pcie_replays, 1, 1),
            ):
                if value is not None:
                    self._page.set(f"gpushare_gpu_{name}", labels, value * times / per)

    def _add_allocated(self) -> None:
        for one in self._scrape.allocations:
            labels = (one.namespace, one.pod, one.container, *self._gpus[one.gpu])
            self._page.set("gpushare_container_memory_allocated_bytes", labels, one.mib * _MIB)
            self._page.set("gpushare_container_compute_allocated_ratio", labels, one.core_percent / 100)
        for claim in self._scrape.claims:
            whose = (claim.namespace, claim.claim, *self._gpus[claim.gpu])
            self._page.set("gpushare_claim_memory_allocated_bytes", whose, claim.mib * _MIB)
            self._page.set("gpushare_claim_compute_allocated_ratio", whose, claim.core_percent / 100)

    def _add_processes(self) -> None:
        used: dict[tuple[str, ...], tuple[int, int]] = {}
        unanswering = self._scrape.sources.unanswering()
        unmanaged = {uuid: 0 for uuid in self._gpus if uuid not in unanswering}
        for process, holder, _, name in self._scrape.processes():
            gpu = self._gpus[process.gpu]
            if holder is None:
                unmanaged[process.gpu] = unmanaged.get(process.gpu, 0) + 1
                labels: tuple[str, ...] = ("", "", "", *gpu)
            else:
                namespace, _, pod = holder.pod.partition("/")
                labels = (namespace, pod, holder.container, *gpu)
                mib, percent = used.get(labels, (0, 0))
                # Unknown for one process: unknown for the sum.
                mib = -1 if mib < 0 or process.mib < 0 else mib + process.mib
                used[labels] = mib, percent + max(process.sm_percent, 0)
            its = (*labels, str(process.pid), name, process.kind)
            if process.mib >= 0:
                self._page.set("gpushare_process_memory_used_bytes", its, process.mib * _MIB)
            if process.sm_percent >= 0:
                self._page.set("gpushare_process_compute_used_ratio", its, process.sm_percent / 100)
            for engine, percent in (
                ("memory_bus", process.copy_percent),
                ("encoder", process.encode_percent),
                ("decoder", process.decode_percent),
            ):
                if percent >= 0:
                    self._page.set("gpushare_process_engine_used_ratio", (*its, engine), percent / 100)
        for labels, (mib, percent) in (self._unused(used, unanswering) | used).items():
            if mib >= 0:
                self._page.set("gpushare_container_memory_used_bytes", labels, mib * _MIB)
            self._page.set("gpushare_container_compute_used_ratio", labels, percent / 100)
        for uuid, count in unmanaged.items() if self._scrape.sources.watchdog.is_sampling else ():
            self._page.set("gpushare_gpu_unmanaged_processes", self._gpus[uuid], count)

    def _unused(
        self, used: Collection[tuple[str, ...]], unanswering: Collection[str]
    ) -> dict[tuple[str, ...], tuple[int, int]]:
        """0 for every container without a process, where processes are sampled and assigned to containers."""
        found: dict[tuple[str, ...], tuple[int, int]] = {}
        for one in self._scrape.allocations if self._scrape.sources.watchdog.is_sampling else ():
            gpu = self._gpus[one.gpu]
            if one.gpu not in unanswering and (one.namespace, one.pod, "", *gpu) not in used:
                found[one.namespace, one.pod, one.container, *gpu] = (0, 0)
        return found

    def _add_directories(self) -> None:
        sources = self._scrape.sources
        prepared = {one.claim.uid for one in sources.claims.prepared}
        for claimed, folder in sources.directories():
            if claimed.uid not in prepared and sources.book.pod(claimed.uid) is None:
                continue
            shares = claimed.mib_by_gpu
            namespace, _, name = claimed.pod.partition("/")
            whose, key = (
                ("container", (namespace, name, claimed.container))
                if claimed.container
                else ("claim", (namespace, name))
            )
            allowed = _allowed_mib(claimed, folder)
            for uuid, use in zip(shares, read_usage(folder, len(shares)), strict=False):
                if uuid not in self._gpus:
                    continue
                labels = (*key, *self._gpus[uuid])
                values: list[tuple[str, float]] = [
                    ("memory_charged_bytes", use.memory_bytes),
                    ("memory_allocation_failures_total", use.refused),
                ]
                if claimed.core_percent:
                    values += [
                        ("gpu_seconds_total", use.busy_ns / _NS),
                        ("compute_throttled_seconds_total", use.waited_ns / _NS),
                    ]
                if claimed.limit_mib:
                    values.append(("memory_limit_bytes", claimed.limit_mib * _MIB))
                if uuid in allowed:
                    values.append(("memory_allowed_bytes", allowed[uuid] * _MIB))
                for what, value in values:
                    self._page.set(f"gpushare_{whose}_{what}", labels, value)


def _allowed_mib(claimed: Claimed, folder: Path) -> dict[str, int]:
    """What a container may use at the moment, by GPU, where that changes."""
    if not claimed.allowance:
        return {}
    with suppress(OSError):  # it may be removed meanwhile
        return dict(zip(claimed.mib_by_gpu, read_allowance(folder, len(claimed.mib_by_gpu)), strict=False))
    return {}
