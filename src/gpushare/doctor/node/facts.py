"""What was read of a node, from itself, as plain values; what could not be read is ``Unread``."""

import msgspec

from gpushare.doctor.findings import Unread


class SeenGpu(msgspec.Struct, frozen=True):
    """A GPU as NVML tells of it; ``trouble`` is why it does not answer, empty where it does."""

    index: int
    uuid: str
    mib: int
    model: str = ""
    minor: int = -1
    mig: bool = False
    trouble: str = ""


class SeenDriver(msgspec.Struct, frozen=True):
    """What NVML says; ``trouble`` is why it says nothing, ``suggestion`` what helps where its library is there all the same."""

    driver: str = ""
    nvml: str = ""
    gpus: tuple[SeenGpu, ...] = ()
    unreadable: tuple[str, ...] = ()
    trouble: str = ""
    suggestion: str = ""


class Disk(msgspec.Struct, frozen=True):
    """A file system: bytes that are free of all, and whether programs can be loaded from it."""

    path: str
    free: int
    total: int
    noexec: bool


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Paths are as this program sees them."""

    name: str
    is_root: bool
    driver: SeenDriver | Unread
    device_nodes: frozenset[str]
    """Names in ``/dev`` that are the driver's: ``nvidia0``, ``nvidiactl``."""
    plugin_folder: str
    plugin_folder_writable: bool
    kubelet_registers: bool
    """Whether the kubelet's socket for device plugins is there."""
    kubelet_lists: str
    """What is wrong with its socket of pod resources; empty where it answers."""
    our_sockets: tuple[str, ...]
    """Sockets of our agent beside the kubelet's."""
    cdi_folders: tuple[str, ...]
    """Folders of CDI descriptions that are there."""
    cdi_kinds: tuple[str, ...]
    cdi_faults: tuple[str, ...]
    containerd: str | Unread
    """Text of containerd's configuration."""
    nvidia_runtime: bool
    """Whether NVIDIA's container runtime is installed."""
    libraries_missing: tuple[str, ...]
    """Of our isolation libraries, with their folder."""
    trial: tuple[str, str]
    """What came of trying them on the driver: ``passed``, ``failed`` or ``skipped``, and why."""
    cgroup_version: int | Unread
    clock: str | Unread
    """Why the kernel does not take its clock for right; empty where it does."""
    disk: Disk | Unread
