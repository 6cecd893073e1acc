"""What a node says of sharing, in one line."""

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


def said(*devices: Device, trouble: Trouble | None = None, **wrong: str) -> Condition:
    node = NodeDevices("n1", NodeMode.CGPU, MemoryUnit.MIB_128, devices)
    told = {"access": "", "isolation": "", "fallen": "", "claims": "", "active": PRELOAD, **wrong}
    return condition_of(node, Inventory(devices, trouble), **told)


@pytest.mark.parametrize(
    ("condition", "status", "reason", "wrong", "in_service"),
    [
        (said(WELL), "True", "Sharing", "", "1 of 1"),
        (said(WELL, fallen="too old"), "True", "NotIsolated", "", "1 of 1"),
        (said(WELL, LOST), "True", "SomeGPUsUnhealthy", "GPU 1: GPU is lost; ", "1 of 2"),
        (said(WELL, CORDONED), "True", "Sharing", "GPU 1: cordoned; ", "1 of 2"),
        (said(LOST), "False", "GPUUnhealthy", "GPU 1: GPU is lost; ", "0 of 1"),
        (said(WELL, access="no CDI"), "False", "CDIUnavailable", "no CDI; ", "1 of 1"),
        (said(WELL, isolation="no library"), "False", "IsolationUnavailable", "no library; ", "1 of 1"),
    ],
    ids=lambda one: getattr(one, "reason", ""),
)
def test_a_node_says_mode_unit_backend_and_what_is_wrong(
    condition: Condition, status: str, reason: str, wrong: str, in_service: str
) -> None:
    message = f"{wrong}mode cgpu, unit 128MiB, {in_service} GPUs in service, isolation {PRELOAD}"
    assert condition == Condition(status, reason, message)


@pytest.mark.parametrize(
    ("condition", "status", "reason", "wrong"),
    [
        (said(HELD), "True", "DrainingPreviousMode", ""),
        (said(HELD, LOST), "True", "SomeGPUsUnhealthy", "GPU 1: GPU is lost; "),
        (said(HELD, fallen="too old", active="none: too old"), "True", "NotIsolated", ""),
    ],
)
def test_a_gpu_that_waits_for_the_pod_that_holds_it_is_named_and_no_fault(
    condition: Condition, status: str, reason: str, wrong: str
) -> None:
    assert (condition.status, condition.reason) == (status, reason)
    assert condition.message.startswith(f"{wrong}GPU 0: held whole by pod a/b until it ends; mode cgpu, ")
    assert ", 0 of " in condition.message


def test_a_node_with_instances_on_demand_alone_is_ready() -> None:
    parent = DivisibleGpu(Device(0, "GPU-a", 81920), Hardware(), ())
    node = NodeDevices("n1", NodeMode.DRA, MemoryUnit.GIB, ())
    nothing_wrong = dict.fromkeys(("access", "isolation", "active", "fallen", "claims"), "")
    condition = condition_of(node, Inventory(divisible=(parent,)), **nothing_wrong)
    assert (condition.status, condition.reason) == ("True", "Sharing")
    assert "0 of 0 GPUs in service, MIG instances on demand on 1" in condition.message


def test_a_driver_that_does_not_work_is_all_that_is_said() -> None:
    trouble = Trouble("DriverNotFound", "no driver. Install it")
    expected = Condition("False", "DriverNotFound", "no driver. Install it")
    assert said(trouble=trouble) == said(LOST, trouble=trouble) == expected


def test_a_message_has_an_end() -> None:
    assert len(said(WELL, access="x" * 9999).message) == 2048


def test_lost_gpus_are_the_reason_and_not_that_none_is_found() -> None:
    condition = said(LOST, trouble=Trouble("NoGPU", "check the hardware"))
    assert (condition.status, condition.reason) == ("False", "GPUUnhealthy")
    assert said(trouble=Trouble("NoGPU", "check the hardware")).reason == "NoGPU"


def test_an_unknown_mode_is_said_as_it_is_told_and_a_known_one_is_not() -> None:
    assert mislabelled("label a=b is unknown") == Condition("False", "UnknownGPUMode", "label a=b is unknown")
    assert mislabelled("") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (said(WELL), ("Unknown", "AgentStopped")),
        (said(WELL, LOST), ("Unknown", "AgentStopped")),
        (said(WELL, fallen="the driver is too old"), ("Unknown", "NotIsolated")),
        (said(LOST), ("False", "GPUUnhealthy")),
    ],
)
def test_when_its_agent_ends_a_node_that_was_ready_is_not_known_to_be(
    before: Condition, after: tuple[str, str]
) -> None:
    condition = stopped(before)
    assert (condition.status, condition.reason) == after
    assert before.message in condition.message
