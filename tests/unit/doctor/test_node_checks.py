"""A healthy node has no findings, and each fault has exactly its own."""

from typing import Any

import msgspec
import pytest

from gpushare.doctor.findings import Unread, examine
from gpushare.doctor.node.checks import CHECKS
from gpushare.doctor.node.facts import Disk, NodeFacts, SeenDriver, SeenGpu

GPU = SeenGpu(0, "GPU-1", 16160, "Tesla V100", 0)
AWAY = Unread("it may not be read")
GIB = 1 << 30
SOUND = NodeFacts(
    name="n1",
    is_root=True,
    driver=SeenDriver("580.1", "13.580.1", (GPU,)),
    device_nodes=frozenset({"nvidia0", "nvidiactl", "nvidia-uvm"}),
    plugin_folder="/p",
    plugin_folder_writable=True,
    kubelet_registers=True,
    kubelet_lists="",
    our_sockets=("gpushare-mem-1",),
    dra_folder="/r",
    cdi_folders=("/etc/cdi",),
    cdi_kinds=("nvidia.com/gpu",),
    cdi_faults=(),
    containerd="version = 3\n",
    nvidia_runtime=False,
    libraries_missing=(),
    trial=("passed", ""),
    cgroup_version=2,
    clock="",
    disk=Disk("/var/lib", 50 * GIB, 100 * GIB, noexec=False),
)


def driver(**changes: Any) -> SeenDriver:
    return msgspec.structs.replace(SOUND.driver, **changes)  # type: ignore[type-var]


def gpu(**changes: Any) -> SeenDriver:
    return driver(gpus=(msgspec.structs.replace(GPU, **changes),))


def test_every_check_passes_on_a_healthy_node() -> None:
    findings = examine(SOUND, CHECKS)
    assert [one.state for one in findings] == ["ok"] * len(CHECKS)
    assert findings[0].message == "driver 580.1, NVML 13.580.1, 1 GPU"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"driver": AWAY}, [("driver", "fault"), ("gpus", "unknown"), ("device-nodes", "unknown")]),
        (
            {"driver": SeenDriver(trouble="not loaded")},
            [("driver", "fault"), ("gpus", "unknown"), ("device-nodes", "unknown")],
        ),
        ({"driver": driver(gpus=())}, [("gpus", "fault"), ("device-nodes", "unknown")]),
        ({"driver": driver(unreadable=("GPU 1: lost",))}, [("gpus", "fault")]),
        ({"driver": gpu(trouble="lost")}, [("gpus", "fault")]),
        ({"driver": gpu(mig=True)}, [("gpus", "warning")]),
        ({"driver": gpu(mig=True), "dra_sockets": ("gpushare.dev-1.sock",)}, []),
        ({"driver": gpu(minor=3)}, [("device-nodes", "fault")]),
        ({"driver": gpu(minor=-1)}, []),
        ({"device_nodes": frozenset({"dxg"})}, []),
        (
            {"kubelet_registers": False, "our_sockets": (), "plugin_folder_writable": False},
            [("kubelet", "fault"), ("agent", "unknown"), ("permissions", "unknown")],
        ),
        ({"kubelet_lists": "no answer"}, [("kubelet", "fault")]),
        ({"our_sockets": ()}, [("agent", "warning")]),
        ({"our_sockets": (), "dra_sockets": ("gpushare.dev-1.sock",)}, []),
        ({"dra_folder": ""}, [("dra", "unknown")]),
        ({"dead_dra_sockets": ("gpushare.dev-1.sock",)}, [("dra", "warning")]),
        ({"is_root": False}, [("permissions", "unknown")]),
        ({"plugin_folder_writable": False}, [("permissions", "fault")]),
        ({"cdi_faults": ("a.json: broken",)}, [("containers", "warning")]),
        ({"cdi_kinds": ()}, [("containers", "fault")]),
        ({"containerd": "version = 2\n"}, [("containers", "fault")]),
        ({"containerd": "enable_cdi = false\nversion = 3\n"}, [("containers", "fault")]),
        ({"containerd": ""}, [("containers", "fault")]),
        ({"containerd": "runtimes.nvidia", "nvidia_runtime": True}, []),
        ({"containerd": AWAY}, []),
        ({"containerd": AWAY, "cdi_kinds": ()}, [("containers", "unknown")]),
        ({"libraries_missing": ("/x/libcuda.so.1",)}, [("isolation", "warning")]),
        ({"trial": ("failed", "it crashes")}, [("isolation", "fault")]),
        ({"trial": ("skipped", "no GPU")}, [("isolation", "unknown")]),
        ({"selinux_type": "var_lib_t"}, [("selinux", "warning")]),
        ({"selinux_type": ""}, [("selinux", "warning")]),
        ({"selinux_type": "container_file_t"}, []),
        ({"cgroup_version": 1}, [("cgroups", "warning")]),
        ({"cgroup_version": AWAY}, [("cgroups", "unknown")]),
        ({"clock": "adrift"}, [("clock", "warning")]),
        ({"clock": AWAY}, [("clock", "unknown")]),
        ({"disk": Disk("/v", 1 << 20, 100 * GIB, noexec=False)}, [("disk", "warning")]),
        ({"disk": Disk("/v", GIB, 100 * GIB, noexec=False)}, [("disk", "warning")]),
        ({"disk": Disk("/v", 50 * GIB, 100 * GIB, noexec=True)}, [("disk", "fault")]),
        ({"disk": AWAY}, [("disk", "unknown")]),
    ],
)
def test_each_fault_is_named_and_nothing_else(changes: dict[str, Any], wanted: list[tuple[str, str]]) -> None:
    findings = [
        one for one in examine(msgspec.structs.replace(SOUND, **changes), CHECKS) if one.state != "ok"
    ]
    assert [(one.check, one.state) for one in findings] == wanted, findings
    assert all(one.message for one in findings)
    assert all(one.suggestion for one in findings if one.state in ("warning", "fault"))
