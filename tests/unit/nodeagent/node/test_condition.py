"""What the node condition reports about sharing, in one line."""

import msgspec
import pytest

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.driver.discovery import DivisibleGpu, Inventory, Trouble
from gpushare.nodeagent.driver.nvml import Hardware
from gpushare.nodeagent.node.condition import Condition, condition_of, mislabelled, stopped

WELL, LOST = Device(0, "GPU-a", 15360), Device(1, "GPU-b", 15360, healthy=False, reason="GPU is lost")
HELD = Device(0, "GPU-a", 15360, healthy=False, reason="held whole by pod a/b until it ends", kept_back=True)
CORDONED = msgspec.structs.replace(WELL, index=1, cordoned=True)
PRELOAD = "preload (by CDI): mode cgpu"


def condition_for(*devices: Device, trouble: Trouble | None = None, **wrong: str) -> Condition:
    node = NodeDevices("n1", NodeMode.CGPU, MemoryUnit.MIB_128, devices)
    arguments = {"access": "", "isolation": "", "fallen": "", "claims": "", "active": PRELOAD, **wrong}
    return condition_of(node, Inventory(devices, trouble), **arguments)


@pytest.mark.parametrize(
    ("condition", "status", "reason", "wrong", "in_service"),
    [
        (condition_for(WELL), "True", "Sharing", "", "1 of 1"),
        (condition_for(WELL, fallen="too old"), "True", "NotIsolated", "", "1 of 1"),
        (condition_for(WELL, LOST), "True", "SomeGPUsUnhealthy", "GPU 1: GPU is lost; ", "1 of 2"),
        (condition_for(WELL, CORDONED), "True", "Sharing", "GPU 1: cordoned; ", "1 of 2"),
        (condition_for(LOST), "False", "GPUUnhealthy", "GPU 1: GPU is lost; ", "0 of 1"),
        (condition_for(WELL, access="no CDI"), "False", "CDIUnavailable", "no CDI; ", "1 of 1"),
        (
            condition_for(WELL, isolation="no library"),
            "False",
            "IsolationUnavailable",
            "no library; ",
            "1 of 1",
        ),
    ],
    ids=lambda one: getattr(one, "reason", ""),
)
def test_the_condition_contains_mode_unit_backend_and_faults(
    condition: Condition, status: str, reason: str, wrong: str, in_service: str
) -> None:
    message = f"{wrong}mode cgpu, unit 128MiB, {in_service} GPUs in service, isolation {PRELOAD}"
    assert condition == Condition(status, reason, message)


@pytest.mark.parametrize(
    ("condition", "status", "reason", "wrong"),
    [
        (condition_for(HELD), "True", "DrainingPreviousMode", ""),
        (condition_for(HELD, LOST), "True", "SomeGPUsUnhealthy", "GPU 1: GPU is lost; "),
        (condition_for(HELD, fallen="too old", active="none: too old"), "True", "NotIsolated", ""),
    ],
)
def test_a_gpu_that_waits_for_its_holder_is_named_and_no_fault(
    condition: Condition, status: str, reason: str, wrong: str
) -> None:
    assert (condition.status, condition.reason) == (status, reason)
    assert condition.message.startswith(f"{wrong}GPU 0: held whole by pod a/b until it ends; mode cgpu, ")
    assert ", 0 of " in condition.message


def test_a_node_with_only_instances_on_demand_is_ready() -> None:
    parent = DivisibleGpu(Device(0, "GPU-a", 81920), Hardware(), ())
    node = NodeDevices("n1", NodeMode.DRA, MemoryUnit.GIB, ())
    nothing_wrong = dict.fromkeys(("access", "isolation", "active", "fallen", "claims"), "")
    condition = condition_of(node, Inventory(divisible=(parent,)), **nothing_wrong)
    assert (condition.status, condition.reason) == ("True", "Sharing")
    assert "0 of 0 GPUs in service, MIG instances on demand on 1" in condition.message


def test_a_failing_driver_hides_all_other_faults() -> None:
    trouble = Trouble("DriverNotFound", "no driver. Install it")
    expected = Condition("False", "DriverNotFound", "no driver. Install it")
    assert condition_for(trouble=trouble) == condition_for(LOST, trouble=trouble) == expected


def test_the_length_of_a_message_is_limited() -> None:
    assert len(condition_for(WELL, access="x" * 9999).message) == 2048


def test_lost_gpus_are_the_reason_and_not_that_none_is_found() -> None:
    condition = condition_for(LOST, trouble=Trouble("NoGPU", "check the hardware"))
    assert (condition.status, condition.reason) == ("False", "GPUUnhealthy")
    assert condition_for(trouble=Trouble("NoGPU", "check the hardware")).reason == "NoGPU"


def test_an_unknown_mode_is_quoted_and_a_known_one_is_not() -> None:
    assert mislabelled("label a=b is unknown") == Condition("False", "UnknownGPUMode", "label a=b is unknown")
    assert mislabelled("") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (condition_for(WELL), ("Unknown", "AgentStopped")),
        (condition_for(WELL, LOST), ("Unknown", "AgentStopped")),
        (condition_for(WELL, fallen="the driver is too old"), ("Unknown", "NotIsolated")),
        (condition_for(LOST), ("False", "GPUUnhealthy")),
    ],
)
def test_when_its_agent_stops_a_ready_node_becomes_unknown(before: Condition, after: tuple[str, str]) -> None:
    condition = stopped(before)
    assert (condition.status, condition.reason) == after
    assert before.message in condition.message
