"""What a node says of sharing, in one line."""

import pytest

from gpushare.model.device import Device, NodeDevices, NodeMode
from gpushare.model.quantity import MemoryUnit
from gpushare.nodeagent.discovery import Inventory, Trouble
from gpushare.nodeagent.readiness import Condition, condition_of

WELL, LOST = Device(0, "GPU-a", 15360), Device(1, "GPU-b", 15360, healthy=False, reason="GPU is lost")
PRELOAD = "preload (by CDI): mode cgpu"


def said(*devices: Device, trouble: Trouble | None = None, **wrong: str) -> Condition:
    node = NodeDevices("n1", NodeMode.CGPU, MemoryUnit.MIB_128, devices)
    told = {"access": "", "isolation": "", "fallen": "", "active": PRELOAD, **wrong}
    return condition_of(node, Inventory(devices, trouble), **told)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (
            said(WELL),
            Condition(
                "True", "Sharing", f"mode cgpu, unit 128MiB, 1 of 1 GPUs in service, isolation {PRELOAD}"
            ),
        ),
        (
            said(WELL, fallen="the driver is too old", active="none: the driver is too old"),
            Condition(
                "True",
                "NotIsolated",
                "mode cgpu, unit 128MiB, 1 of 1 GPUs in service, isolation none: the driver is too old",
            ),
        ),
        (
            said(WELL, LOST),
            Condition(
                "True",
                "SomeGPUsOutOfService",
                f"mode cgpu, unit 128MiB, 1 of 2 GPUs in service, isolation {PRELOAD}; GPU 1: GPU is lost",
            ),
        ),
        (
            said(LOST),
            Condition(
                "False",
                "GPUUnhealthy",
                f"mode cgpu, unit 128MiB, 0 of 1 GPUs in service, isolation {PRELOAD}; GPU 1: GPU is lost",
            ),
        ),
        (
            said(trouble=Trouble("DriverNotFound", "install the driver")),
            Condition(
                "False",
                "DriverNotFound",
                "mode cgpu, unit 128MiB, 0 of 0 GPUs in service: install the driver",
            ),
        ),
        (
            said(WELL, access="no CDI"),
            Condition("False", "CDIUnavailable", "mode cgpu, unit 128MiB, 1 of 1 GPUs in service: no CDI"),
        ),
        (
            said(WELL, isolation="no library"),
            Condition(
                "False", "IsolationUnavailable", "mode cgpu, unit 128MiB, 1 of 1 GPUs in service: no library"
            ),
        ),
    ],
    ids=lambda one: one.reason,
)
def test_a_node_says_mode_unit_backend_and_what_is_wrong(condition: Condition, expected: Condition) -> None:
    assert condition == expected


def test_a_message_has_an_end() -> None:
    assert len(said(WELL, access="x" * 9999).message) == 2048
