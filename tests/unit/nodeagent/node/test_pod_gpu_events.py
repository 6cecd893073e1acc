"""Events of pods about their GPUs, if the GPUs or the records change in between."""

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
class RecordedEvents:
    """The reasons of all events, each with the pod."""

    events: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def record(self, regarding: ObjectReference, *, reason: str, note: str, **_: Any) -> None:
        self.events.append((regarding.name, reason))
        self.notes.append(note)


@dataclass
class Bed:
    """A node with two GPUs, and pods on it."""

    recorded: RecordedEvents = field(default_factory=RecordedEvents)

    def __post_init__(self) -> None:
        book = NodeAllocations(NodeDevices("n1", NodeMode.SHARE, MemoryUnit.GIB, WELL))
        self.pods = PodsOnNode(book, ExclusivePods(), self.recorded, lambda: None)
        self.pods.rebuild()

    def put(self, made: dict[str, Any], on: int) -> None:
        decide(made, GPUS, on)
        bound = bound_pod(decode_pod(made))
        assert bound is not None
        self.pods.upsert(bound)


def test_a_gpu_that_disappeared_is_not_back() -> None:
    bed = Bed()
    bed.put(pod("a", container("c", 3)), on=0)
    for devices in ((LOST, WELL[1]), (WELL[1],), (LOST, WELL[1])):
        bed.pods.report_gpus(devices)
    assert bed.recorded.events == [("a", "PodGPUUnhealthy")]
    bed.pods.report_gpus(WELL)
    assert bed.recorded.events == [("a", "PodGPUUnhealthy"), ("a", "PodGPURecovered")]


def test_the_event_of_a_recovered_gpu_names_it_as_its_fault_did() -> None:
    bed = Bed()
    bed.put(pod("a", container("c", 3)), on=0)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.pods.report_gpus(WELL)
    gone, back = (note.partition(", which")[0] for note in bed.recorded.notes)
    assert gone == back == f"GPU 0 ({WELL[0].uuid})"


def test_a_pod_whose_record_names_another_gpu_now_gets_no_events_of_the_old_one() -> None:
    bed, made = Bed(), pod("a", container("c", 3))
    bed.put(made, on=0)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.put(made, on=1)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.pods.report_gpus(WELL)
    assert bed.recorded.events == [("a", "PodGPUUnhealthy")]


def test_a_pod_placed_on_a_gpu_out_of_service_gets_an_event_too() -> None:
    bed = Bed()
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.put(pod("late", container("c", 3)), on=0)
    bed.pods.report_gpus((LOST, WELL[1]))
    bed.pods.report_gpus((LOST, WELL[1]))
    assert bed.recorded.events == [("late", "PodGPUUnhealthy")]
