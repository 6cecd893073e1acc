"""Device nodes that a container gets through the kubelet, so that it keeps them when its device rules are rewritten."""

from pathlib import Path

import pytest

from gpushare.nodeagent.allocate.container_response import DeviceNode
from gpushare.nodeagent.runtime.host_devices import capability_major, host_devices


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A host's ``/dev`` with two GPUs, of a driver without ``nvidia-modeset``."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / "nvidia2").mkdir()
    return tmp_path


def paths(nodes: tuple[DeviceNode, ...]) -> list[str]:
    assert all(node.host_path == node.container_path and node.permissions == "rw" for node in nodes)
    return [node.host_path for node in nodes]


def test_the_nodes_of_the_allocated_gpu_and_common_ones_are_passed(dev: Path) -> None:
    of_all = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert paths(host_devices([1], dev)) == ["/dev/nvidia1", *of_all]
    assert paths(host_devices([0, 1], dev)) == ["/dev/nvidia0", "/dev/nvidia1", *of_all]


def test_nodes_missing_on_the_host_are_left_out_since_no_container_would_start(dev: Path) -> None:
    assert paths(host_devices([2, 7], dev)) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert host_devices([0], dev / "missing") == ()


def test_access_rights_of_mig_instances_are_devices_of_the_kernels_list(tmp_path: Path) -> None:
    listed = tmp_path / "devices"
    listed.write_text(
        "Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n238 nvidia-caps-imex-channels\n"
    )
    assert capability_major(listed) == 237
    listed.write_text("Character devices:\n195 nvidia\n")
    assert capability_major(listed) is None
    assert capability_major(tmp_path / "absent") is None
