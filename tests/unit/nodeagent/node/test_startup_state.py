"""What the node object contains when its agent starts."""

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.driver.discovery import Inventory
from gpushare.nodeagent.driver.nvml import Unreadable
from gpushare.nodeagent.node.node_handler import ReportingNode, decode_reporting_node
from gpushare.nodeagent.node.startup_state import NodeAtStart

GPUS = tuple(Device(index, f"GPU-{index}", 16384) for index in range(3))
NEAR = ((0, 5, 1), (5, 0, 2), (1, 2, 0))
LOST = Unreadable(1, "GPU is lost")


def node(*devices: Device, reason: str = "Sharing", text: str = "") -> ReportingNode:
    description = text or devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, devices)
    condition = {"type": names.CONDITION_READY, "status": "True", "reason": reason}
    _, made = decode_reporting_node(
        msgspec.json.encode(
            {
                "metadata": {"name": "n1", "annotations": {names.ANN_DEVICES: description}},
                "status": {"conditions": [condition]},
            }
        )
    )
    return made


def sick(device: Device, reason: str = "GPU is lost") -> Device:
    return msgspec.structs.replace(device, healthy=False, reason=reason)


def test_gpus_that_were_out_of_service_are_known_with_the_reason() -> None:
    before = NodeAtStart.of(node(GPUS[0], sick(GPUS[1]), reason="SomeGPUsUnhealthy"))
    assert before.out == {"GPU-1": "GPU is lost"}
    assert before.reasons == ["SomeGPUsUnhealthy"]


def test_a_gpu_that_waited_for_the_pod_that_holds_it_was_not_out_of_service() -> None:
    kept_back = msgspec.structs.replace(sick(GPUS[1], "held whole by pod a/b until it ends"), kept_back=True)
    before = NodeAtStart.of(node(GPUS[0], kept_back, reason="DrainingPreviousMode"))
    assert before.out == {}
    inventory = before.complete(Inventory((GPUS[0],), unreadable=(Unreadable(1, "GPU is lost"),)))
    assert [one.is_faulty for one in inventory.devices] == [False, True], "one that is lost meanwhile is"


@pytest.mark.parametrize(("reason", "out"), [("DriverFailed", set()), ("NoGPU", {"GPU-0"})])
def test_gpus_of_a_faulty_driver_were_not_out_of_service_themselves(reason: str, out: set[str]) -> None:
    assert NodeAtStart.of(node(sick(GPUS[0]), reason=reason)).out.keys() == out


def test_faults_reported_in_addition_to_the_condition_are_known_too() -> None:
    used = msgspec.structs.replace(GPUS[2], foreign_mib=512)
    assert NodeAtStart.of(node(used, reason="NotIsolated")).reasons == [
        "IsolationUnavailable",
        f"UnmanagedGPUUsage GPU {GPUS[2].uuid}",
    ]


@pytest.mark.parametrize("text", ["{", '{"version": 9}'])
def test_an_unreadable_description_is_ignored(text: str) -> None:
    before = NodeAtStart.of(node(text=text))
    assert (before.devices, before.reasons) == ({}, ["Sharing"])


def test_a_lost_gpu_stays_described_when_the_agent_restarts() -> None:
    used = msgspec.structs.replace(GPUS[1], foreign_mib=512)
    found = Inventory(
        (GPUS[0], GPUS[2]),
        left_out=(str(LOST), "GPU 3 (GPU-3) is in MIG mode"),
        near=((0, 1), (1, 0)),
        unreadable=(LOST,),
    )
    whole = NodeAtStart.of(node(GPUS[0], used, GPUS[2])).complete(found)
    assert whole.devices == (GPUS[0], sick(GPUS[1]), GPUS[2])
    assert whole.left_out == ("GPU 3 (GPU-3) is in MIG mode",)
    assert whole.near == ((0, 0, 1), (0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(Inventory(GPUS), id="all are there"),
        pytest.param(Inventory(GPUS[:1]), id="NVML does not count it: it was taken out"),
        pytest.param(
            Inventory((GPUS[0], Device(1, "GPU-new", 81920)), unreadable=(LOST,)),
            id="another is in its place",
        ),
        pytest.param(Inventory(GPUS[:1], unreadable=(Unreadable(7, "?"),)), id="one that nobody knew"),
    ],
)
def test_nothing_else_is_remembered(found: Inventory) -> None:
    assert NodeAtStart.of(node(*GPUS)).complete(found) == found


def test_without_a_description_there_is_nothing_to_remember() -> None:
    assert NodeAtStart().complete(Inventory(unreadable=(LOST,))) == Inventory(unreadable=(LOST,))
    assert (NodeAtStart().out, NodeAtStart().reasons) == ({}, [""])
