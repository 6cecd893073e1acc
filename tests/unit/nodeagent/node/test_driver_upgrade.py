"""Labels by which NVIDIA's GPU Operator requests that the driver is closed."""

import pytest

from gpushare.nodeagent.node.driver_upgrade import closing_label

DEPLOYED = {
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/gpu.deploy.device-plugin": "false",
    "nvidia.com/gpu.deploy.dcgm-exporter": "true",
    "nvidia.com/gpu-driver-upgrade-state": "upgrade-done",
}


@pytest.mark.parametrize(
    ("changed", "label"),
    [
        pytest.param({}, "", id="nothing is going on"),
        pytest.param(
            {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}, "", id="pods are ended first"
        ),
        pytest.param(
            {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"},
            "nvidia.com/gpu-driver-upgrade-state=pod-restart-required",
            id="the driver's pod is replaced",
        ),
        pytest.param(
            {"nvidia.com/gpu.deploy.dcgm-exporter": "paused-for-driver-upgrade"},
            "nvidia.com/gpu.deploy.dcgm-exporter=paused-for-driver-upgrade",
            id="operands are paused",
        ),
        pytest.param(
            {"nvidia.com/gpu.deploy.client": "custom_paused-for-driver-upgrade"},
            "nvidia.com/gpu.deploy.client=custom_paused-for-driver-upgrade",
            id="a value of somebody else",
        ),
        pytest.param(
            {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"},
            "nvidia.com/gpu.deploy.dcgm=paused-for-mig-change",
            id="MIG instances change",
        ),
    ],
)
def test_the_requesting_label_is_named(changed: dict[str, str], label: str) -> None:
    assert closing_label(DEPLOYED | changed) == label
