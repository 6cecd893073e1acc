"""``/metrics/dcgm``: the same values under the names that dashboards know.

``DCGM_FI_*`` are names of NVIDIA's DCGM exporter. ``DCGM_CUSTOM_*`` are ACK's, whose exporter also adds its own labels to NVIDIA's
metrics. Both sets of labels are exported, because labels that no query names do no harm. For Prometheus an empty label is the same
as a missing one. Sources of the names: the reference pages of both exporters, and their output.
"""

from collections.abc import Mapping
from typing import Final

from gpushare.nodeagent.observability.snapshot import Families, Page, Process, Scrape, Sources

_NODE: Final = ("NodeName", "NodePoolId", "PodSource")
_DCGM: Final = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "DCGM_FI_DRIVER_VERSION",
    *_NODE,
)
_ACK: Final = (*_NODE, "UUID", "device", "gpu", "modelName")
_ACK_GPU: Final = ("DriverVersion", *_ACK)
_ACK_CONTAINER: Final = ("AllocateMode", "ContainerName", "NamespaceName", "PodName", *_ACK)
_ACK_PROCESS: Final = (*_ACK_CONTAINER, "ProcessId", "ProcessName", "ProcessType")

#: Labels that name the node's pool; ACK's own first.
POOL_LABELS: Final = (
    "alibabacloud.com/nodepool-id",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
)
_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_ECS: Final = "ecs"

FAMILIES: Final[Families] = {
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
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (
        "counter",
        "Energy drawn since the driver was loaded in millijoules.",
        _DCGM,
    ),
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "Clock of the multiprocessors in MHz.", _DCGM),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Clock of the memory in MHz.", _DCGM),
    "DCGM_FI_DEV_ENC_UTIL": ("gauge", "Utilization of the GPU's encoder in percent.", _DCGM),
    "DCGM_FI_DEV_DEC_UTIL": ("gauge", "Utilization of the GPU's decoder in percent.", _DCGM),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (
        "counter",
        "Transfers over PCIe that were sent again since the driver was loaded.",
        _DCGM,
    ),
    "DCGM_FI_DEV_XID_ERRORS": (
        "gauge",
        "The last XID that the driver reported since this agent began; 0 for none.",
        _DCGM,
    ),
    "DCGM_CUSTOM_ALLOCATE_MODE": (
        "gauge",
        "How pods hold this node's GPUs: 0 not at all, 1 whole, 2 in shares.",
        ("NodeName",),
    ),
    "DCGM_CUSTOM_DEV_FB_TOTAL": ("gauge", "Memory of the GPU in MiB.", _ACK_GPU),
    "DCGM_CUSTOM_DEV_FB_ALLOCATED": (
        "gauge",
        "Part of the GPU's memory that is allocated to pods, 0 to 1.",
        _ACK_GPU,
    ),
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED": (
        "gauge",
        "Memory that is allocated to the container in MiB.",
        _ACK_CONTAINER,
    ),
    "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED": (
        "gauge",
        "Part of the GPU's compute that is allocated to the container, 0 to 1; 0 where compute is not counted.",
        _ACK_CONTAINER,
    ),
    "DCGM_CUSTOM_PROCESS_MEM_USED": ("gauge", "Memory that the process holds in MiB.", _ACK_PROCESS),
    "DCGM_CUSTOM_PROCESS_SM_UTIL": (
        "gauge",
        "How much of the GPU's time the process computes, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL": (
        "gauge",
        "How much of the time the GPU's memory is read or written for the process, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_PROCESS_ENCODE_UTIL": (
        "gauge",
        "How much of the time the GPU's encoder works for the process, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_PROCESS_DECODE_UTIL": (
        "gauge",
        "How much of the time the GPU's decoder works for the process, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED": (
        "gauge",
        "Memory in MiB of a process without an allocation on the GPU.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL": (
        "gauge",
        "How much of the GPU's time a process without an allocation computes, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_COPY_UTIL": (
        "gauge",
        "How much of the time the GPU's memory is read or written for a process without an allocation on the GPU, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_ILLEGAL_PROCESS_ENCODE_UTIL": (
        "gauge",
        "How much of the time the GPU's encoder works for a process without an allocation on the GPU, in percent.",
        _ACK_PROCESS,
    ),
    "DCGM_CUSTOM_ILLEGAL_PROCESS_DECODE_UTIL": (
        "gauge",
        "How much of the time the GPU's decoder works for a process without an allocation on the GPU, in percent.",
        _ACK_PROCESS,
    ),
}


def lines(sources: Sources) -> list[str]:
    """All families that have values, in Prometheus' text format."""
    return _Dcgm(Scrape(sources)).lines()


def pool_of(labels: Mapping[str, str]) -> str:
    """The pool of a node by its labels; empty if none names one."""
    return next((labels[one] for one in POOL_LABELS if labels.get(one)), "")


def source_of(labels: Mapping[str, str]) -> str:
    """``ecs`` on a node that is an ECS instance of Alibaba Cloud, by its instance type; else empty."""
    return _ECS if labels.get(_INSTANCE_TYPE, "").startswith(f"{_ECS}.") else ""


class _Dcgm:
    """One scrape under DCGM's and ACK's names."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._page = Page(FAMILIES)
        labels = scrape.sources.labels()
        node = (scrape.node.name, pool_of(labels), source_of(labels))
        self._dcgm: dict[str, tuple[str, ...]] = {}
        self._ack: dict[str, tuple[str, ...]] = {}
        for uuid, one in scrape.gpus.items():
            index, device = one.label, scrape.device_of(uuid)
            dcgm = (index, uuid, one.pci_bus_id, device, one.model, scrape.node.name, scrape.driver)
            self._dcgm[uuid] = (*dcgm, *node)
            self._ack[uuid] = (*node, uuid, device, index, one.model)

    def lines(self) -> list[str]:
        self._add_readings()
        self._add_gpus()
        self._add_allocated()
        for one in self._scrape.processes():
            self._add_process(one)
        return self._page.lines()

    def _add_readings(self) -> None:
        readings = self._scrape.sources.readings
        for uuid, labels in self._dcgm.items():
            self._page.set("DCGM_FI_DEV_XID_ERRORS", labels, readings.last_xid.get(uuid, 0))
            reading = readings.last.get(uuid)
            if reading is None:
                continue
            watts = None if reading.milliwatts is None else reading.milliwatts / 1000
            for name, value in (
                ("GPU_UTIL", reading.busy_percent),
                ("MEM_COPY_UTIL", reading.copy_percent),
                ("FB_USED", reading.used_mib),
                ("FB_FREE", reading.free_mib),
                ("GPU_TEMP", reading.celsius),
                ("POWER_USAGE", watts),
                ("TOTAL_ENERGY_CONSUMPTION", reading.millijoules),
                ("SM_CLOCK", reading.sm_mhz),
                ("MEM_CLOCK", reading.memory_mhz),
                ("ENC_UTIL", reading.encoder_percent),
                ("DEC_UTIL", reading.decoder_percent),
                ("PCIE_REPLAY_COUNTER", reading.pcie_replays),
            ):
                if value is not None:
                    self._page.set(f"DCGM_FI_DEV_{name}", labels, value)

    def _add_gpus(self) -> None:
        scrape = self._scrape
        shared = scrape.sources.book.pods or scrape.claims
        mode = 2 if shared else int(bool(scrape.sources.whole.pods))
        self._page.set("DCGM_CUSTOM_ALLOCATE_MODE", (scrape.node.name,), mode)
        for uuid, device in scrape.gpus.items():
            labels = (scrape.driver, *self._ack[uuid])
            allocated_mib = sum(mib for mib, _ in scrape.held[uuid])
            self._page.set("DCGM_CUSTOM_DEV_FB_TOTAL", labels, device.total_mib)
            self._page.set("DCGM_CUSTOM_DEV_FB_ALLOCATED", labels, allocated_mib / max(device.total_mib, 1))

    def _add_allocated(self) -> None:
        for one in self._scrape.allocations:
            mode = "exclusive" if one.whole else "share"
            labels = (mode, one.container, one.namespace, one.pod, *self._ack[one.gpu])
            self._page.set("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", labels, one.mib)
            self._page.set("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", labels, one.core_percent / 100)

    def _add_process(self, process: Process) -> None:
        gpu_process, holder, whole, name = process
        whose = ("none", "", "", "")
        prefix = "DCGM_CUSTOM_ILLEGAL_PROCESS"
        if holder is not None:
            namespace, _, pod = holder.pod.partition("/")
            mode = "exclusive" if whole else "share"
            whose, prefix = (mode, holder.container, namespace, pod), "DCGM_CUSTOM_PROCESS"
        labels = (*whose, *self._ack[gpu_process.gpu], str(gpu_process.pid), name, gpu_process.kind)
        for what, value in (
            ("MEM_USED", gpu_process.mib),
            ("SM_UTIL", gpu_process.sm_percent),
            ("MEM_COPY_UTIL", gpu_process.copy_percent),
            ("ENCODE_UTIL", gpu_process.encode_percent),
            ("DECODE_UTIL", gpu_process.decode_percent),
        ):
            if value >= 0:
                self._page.set(f"{prefix}_{what}", labels, value)
