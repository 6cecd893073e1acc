"""The NVML calls that the node agent makes, as an interface, and its implementation by the driver.

``DriverNvml`` calls ``libnvidia-ml.so.1`` through nvidia-ml-py. All calls come from one thread.
"""

import ctypes
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pynvml

from gpushare.api.node.device import instance_index
from gpushare.nodeagent.driver.cgroup_memory_limits import limit_bytes, set_limit, why_not
from gpushare.nodeagent.driver.driver_faults import is_drivers
from gpushare.nodeagent.driver.driver_loading import Driver
from gpushare.nodeagent.driver.instances import instance_uuids, instances_of
from gpushare.nodeagent.driver.placements import (
    Placement,
    create_instance,
    destroy_instance,
    occupied_of,
    placements_of,
)
from gpushare.nodeagent.driver.process_usage import ProcessUsage
from gpushare.nodeagent.driver.telemetry import GpuReading, reading_of
from gpushare.nodeagent.driver.topology import GpuPairs, Seen, near_of
from gpushare.nodeagent.errors import DriverMissing, NvmlFailed
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess

logger = logging.getLogger(__name__)

_MIB: Final = 1 << 20
_SYSFS_PCI: Final = Path("/sys/bus/pci/devices")
#: A directory for each GPU that the kernel module drives (chapter "Using the /proc File System Interface" of NVIDIA's driver README).
_PROCFS_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_MOST_EVENTS: Final = 64
#: Seconds after a failure of XID events until they are requested again.
_LISTEN_AGAIN_S: Final = 30.0
#: Reasons why a GPU that was found before is not healthy.
NOT_FOUND: Final = "NVML no longer finds it"
IN_MIG_MODE: Final = "it is in MIG mode now"


@dataclass(frozen=True, slots=True)
class Hardware:
    """Properties of a GPU by which claims can select it; empty if unknown."""

    architecture: str = ""
    """NVIDIA's name for it: ``Hopper``."""
    cuda_compute_capability: str = ""
    driver_version: str = ""
    pcie_root: str = ""
    """The PCIe root complex that it is attached to, as the kernel names it: ``pci0000:17``."""
    parent_uuid: str = ""
    """The GPU of which it is a MIG instance."""
    profile: str = ""
    """What kind of MIG instance it is: ``3g.40gb``."""


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """One GPU or MIG instance as NVML reports it. ``mig``: it is in MIG mode; its instances are listed separately.

    ``reserved_mib``: the part of ``total_mib`` that the driver reserves, so that no program can use it; rounded up.
    """

    index: int
    uuid: str
    total_mib: int
    model: str = ""
    pci_bus_id: str = ""
    numa_node: int = -1
    mig: bool = False
    minor: int = -1
    """The number in its device node's name, ``/dev/nvidia0``; -1 if the driver does not report it."""
    reserved_mib: int = 0
    hardware: Hardware = Hardware()
    parent: str = ""
    """UUID of the GPU of which it is a MIG instance; empty for a whole GPU."""
    capabilities: tuple[int, ...] = ()
    """Numbers of the device nodes ``/dev/nvidia-caps/nvidia-capN`` that give access to a MIG instance."""
    placements: tuple[Placement, ...] = ()
    """Where a GPU in MIG mode can have instances, if that was read."""
    occupied: tuple[Placement, ...] = ()
    """Those of ``placements`` that have one."""
    hides_instances: bool = False
    """Whether it is in MIG mode and its instances cannot be read."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A GPU that NVML counts but cannot read."""

    index: int
    why: str

    def __str__(self) -> str:
        return f"GPU {self.index} cannot be read ({self.why})"


@dataclass(frozen=True, slots=True)
class Enumeration:
    """All that NVML found: the GPUs, those that could not be read, and the topology level of each pair."""

    gpus: tuple[FoundGpu, ...]
    unreadable: tuple[Unreadable, ...] = ()
    near: GpuPairs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error that the driver reported for the GPU ``uuid``."""

    uuid: str
    xid: int


class Nvml(Protocol):
    """The NVML calls of the node agent. Every method may block for milliseconds, ``wait_xids`` for its timeout."""

    def open(self) -> None:
        """Load and initialize; raises ``DriverMissing`` or ``NvmlFailed``."""

    def close(self) -> None:
        """Release everything; never raises."""

    def enumerate(self, *, placements: bool = False) -> Enumeration:
        """The GPUs of this node; raises ``NvmlFailed``. Also starts to listen for XIDs on them.

        With ``placements`` it reads those of GPUs in MIG mode, and XIDs of such a GPU are its own and those of its instances.
        """

    def create_instance(self, placement: Placement, *, ours: bool) -> None:
        """Create a MIG instance unless it exists and is ``ours``; raises ``PlacementTaken``, ``NvmlFailed``."""

    def destroy_instance(self, placement: Placement) -> None:
        """Destroy a MIG instance if it exists; raises ``NvmlFailed``, as while a process uses it."""

    def probe(self, uuid: str) -> str:
        """Probe the GPU; returns what is wrong, for people, or an empty text.

        Raises ``NvmlFailed`` if the driver is at fault, not the GPU.
        """

    def wait_xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        """The XIDs that arrive within the time; ``None`` immediately if this driver reports none."""

    def processes(self) -> Sequence[GpuProcess]:
        """The processes on the GPUs, as far as the driver reports them. PIDs are those of this process's namespace."""

    def readings(self) -> Sequence[GpuReading]:
        """A sample of each GPU; nothing for a lost one."""

    def can_limit(self, root: str) -> Mapping[str, str]:
        """Why the driver cannot limit the memory of cgroups, by GPU (UUID); empty if it can.

        GPUs that do not respond are omitted. ``root`` is the directory of the root cgroup.
        """

    def limit_bytes(self, uuid: str, cgroup: str) -> int:
        """The hard limit of a cgroup (its directory) on a GPU; ``NO_LIMIT`` for none. Raises ``NvmlFailed``."""

    def set_limit(self, uuid: str, cgroup: str, hard_bytes: int) -> None:
        """Set the hard limit, and no soft one. Raises ``NvmlFailed``."""

    def replaced(self) -> bool:
        """Whether the driver was removed, or another one installed, since ``open``."""

    def gpus_changed(self) -> bool:
        """Whether ``enumerate`` would now find other GPUs, or the same ones with other indices or MIG instances."""


class DriverNvml:
    """The real library, of the driver under ``root``.

    ``sysfs_pci`` is the kernel's directory of PCI devices, ``procfs_gpus`` the kernel module's directory of GPUs.
    """

    def __init__(
        self, root: Path = Path("/"), *, sysfs_pci: Path = _SYSFS_PCI, procfs_gpus: Path = _PROCFS_GPUS
    ) -> None:
        self._driver = Driver(root)
        self._sysfs_pci = sysfs_pci
        self._procfs_gpus = procfs_gpus
        self._enumerated: object = None
        self._handles: dict[str, Any] = {}
        """Of each GPU that is not in MIG mode, and of each MIG instance, by UUID."""
        self._divided: dict[str, FoundGpu] = {}
        """GPUs in MIG mode whose placements were read, by UUID."""
        self._listened: tuple[tuple[str, Any], ...] = ()
        """UUID and handle of each GPU that reports XIDs."""
        self._uuids: dict[int, list[str]] = {}
        """The keys of ``_handles`` that a GPU's XIDs are about, by its handle."""
        self._events: Any = None
        self._listen_at_s: float | None = None
        """When to listen again; ``None``: it is listening, or this driver reports no XIDs."""
        self._usage = ProcessUsage()

    def open(self) -> None:
        """Load and initialize; raises ``DriverMissing`` or ``NvmlFailed``."""
        self._driver.load()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError_LibraryNotFound as error:
            raise DriverMissing("NVIDIA driver", _text(error)) from None
        except pynvml.NVMLError as error:
            raise _failed("NVML", error) from None

    def close(self) -> None:
        """Release everything; never raises."""
        self._free_events()
        self._handles.clear()
        self._divided.clear()
        self._uuids.clear()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            logger.debug("NVML shutdown: %s", _text(error))

    def enumerate(self, *, placements: bool = False) -> Enumeration:
        """The GPUs of this node; raises ``NvmlFailed``. Also starts to listen for XIDs on them.

        With ``placements`` it reads those of GPUs in MIG mode, and XIDs of such a GPU are its own and those of its instances.
        """
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise _failed("NVML", error) from None
        self._divided.clear()
        # Before reading: a change meanwhile then counts as a change since.
        self._enumerated = self._listing()
        gpus: list[FoundGpu] = []
        unreadable: list[Unreadable] = []
        listened: list[tuple[str, Any]] = []
        self._handles.clear()
        self._uuids.clear()
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpu = self._read(index, handle)
            except pynvml.NVMLError as error:
                if is_drivers(error.value):
                    raise _failed("NVML", error) from None
                unreadable.append(Unreadable(index, _text(error)))
                continue
            if gpu.mig and placements:
                gpu = self._with_placements(gpu, handle)
            shared = self._instances(gpu, handle) if gpu.mig else [(gpu, handle)]
            if shared is None:
                gpu, shared = replace(gpu, hides_instances=True), []
            self._handles |= {one.uuid: of for one, of in shared}
            own = [gpu.uuid] if gpu.uuid in self._divided else []
            self._uuids[_address(handle)] = [*own, *(one.uuid for one, _ in shared)]
            listened.append((gpu.uuid, handle))
            gpus += [gpu, *(one for one, _ in shared if one is not gpu)]
        self._listened = tuple(listened)
        self._listen()
        near = near_of(
            [
                Seen(gpu.uuid, self._handles[gpu.uuid], gpu.pci_bus_id)
                for gpu in gpus
                if not (gpu.mig or gpu.parent)
            ]
        )
        return Enumeration(tuple(gpus), tuple(unreadable), near)

    def _with_placements(self, gpu: FoundGpu, handle: Any) -> FoundGpu:
        try:
            found = placements_of(handle, gpu.uuid)
            occupied = occupied_of(handle, found)
        except pynvml.NVMLError as error:
            if is_drivers(error.value):
                raise _failed("NVML", error) from None
            logger.warning("GPU %s: its MIG placements cannot be read (%s)", gpu.uuid, _text(error))
            return gpu
        self._divided[gpu.uuid] = replace(gpu, placements=found, occupied=occupied)
        return self._divided[gpu.uuid]

    def create_instance(self, placement: Placement, *, ours: bool) -> None:
        """Create a MIG instance unless it exists and is ``ours``; raises ``PlacementTaken``, ``NvmlFailed``."""
        try:
            create_instance(pynvml.nvmlDeviceGetHandleByUUID(placement.gpu), placement, ours=ours)
        except pynvml.NVMLError as error:
            raise _failed(str(placement), error) from None

    def destroy_instance(self, placement: Placement) -> None:
        """Destroy a MIG instance if it exists; raises ``NvmlFailed``, as while a process uses it."""
        try:
            destroy_instance(pynvml.nvmlDeviceGetHandleByUUID(placement.gpu), placement)
        except pynvml.NVMLError as error:
            raise _failed(str(placement), error) from None

    def replaced(self) -> bool:
        """Whether the driver was removed, or another one installed, since ``open``."""
        return self._driver.replaced()

    def gpus_changed(self) -> bool:
        """Whether ``enumerate`` would now find other GPUs, or the same ones with other indices or MIG instances."""
        return self._listing() != self._enumerated or any(map(_is_divided_otherwise, self._divided.values()))

    def _listing(self) -> object:
        """What an enumeration depends on.

        By NVML's documentation of ``nvmlDeviceDiscoverGpus`` the enumeration changes under a process that has it open. A GPU that
        was bound to the driver in another way may be known to the kernel module only, until NVML is opened again.
        """
        count = _optional(pynvml.nvmlDeviceGetCount, 0)
        identities = [_identity(index) for index in range(count)]
        try:
            bound = sorted(os.listdir(self._procfs_gpus))
        except OSError:
            bound = []
        return identities, bound

    def processes(self) -> Sequence[GpuProcess]:
        """The processes on the GPUs, as far as the driver reports them. PIDs are those of this process's namespace."""
        return [
            process
            for uuid, handle in list(self._handles.items())
            for process in self._usage.of(uuid, handle)
        ]

    def readings(self) -> Sequence[GpuReading]:
        """A sample of each GPU; nothing for a lost one."""
        return [reading_of(uuid, handle) for uuid, handle in list(self._handles.items())]

    def can_limit(self, root: str) -> Mapping[str, str]:
        """Why the driver cannot limit the memory of cgroups, by GPU (UUID); empty if it can."""
        reasons = {uuid: why_not(handle, root) for uuid, handle in self._handles.items()}
        return {uuid: reason for uuid, reason in reasons.items() if reason is not None}

    def limit_bytes(self, uuid: str, cgroup: str) -> int:
        """The hard limit of a cgroup (its directory) on a GPU; ``NO_LIMIT`` for none. Raises ``NvmlFailed``."""
        try:
            return limit_bytes(self._handle(uuid), cgroup)
        except pynvml.NVMLError as error:
            raise _failed(f"GPU {uuid}", error) from None

    def set_limit(self, uuid: str, cgroup: str, hard_bytes: int) -> None:
        """Set the hard limit, and no soft one. Raises ``NvmlFailed``."""
        try:
            set_limit(self._handle(uuid), cgroup, hard_bytes)
        except pynvml.NVMLError as error:
            raise _failed(f"GPU {uuid}", error) from None

    def _handle(self, uuid: str) -> Any:
        """Raises ``pynvml.NVMLError`` for a GPU that was not found."""
        if uuid not in self._handles:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self._handles[uuid]

    def probe(self, uuid: str) -> str:
        """Read the GPU's memory and, if the driver reports it, the recovery that the GPU needs.

        Raises ``NvmlFailed`` if the driver is at fault, not the GPU.
        """
        handle = self._handles.get(uuid)
        if handle is None and uuid in self._divided:
            handle = _optional(lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid), None)
        if handle is None:
            return NOT_FOUND
        try:
            _memory_mib(handle)
        except pynvml.NVMLError as error:
            if is_drivers(error.value):
                raise _failed("NVML", error) from None
            return _text(error)
        action = _optional(lambda: _recovery_action(handle), 0)
        return _RECOVERY.get(action, "")

    def wait_xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        """The XIDs that arrive within the time; ``None`` immediately if this driver reports none."""
        if self._listen_at_s is not None and time.monotonic() >= self._listen_at_s:
            self._listen()
            if self._events is not None:
                logger.info("XID events are available again")
            else:
                self._listen_at_s = time.monotonic() + _LISTEN_AGAIN_S
        if self._events is None:
            return None
        events: list[XidEvent] = []
        deadline_s = time.monotonic() + timeout_s
        while len(events) < _MOST_EVENTS:
            # After the first event, only those that have already arrived.
            remaining_s = 0.0 if events else max(0.0, deadline_s - time.monotonic())
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, int(remaining_s * 1000))
            except pynvml.NVMLError_Timeout:
                break
            except pynvml.NVMLError as error:
                logger.warning("XID events failed (%s); GPU health is probed only", _text(error))
                self._free_events()
                self._listen_at_s = time.monotonic() + _LISTEN_AGAIN_S
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                events += [XidEvent(uuid, int(event.eventData)) for uuid in self._gpus_of_event(event.device)]
        return events

    def _gpus_of_event(self, device: Any) -> list[str]:
        """The GPU of an event, or its MIG instances; all GPUs if the driver does not name it (as it may not for a lost one)."""
        # A lost GPU no longer reports its UUID, but its handle is still known.
        uuids = self._uuids.get(_address(device))
        if uuids is None:
            uuids = [_optional(lambda: _str(pynvml.nvmlDeviceGetUUID(device)), "")]
        known = self._handles.keys() | self._divided.keys()
        return uuids if all(uuid in known for uuid in uuids) else list(self._handles)

    def _read(self, index: int, handle: Any) -> FoundGpu:
        bus_id = _optional(lambda: _str(pynvml.nvmlDeviceGetPciInfo(handle).busId), "")
        total_mib, reserved_mib = _memory_mib(handle)
        return FoundGpu(
            index=index,
            uuid=_str(pynvml.nvmlDeviceGetUUID(handle)),
            total_mib=total_mib,
            reserved_mib=reserved_mib,
            model=_optional(lambda: _str(pynvml.nvmlDeviceGetName(handle)), ""),
            pci_bus_id=bus_id,
            numa_node=self._numa_node(handle, bus_id),
            mig=_is_in_mig_mode(handle),
            minor=_optional(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)), -1),
            hardware=Hardware(
                _ARCHITECTURES.get(_optional(lambda: pynvml.nvmlDeviceGetArchitecture(handle), -1), ""),
                _optional(lambda: ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle))), ""),
                _optional(lambda: _str(pynvml.nvmlSystemGetDriverVersion()), ""),
                self._pcie_root(bus_id),
            ),
        )

    def _instances(self, gpu: FoundGpu, handle: Any) -> list[tuple[FoundGpu, Any]] | None:
        """The instances of a GPU in MIG mode, each a GPU of its own, and their handles; ``None`` if they cannot be read."""
        try:
            found = instances_of(handle, gpu.minor)
        except pynvml.NVMLError as error:
            if is_drivers(error.value):
                raise _failed("NVML", error) from None
            logger.warning("GPU %s: its MIG instances cannot be read (%s)", gpu.uuid, _text(error))
            return None
        return [
            (
                replace(
                    gpu,
                    index=index,
                    uuid=one.uuid,
                    total_mib=one.total_mib,
                    model=one.name,
                    mig=False,
                    reserved_mib=0,
                    parent=gpu.uuid,
                    hardware=replace(
                        gpu.hardware, parent_uuid=gpu.uuid, profile=one.name.rpartition("MIG ")[2]
                    ),
                    capabilities=one.capabilities,
                    placements=(),
                    occupied=(),
                ),
                one.handle,
            )
            for one in found
            if (index := instance_index(gpu.index, one.start)) is not None
        ]

    def _pcie_root(self, bus_id: str) -> str:
        """The root complex in the sysfs path of the GPU's device; empty if there is none."""
        try:
            path = (self._sysfs_pci / _in_sysfs(bus_id)).resolve(strict=True)
        except (OSError, RuntimeError):
            return ""
        return next((part for part in path.parts if _PCIE_ROOT.fullmatch(part)), "")

    def _numa_node(self, handle: Any, bus_id: str) -> int:
        """The NUMA node nearest to the GPU by NVML, else by the kernel; -1 if neither reports it."""
        nodes = _optional(
            lambda: pynvml.nvmlDeviceGetMemoryAffinity(handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE), ()
        )
        if nodes and nodes[0]:
            return (int(nodes[0]) & -int(nodes[0])).bit_length() - 1
        try:
            return int((self._sysfs_pci / _in_sysfs(bus_id) / "numa_node").read_text())
        except (OSError, ValueError):
            return -1

    def _listen(self) -> None:
        self._free_events()
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            logger.info("this driver reports no XID events (%s); GPUs are polled instead", _text(error))
            return
        for uuid, handle in self._listened:
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            except pynvml.NVMLError as error:
                logger.info("GPU %s reports no XIDs (%s); it is polled instead", uuid, _text(error))

    def _free_events(self) -> None:
        events, self._events, self._listen_at_s = self._events, None, None
        if events is not None:
            _optional(lambda: pynvml.nvmlEventSetFree(events), None)


_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
#: NVIDIA's names of GPU architectures (nvml.h, ``NVML_DEVICE_ARCH_*``).
_ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}


def _in_sysfs(bus_id: str) -> str:
    """A PCI address as the kernel writes it: NVML writes the domain with 8 digits, the kernel with 4."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


#: The recovery that the driver requires before the GPU works again (nvml.h, ``nvmlDeviceGpuRecoveryAction_t``).
_RECOVERY: Final = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "the driver requires a reset of this GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "the driver requires a reboot of the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "the driver requires this GPU to be drained and reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "the driver requires a reset of this GPU's bus",
}


def _identity(index: int) -> tuple[str, Sequence[str] | None] | None:
    """UUID and, in MIG mode, those of its instances; ``None`` for a GPU that cannot be read."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        instances = instance_uuids(handle) if _is_in_mig_mode(handle) else None
        return _str(pynvml.nvmlDeviceGetUUID(handle)), instances
    except pynvml.NVMLError:
        return None


def _is_divided_otherwise(gpu: FoundGpu) -> bool:
    """Whether there are other MIG instances now than ``occupied`` has, with or without compute instances."""
    try:
        return occupied_of(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid), gpu.placements) != gpu.occupied
    except pynvml.NVMLError:
        return False


def _is_in_mig_mode(handle: Any) -> bool:
    return bool(_optional(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0], 0))


def _address(handle: Any) -> int:
    """Identifies a device's handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _memory_mib(handle: Any) -> tuple[int, int]:
    """The total, and what the driver reserves of it."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        # Drivers before 510 exclude what they reserve from the total.
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB, 0
    return int(memory.total) // _MIB, -(-int(memory.reserved) // _MIB)


def _recovery_action(handle: Any) -> int:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    return int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else 0


def _optional(call: Callable[[], Any], default: Any) -> Any:
    """The result of ``call``, or ``default`` if this driver or GPU does not support it."""
    try:
        return call()
    except pynvml.NVMLError:
        return default


def _str(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _text(error: pynvml.NVMLError) -> str:
    # Some of NVML's texts are sentences, but they become parts of longer messages.
    return str(error).rstrip(". ")


def _failed(subject: str, error: pynvml.NVMLError) -> NvmlFailed:
    return NvmlFailed(subject, _text(error), int(error.value))
