"""All checks of a node, in the order of the report."""

import re
from collections.abc import Iterator
from typing import Final

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.request.pluralize import counted
from gpushare.doctor.findings import Check, Result, Unread, fault, fine, unknown, warning
from gpushare.doctor.node.facts import NodeFacts
from gpushare.nodeagent.deviceplugin.socket_names import PLUGINS_REGISTRY
from gpushare.nodeagent.isolation.storage.selinux import CONTAINER_FILE

_LEAST_FREE_BYTES: Final = 64 << 20
_LEAST_FREE_SHARE: Final = 0.03
_ENABLED: Final = re.compile(r"^\s*enable_cdi\s*=\s*(true|false)", re.MULTILINE)
_VERSION: Final = re.compile(r"^\s*version\s*=\s*(\d+)", re.MULTILINE)
_NVIDIA: Final = re.compile(r"nvidia-container-runtime|runtimes\.[\"']?nvidia")


def driver(facts: NodeFacts) -> Iterator[Result]:
    """Whether NVML can be loaded and its driver runs."""
    probed = facts.driver
    if isinstance(probed, Unread):
        yield fault("driver", probed.why, "`nvidia-smi` on the node; `dmesg | grep -i nvrm`")
    elif probed.trouble:
        yield fault(
            "driver",
            probed.trouble,
            probed.suggestion
            or "install NVIDIA's driver on the node, or name where it is with `--driver-root` (chart: `nodeAgent.driverRoot`)",
        )
    else:
        yield fine("", f"driver {probed.driver}, NVML {probed.nvml}, {counted(len(probed.gpus), 'GPU')}")


def gpus(facts: NodeFacts) -> Iterator[Result]:
    """Whether there are GPUs, and each responds."""
    probed = facts.driver
    if isinstance(probed, Unread) or probed.trouble:
        yield unknown("GPUs", "the driver does not report them")
        return
    if not probed.gpus and not probed.unreadable:
        yield fault("GPUs", "the driver finds none", "`lspci | grep -i nvidia` on the node")
    for text in probed.unreadable:
        yield fault("GPUs", text, "`nvidia-smi -q` on the node")
    for gpu in probed.gpus:
        if gpu.trouble:
            yield fault(
                f"GPU {gpu.index}",
                gpu.trouble,
                f"`nvidia-smi -q -i {gpu.index}`; `dmesg | grep -i xid`; reset the GPU",
            )
        # Instances on demand are created for ResourceClaims.
        if gpu.mig and not facts.dra_sockets:
            yield warning(
                f"GPU {gpu.index}",
                "it is in MIG mode and has no instance, so that it is not shared",
                f"create instances, or use mode dra with mig.dynamic, or `nvidia-smi -i {gpu.index} -mig 0`",
            )


def device_nodes(facts: NodeFacts) -> Iterator[Result]:
    """Whether each GPU has its device node in /dev."""
    probed = facts.driver
    if isinstance(probed, Unread) or probed.trouble or not probed.gpus:
        yield unknown("/dev", "the required files are unknown, because the driver reports no GPU")
        return
    if "dxg" in facts.device_nodes:
        return
    wanted = [f"nvidia{gpu.minor if gpu.minor >= 0 else gpu.index}" for gpu in probed.gpus]
    missing = [name for name in ("nvidiactl", "nvidia-uvm", *wanted) if name not in facts.device_nodes]
    if missing:
        yield fault(
            "/dev",
            f"there is no {', no '.join(missing)}",
            "`nvidia-modprobe -c 0 -u` on the node; or `nvidia-smi` as root",
        )


def kubelet(facts: NodeFacts) -> Iterator[Result]:
    """Whether the kubelet's sockets exist and respond."""
    if not facts.kubelet_registers:
        yield fault(
            facts.plugin_folder,
            "there is no kubelet.sock: no device plugin can register",
            "is the kubelet running? It has that socket in /var/lib/kubelet/device-plugins, whatever its --root-dir",
        )
    if facts.kubelet_lists:
        yield fault(
            "pod resources", facts.kubelet_lists, "`systemctl status kubelet`; `journalctl -u kubelet`"
        )


def agent(facts: NodeFacts) -> Iterator[Result]:
    """Whether our agent has its sockets next to the kubelet's."""
    if not facts.kubelet_registers:
        yield unknown(
            facts.plugin_folder, "no kubelet has its socket there, next to which an agent's would be"
        )
    elif not facts.our_sockets and not facts.dra_sockets:
        yield warning(
            facts.plugin_folder,
            "no node agent of ours has a socket there",
            f"`kubectl label node {facts.name} {names.LABEL_MODE}=share`; then check the agent's pod",
        )


def dra_driver(facts: NodeFacts) -> Iterator[Result]:
    """Whether the kubelet's folder of DRA drivers exists, and who has a socket there."""
    if not facts.dra_folder:
        yield unknown(
            "DRA",
            f"the kubelet has no folder {PLUGINS_REGISTRY}: in mode {NodeMode.DRA.value} no claim could be prepared",
            "is this its --root-dir? (chart: `nodeAgent.kubeletRootDir`)",
        )
        return
    if facts.dead_dra_sockets:
        yield warning(
            facts.dra_folder,
            f"nothing answers at {', '.join(facts.dead_dra_sockets)}: their agent is gone",
            "the next agent removes it; check the agent's pod",
        )
    elif not facts.dra_sockets:
        yield fine("", f"no DRA driver of ours is there: only nodes in mode {NodeMode.DRA.value} have one")


def permissions(facts: NodeFacts) -> Iterator[Result]:
    """Whether an agent with this program's permissions could work."""
    if not facts.is_root:
        yield unknown(
            "you", "you are not root: there may be files and sockets that you cannot see", "run it as root"
        )
    elif not facts.kubelet_registers:
        yield unknown(
            facts.plugin_folder, "no kubelet has its socket there: the kubelet's directory is unknown"
        )
    elif not facts.plugin_folder_writable:
        yield fault(facts.plugin_folder, "it cannot be written", "mount it writable into the agent's pod")


def containers(facts: NodeFacts) -> Iterator[Result]:
    """Whether containers can get GPUs: by NVIDIA's runtime, or by CDI."""
    for text in facts.cdi_faults:
        yield warning(
            "CDI", text, "correct or remove the file; `nvidia-ctk cdi generate` writes NVIDIA's again"
        )
    described = any(kind.endswith("nvidia.com/gpu") for kind in facts.cdi_kinds)
    if isinstance(facts.containerd, Unread):
        if not facts.nvidia_runtime and not described:
            yield unknown(
                "containers",
                f"no CDI spec of NVIDIA, no nvidia-container-runtime, and {facts.containerd.why}",
                "install NVIDIA's container toolkit; for other runtimes see docs/guide/install.md",
            )
        return
    by_runtime = facts.nvidia_runtime and _NVIDIA.search(facts.containerd) is not None
    enabled = _cdi_enabled(facts.containerd)
    if not by_runtime and not (described and enabled):
        lacks = "no CDI spec of NVIDIA exists" if not described else "containerd's enable_cdi is not true"
        yield fault(
            "containers",
            f"they would get no GPU: containerd has no NVIDIA runtime, and {lacks}",
            "`nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml` and `enable_cdi = true` for containerd; or `nvidia-ctk runtime configure`",
        )


def _cdi_enabled(config: str) -> bool:
    setting = _ENABLED.search(config)
    if setting is not None:
        return setting[1] == "true"
    version = _VERSION.search(config)
    # Since containerd 2.0, whose configuration has version 3, it is enabled by default.
    return version is not None and int(version[1]) >= 3


def isolation(facts: NodeFacts) -> Iterator[Result]:
    """Whether our libraries exist and work with this driver."""
    if facts.libraries_missing:
        yield warning(
            "isolation",
            f"{', '.join(facts.libraries_missing)} does not exist: containers see their share, but nothing enforces it",
            "run it in the agent's pod, or name the directory with `--isolation-library-dir`",
        )
        return
    outcome, reason = facts.trial
    if outcome == "failed":
        yield fault(
            "isolation",
            f"our libraries do not work with this driver: {reason}",
            "report it with the driver's version; meanwhile `nodeAgent.isolation.backend`: `mps`, or `none`",
        )
    elif outcome == "skipped":
        yield unknown("isolation", f"our libraries could not be tested: {reason}")


def selinux(facts: NodeFacts) -> Iterator[Result]:
    """Whether SELinux lets containers use our files."""
    if facts.selinux_type is None:
        yield fine("", "SELinux is not enforced")
    elif facts.selinux_type != CONTAINER_FILE:
        yield warning(
            "SELinux",
            f"it is enforced, and our directory has the type {facts.selinux_type or 'unknown'}: confined containers may not use our libraries",
            f"a node agent of this version labels it; otherwise `chcon -R -t {CONTAINER_FILE} FOLDER`, FOLDER as in `nodeAgent.isolation.directory`",
        )


def cgroups(facts: NodeFacts) -> Iterator[Result]:
    """Whether cgroup v2 is used, which the driver's own limits need."""
    if isinstance(facts.cgroup_version, Unread):
        yield unknown("cgroups", facts.cgroup_version.why)
    elif facts.cgroup_version != 2:
        yield warning(
            "cgroups",
            f"version {facts.cgroup_version}: the driver's own limits (isolation backend driver) cannot be used",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )


def clock(facts: NodeFacts) -> Iterator[Result]:
    """Whether the kernel's clock is synchronized."""
    if isinstance(facts.clock, Unread):
        yield unknown("clock", facts.clock.why)
    elif facts.clock:
        yield warning("clock", facts.clock, "`systemctl status systemd-timesyncd chronyd`: let one run")


def disk(facts: NodeFacts) -> Iterator[Result]:
    """Whether there is room for libraries and files of containers, and programs can be loaded from there."""
    file_system = facts.disk
    if isinstance(file_system, Unread):
        yield unknown("disk", file_system.why)
        return
    if file_system.free < _LEAST_FREE_BYTES or file_system.free < _LEAST_FREE_SHARE * file_system.total:
        yield warning(
            file_system.path,
            f"{file_system.free >> 20} MiB are free of {file_system.total >> 20}",
            "free space: the kubelet will evict pods soon",
        )
    if file_system.noexec:
        yield fault(
            file_system.path,
            "it is mounted noexec: no program can load our libraries from it",
            "another `nodeAgent.isolation.directory`, or mount it without noexec",
        )


CHECKS: Final = (
    Check("driver", "NVML can be loaded and its driver runs", "install the driver; `--driver-root`", driver),
    Check("gpus", "there are GPUs, and each answers", "`nvidia-smi -q` on the node", gpus),
    Check("device-nodes", "each GPU has its file in /dev", "`nvidia-modprobe -c 0 -u`", device_nodes),
    Check("kubelet", "the kubelet's sockets exist and answer", "check that the kubelet runs and that this is its --root-dir", kubelet),
    Check("agent", "our agent has its sockets next to the kubelet's", "label the node, check the agent's pod", agent),
    Check("dra", "our DRA driver is served to the kubelet, where the node is in mode `dra`", "check the agent's pod", dra_driver),
    Check("permissions", "you are root, and the kubelet's directory is writable", "run it as root", permissions),
    Check("containers", "containers can get GPUs, by NVIDIA's runtime or by CDI", "`nvidia-ctk cdi generate`; `enable_cdi = true`", containers),
    Check("isolation", "our libraries exist and work with this driver", "`nodeAgent.isolation.backend`: `mps`, or `none`", isolation),
    Check("selinux", "SELinux lets containers use our files", "`chcon -R -t container_file_t FOLDER`", selinux),
    Check("cgroups", "cgroups are of version 2", "boot with systemd.unified_cgroup_hierarchy=1", cgroups),
    Check("clock", "the kernel's clock is synchronized", "run an NTP client", clock),
    Check("disk", "there is space for our libraries, and programs can be loaded from there", "free space; mount it without noexec", disk),
)  # fmt: skip
