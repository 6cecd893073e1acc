"""What pods are told of GPUs that they hold, where the GPUs or their records change meanwhile."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import ObjectReference, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import bound_pod
from gpushare.nodeagent.driver.nvml import FoundGpu
from gpushare.nodeagent.reconcile.pod_handler import PodsOnNode
from tests.integration.nodeagent.cluster_objects import container, decide, pod
from tests.integration.nodeagent.scripted_nvml import gpu

GPUS: list[FoundGpu] = [gpu(0), gpu(1)]
WELL = tuple(Device(one.index, one.uuid, one.total_mib) for one in GPUS)
LOST = msgspec.structs.replace(WELL[0], healthy=False, reason="GPU is lost")


@dataclass
class Told:
    """The reasons of all events, each with the pod."""

    events: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def record(self, regarding: ObjectReference, *, reason: str, note: str, **_: Any) -> None:
        self.events.append((regarding.name, reason))
        self.notes.append(note)


@dataclass
class Bed:
    """A node with two GPUs, and pods on it."""

    told: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        book = NodeAllocations(NodeDevices("n1", NodeMode.SHARE, MemoryUnit.GIB, WELL))
        self.pods = PodsOnNode(book, ExclusivePods(), self.told, lambda: None)
        self.pods.rebuild()

    def put(self, made: dict[str, Any], on: int) -> None:
        decide(made, GPUS, on)
        bound = bound_pod(decode_pod(made))
        assert bound is not None
        self.pods.upsert(bound)


def test_a_gpu_that_is_not_found_any_more_is_not_back() -> None:
    bed = Bed()
    bed.put(pod("a", container("c", 3)), on=0)
    for devices in ((LOST, WELL[1]), (WELL[1],), (LOST, WELL[1])):
        bed.pods.report_gpus(devices)
    assert bed.told.events == [("a", "PodGPUUnhealthy")]
    bed.pods.report_gpus(WELL)
    assert bed.told.events == [("a", "PodGPUUnhealthy"), ("a", "PodGPURecovered")]


def test_what_is_told_of_a_gpu_that_is_back_names_it_as_its_fault_did() -> None:
    bed = Bed()
    bed.put(pod("a", container("c", 3)), on=0)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.pods.report_gpus(WELL)
    gone, back = (note.partition(", which")[0] for note in bed.told.notes)
    assert gone == back == f"GPU 0 ({WELL[0].uuid})"


def test_a_pod_whose_record_names_another_gpu_now_hears_nothing_of_the_old_one() -> None:
    bed, made = Bed(), pod("a", container("c", 3))
    bed.put(made, on=0)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.put(made, on=1)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.pods.report_gpus(WELL)
    assert bed.told.events == [("a", "PodGPUUnhealthy")]


def test_a_pod_that_comes_to_a_gpu_out_of_service_is_told_too() -> None:
    bed = Bed()
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.put(pod("late", container("c", 3)), on=0)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.pods.report_gpus((LOST, WELL[1]))
    assert bed.told.events == [("late", "PodGPUUnhealthy")]
