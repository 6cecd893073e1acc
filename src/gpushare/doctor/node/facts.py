"""What was read of a node, on the node itself, as plain values; ``Unread`` for what could not be read."""

import msgspec

from gpushare.doctor.findings import Unread


class SeenGpu(msgspec.Struct, frozen=True):
    """A GPU as NVML reports it; ``trouble`` is why it does not respond, empty if it does."""

    index: int
    uuid: str
    mib: int
    model: str = ""
    minor: int = -1
    mig: bool = False
    """Whether it is in MIG mode and has no instance that could be shared."""
    trouble: str = ""


class SeenDriver(msgspec.Struct, frozen=True):
    """What NVML reports; ``trouble`` is why it does not respond, ``suggestion`` what to do if its library exists nevertheless."""

    driver: str = ""
    nvml: str = ""
    gpus: tuple[SeenGpu, ...] = ()
    unreadable: tuple[str, ...] = ()
    trouble: str = ""
    suggestion: str = ""


class Disk(msgspec.Struct, frozen=True):
    """A file system: free and total bytes, and whether programs can be loaded from it."""

    path: str
    free: int
    total: int
    noexec: bool


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read. Paths are as seen by this program."""

    name: str
    is_root: bool
    driver: SeenDriver | Unread
    device_nodes: frozenset[str]
    """Names of the driver's device nodes in ``/dev``: ``nvidia0``, ``nvidiactl``."""
    plugin_folder: str
    plugin_folder_writable: bool
    kubelet_registers: bool
    """Whether the kubelet's socket for device plugins exists."""
    kubelet_lists: str
    """What is wrong with its pod resources socket; empty if it responds."""
    our_sockets: tuple[str, ...]
    """Sockets of our agent next to the kubelet's."""
    dra_folder: str = ""
    """The kubelet's folder of DRA drivers; empty: it does not exist."""
    dra_sockets: tuple[str, ...] = ()
    """Sockets of our agents there that accept connections."""
    dead_dra_sockets: tuple[str, ...] = ()
    """Those that do not: of agents that are gone."""
    cdi_folders: tuple[str, ...]
    """Existing folders of CDI specs."""
    cdi_kinds: tuple[str, ...]
    cdi_faults: tuple[str, ...]
    containerd: str | Unread
    """Text of containerd's configuration."""
    nvidia_runtime: bool
    """Whether NVIDIA's container runtime is installed."""
    libraries_missing: tuple[str, ...]
    """Missing files of our isolation libraries, with their folder."""
    trial: tuple[str, str]
    """Result of testing them on the driver: ``passed``, ``failed`` or ``skipped``, and why."""
    cgroup_version: int | Unread
    clock: str | Unread
    """Why the kernel's clock is not synchronized; empty if it is."""
    disk: Disk | Unread
    selinux_type: str | None = None
    """Where SELinux is enforced, the type of our folder on the node, empty if there is none; ``None``: it is not enforced."""
