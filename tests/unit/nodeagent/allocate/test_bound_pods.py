"""Pods of the node as records, and what was allocated to them."""

import pytest

from gpushare.api import names
from gpushare.api.errors import MalformedAllocation
from gpushare.api.objects import decode_pod
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.nodeagent.allocate.pod_allocations import BoundPod, allocated_pod, bound_pod, decode_bound_pod
from tests.unit.nodeagent.allocate.allocated_pods import APP, INIT, allocated, node_of, request, undescribed

NODE = node_of(16160, 16160)


def pod(limits: dict[str, str], **more: object) -> dict[str, object]:
    return {
        "metadata": {"name": "a", "namespace": "default", "uid": "u", "annotations": {"other": "x"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
        **more,
    }


def test_a_pod_that_requests_no_gpu_is_ignored() -> None:
    assert bound_pod(decode_pod(pod({"cpu": "1"}))) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_is_ignored(phase: str) -> None:
    assert bound_pod(decode_pod(pod({names.GPU_MEM: "3"}, status={"phase": phase}))) is None


def test_a_request_that_can_never_be_met_is_ignored() -> None:
    assert bound_pod(decode_pod(pod({names.GPU_CORE: "30"}))) is None
    assert bound_pod(decode_pod(pod({names.GPU_MEM: "1.5"}))) is None


def test_the_selection_of_gpus_counts_unless_it_was_broken_after_binding() -> None:
    made = pod({names.GPU_MEM: "3"})
    made["metadata"] = {"name": "a", "uid": "u", "annotations": {names.ANN_GPU_MODEL: "A10"}}
    bound = bound_pod(decode_pod(made))
    assert bound is not None
    assert bound.request.selection == GpuSelection(models=("A10",))
    made["metadata"] = {"name": "a", "uid": "u", "annotations": {names.ANN_GPU_MODEL: ";"}}
    bound = bound_pod(decode_pod(made))
    assert bound is not None
    assert bound.request.selection is None


@pytest.mark.parametrize(("label", "known"), [("batch", "batch"), ("fast", "")])
def test_only_known_compute_classes_are_accepted(label: str, known: str) -> None:
    made = pod({names.GPU_MEM: "3"})
    made["metadata"] = {"name": "a", "uid": "u", "labels": {names.LABEL_POD_COMPUTE_CLASS: label}}
    found = bound_pod(decode_pod(made))
    assert found is not None
    assert found.compute_class == known


def test_only_the_annotations_of_allocation_are_kept() -> None:
    raw = b"""{"metadata": {"name": "a", "namespace": "ns", "uid": "u", "deletionTimestamp": "2026-11-21T08:00:00Z",
      "annotations": {"x": "y", "ALIYUN_COM_GPU_MEM_IDX": "1"}},
      "spec": {"containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": 3}}}]},
      "status": {"phase": "Running"}}"""
    found = decode_bound_pod(raw)
    assert found is not None
    key, record = found
    assert (key, record.annotations) == ("ns/a", {names.ANN_MEM_INDEX: "1"})
    assert (record.terminating, record.running) == (True, True)
    assert record.reference.uid == "u"


def record(annotations: dict[str, str], *asked: tuple[object, int]) -> BoundPod:
    return BoundPod("u", "default", "a", "", request(*asked), annotations)  # type: ignore[arg-type]


def test_without_a_record_there_is_no_claim() -> None:
    assert allocated_pod(record({}, (APP, 3)), NODE) is None


def test_records_of_other_schedulers_are_read_by_index() -> None:
    first = allocated_pod(record({names.ANN_MEM_INDEX: "1", names.ANN_MEM_POD: "3"}, (APP, 3)), NODE)
    second = allocated_pod(
        record({names.ANN_ALLOCATION: '{"0":{"1":3}}', names.ANN_ASSIGNED: "true"}, (APP, 3)), NODE
    )
    assert first is not None
    assert second is not None
    assert first.decided_gpus(first.request.containers[0]) == {NODE.devices[1].uuid}
    assert second.decided_gpus(second.request.containers[0]) == {NODE.devices[1].uuid}
    assert (first.assigned, second.assigned) == (False, True)


def test_an_init_container_missing_from_the_record_is_on_the_gpu_of_its_pod() -> None:
    one = allocated_pod(record({names.ANN_ALLOCATION: '{"0":{"1":3}}'}, (INIT, 2), (APP, 3)), NODE)
    assert one is not None
    assert one.decided_gpus(one.request.containers[0]) == {NODE.devices[1].uuid}


def test_a_record_from_before_the_node_was_described_gets_the_gpus_uuid() -> None:
    made = allocated(undescribed(NODE), "a", 1, request((APP, 3)))
    assert made.allocation.gpus[0].uuid == "n1/1"
    one = allocated_pod(made.bound, NODE)
    assert one is not None
    assert one.by_index
    assert one.allocation.gpus[0].uuid == NODE.devices[1].uuid
    assert one.decided_gpus(one.request.containers[0]) == {NODE.devices[1].uuid}


@pytest.mark.parametrize(
    "annotations",
    [
        {names.ANN_MEM_INDEX: "7", names.ANN_MEM_POD: "3"},
        {names.ANN_MEM_INDEX: "0"},
        {names.ANN_SHARE: "{"},
        {names.ANN_ALLOCATION: '{"0":{"0":3}}', names.ANN_ASSIGNED: "maybe"},
    ],
)
def test_broken_records_are_refused_by_name(annotations: dict[str, str]) -> None:
    with pytest.raises(MalformedAllocation, match=r"^pod default/a: "):
        allocated_pod(record(annotations, (APP, 3)), NODE)
