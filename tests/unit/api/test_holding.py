"""Whether containers are held to their share, by their node's mode and by its agent's report."""

import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device, NodeDevices, node_devices
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.isolation.backend_selection import backing, cannot
from gpushare.nodeagent.isolation.options import AskedIsolation

TRUSTS = "mode share does not enforce shares"
PART, WHOLE = GpuShare("GPU-0", 0, 2048, 2, 16), GpuShare("GPU-0", 0, 16384, 16, 16)
WITH_CORE = GpuShare("GPU-0", 0, 2048, 2, 16, 30)


def on(mode: NodeMode, isolation: str = "", *shares: GpuShare) -> str:
    devices = (Device(0, "GPU-0", 16384),)
    return not_held(NodeDevices("n", mode, MemoryUnit.GIB, devices, isolation=isolation), shares or (PART,))


@pytest.mark.parametrize("wanted", list(AskedIsolation))
def test_share_nodes_enforce_nothing_whatever_is_requested(wanted: AskedIsolation) -> None:
    kind, why = backing(wanted, NodeMode.SHARE)
    assert (kind, on(NodeMode.SHARE, f"{kind}: {why}"), on(NodeMode.SHARE)) == ("none", TRUSTS, TRUSTS)


def test_if_isolation_is_off_or_impossible_the_agents_reason_is_repeated() -> None:
    for chosen in (
        backing(AskedIsolation.NONE, NodeMode.CGPU),
        cannot(NodeMode.CORE_MEM, "no library is there"),
    ):
        assert on(NodeMode.CGPU, f"none: {chosen.why}") == chosen.why


@pytest.mark.parametrize(
    ("mode", "isolation"),
    [
        (NodeMode.CGPU, "preload (by CDI): mode cgpu"),
        (NodeMode.MPS, "mps: mode mps"),
        (NodeMode.CORE_MEM, "driver (memory only, by cgroup): mode core_mem, and --isolation driver is set"),
        (NodeMode.CGPU, ""),
        (NodeMode.TOPOLOGY, "none: mode topology does not enforce shares"),
    ],
)  # fmt: skip
def test_there_is_no_remark_if_containers_are_isolated_or_that_is_unknown(
    mode: NodeMode, isolation: str
) -> None:
    assert on(mode, isolation) == ""


def test_driver_limits_do_not_enforce_compute() -> None:
    driver = "driver (memory only, by cgroup): mode core_mem"
    assert "compute" in on(NodeMode.CORE_MEM, driver, WITH_CORE)


def test_whole_gpus_are_limited_by_their_size() -> None:
    assert (on(NodeMode.SHARE, "", WHOLE), on(NodeMode.SHARE, "", WHOLE, PART)) == ("", TRUSTS)


def test_a_node_reports_it_by_its_annotation() -> None:
    raw = {
        "metadata": {
            "name": "n",
            "labels": {names.LABEL_MODE: "cgpu"},
            "annotations": {names.ANN_ISOLATION: "none: because"},
        },
        "status": {"capacity": {names.GPU_MEM: "16", names.GPU_COUNT: "1"}},
    }
    devices = node_devices(decode_node(raw))
    assert devices is not None
    assert not_held(devices, [PART]) == "because"
