"""A node's GPUs as a ResourceSlice, and when it is written."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device
from gpushare.nodeagent.dra.partitions import partitions_of
from gpushare.nodeagent.dra.slices import Owner, Part, Published, devices_of, parts_of, read_slice, slices_of
from gpushare.nodeagent.driver.discovery import DivisibleGpu
from gpushare.nodeagent.driver.nvml import Hardware
from gpushare.nodeagent.driver.placements import Placement
from gpushare.nodeagent.settings import DefaultShare

UUID = "GPU-8A6F0000-1111-2222-3333-444444444444"
GPU = Device(0, UUID, 15360, model="Tesla T4", numa_node=1)
T4 = Hardware("Turing", "7.5", "580.65.06", "pci0000:17")
NODE = Owner("n1", "node-uid")


def device(gpu: Device = GPU, hardware: Hardware = T4) -> dict[str, Any]:
    (found,) = devices_of([gpu], {gpu.uuid: hardware}, 16)
    return found


def slice_of(
    owner: Owner, devices: Sequence[dict[str, Any]], before: Published | None
) -> dict[str, Any] | None:
    """The only slice to write, if any, of a node without MIG instances on demand."""
    written = slices_of(owner, parts_of(owner.name, devices, ()), {before.name: before} if before else {})
    return written[0][1] if written else None


def published(body: dict[str, Any], **metadata: str) -> Published:
    """The slice as returned by an API server after a write of ``body``, with quantities in its own format."""
    text = json.dumps(body).replace('"15360Mi"', '"15Gi"')
    written = json.loads(text)
    written["metadata"] |= {"uid": "s", "resourceVersion": "7", **metadata}
    return read_slice(json.dumps(written).encode())


def test_a_gpu_is_one_device_that_may_be_allocated_many_times_by_capacity() -> None:
    found = device()
    assert found["name"] == UUID.lower()
    assert found["allowMultipleAllocations"] is True
    assert found["capacity"] == {
        "memory": {
            "value": "15360Mi",
            "requestPolicy": {
                "default": "15360Mi",
                "validRange": {"min": "1Mi", "max": "15360Mi", "step": "1Mi"},
            },
        },
        "compute": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "5"}},
        },
        "shares": {"value": "16", "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }


def test_claims_get_what_pods_of_an_earlier_mode_and_unmanaged_processes_leave() -> None:
    def values(gpu: Device, *held: GpuShare) -> dict[str, str]:
        devices = devices_of([gpu], {}, 16, held={gpu.uuid: held})
        return {name: one["value"] for device in devices for name, one in device["capacity"].items()}

    def share(mib: int, core_percent: int) -> GpuShare:
        return GpuShare(UUID, 0, mib, 1, 15, core_percent)

    assert values(GPU, share(3072, 33), share(1024, 0)) == {
        "memory": "11264Mi",
        "compute": "65",
        "shares": "14",
    }
    assert values(replace(GPU, foreign_mib=1024))["memory"] == "14336Mi"
    (shared,) = devices_of([GPU], {}, 16, held={UUID: [share(3072, 0)]})
    assert shared["capacity"]["memory"]["requestPolicy"] == {
        "default": "15360Mi",
        "validRange": {"min": "1Mi", "step": "1Mi"},
    }, "a claim for a whole GPU does not fit"
    # Not a range of one value: an API server refuses it.
    (full,) = devices_of([GPU], {}, 16, held={UUID: [share(1024, 97)]})
    assert full["capacity"]["compute"] == {
        "value": "0",
        "requestPolicy": {"default": "0", "validValues": ["0"]},
    }
    assert values(GPU, share(15359, 0)) == {}
    assert values(GPU, *[share(1, 0)] * 16) == {}


def test_a_default_share_is_what_a_claim_without_amounts_consumes_and_never_less() -> None:
    default = DefaultShare(8192, 30)
    (found,) = devices_of([GPU], {}, 16, default=default)
    policies = {name: one["requestPolicy"] for name, one in found["capacity"].items()}
    assert (policies["memory"]["default"], policies["memory"]["validRange"]["max"]) == ("8192Mi", "15360Mi")
    assert (policies["compute"]["default"], policies["compute"]["validRange"]["max"]) == ("30", "100")
    # A GPU with less left takes no such claim. The API server refuses a default above the maximum, so there is none.
    less = GpuShare(UUID, 0, 8192, 1, 15, 80)
    (found,) = devices_of([GPU], {}, 16, held={UUID: [less]}, default=default)
    assert found["capacity"] == {
        "memory": {
            "value": "7168Mi",
            "requestPolicy": {"default": "8192Mi", "validRange": {"min": "1Mi", "step": "1Mi"}},
        },
        "compute": {
            "value": "20",
            "requestPolicy": {"default": "30", "validRange": {"min": "0", "step": "5"}},
        },
        "shares": {"value": "15", "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }
    without_compute = GpuShare(UUID, 0, 1024, 1, 15, 100)
    assert devices_of([GPU], {}, 16, held={UUID: [without_compute]}, default=default) == ()


def test_claims_can_select_by_properties_of_the_gpu() -> None:
    assert device()["attributes"] == {
        "uuid": {"string": UUID},
        "productName": {"string": "Tesla T4"},
        "architecture": {"string": "Turing"},
        "cudaComputeCapability": {"version": "7.5.0"},
        "driverVersion": {"version": "580.65.6"},
        "numaNode": {"int": 1},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"},
    }


def test_an_instance_can_be_selected_by_its_gpu_and_profile() -> None:
    instance = Device(20, "MIG-8e24043d-bc3b-5387-9525-b78890881fe2", 40192)
    found = device(instance, Hardware(parent_uuid=UUID, profile="3g.40gb"))
    assert found["name"] == instance.uuid.lower()
    assert found["capacity"]["memory"]["value"] == "40192Mi"
    assert found["attributes"] == {
        "uuid": {"string": instance.uuid},
        "parentUUID": {"string": UUID},
        "profile": {"string": "3g.40gb"},
    }


def test_unknown_properties_of_a_gpu_are_left_out() -> None:
    assert device(Device(0, UUID, 15360), Hardware())["attributes"] == {"uuid": {"string": UUID}}


LOST = Device(0, UUID, 15360, healthy=False, reason="GPU is lost: Unknown Error (999)")


def test_a_gpu_out_of_service_has_a_taint_and_keeps_its_claims_unless_it_is_dead() -> None:
    lost = {"key": "gpushare.dev/unhealthy", "value": "GPU-is-lost-Unknown-Error-999"}
    assert device(LOST)["taints"] == [{**lost, "effect": "NoSchedule"}]
    (dead,) = devices_of([LOST], {}, 16, {UUID})
    assert dead["taints"] == [{**lost, "effect": "NoExecute"}]
    cordoned = Device(0, UUID, 15360, cordoned=True)
    assert device(cordoned)["taints"] == [{"key": "gpushare.dev/cordoned", "effect": "NoSchedule"}]
    assert "taints" not in device()


@given(st.text())
def test_any_reason_is_converted_to_a_label_value(reason: str) -> None:
    (taint,) = device(Device(0, UUID, 15360, healthy=False, reason=reason))["taints"]
    assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?", taint["value"])


def test_a_gpu_that_pods_hold_from_another_mode_is_not_offered() -> None:
    held = Device(0, UUID, 15360, healthy=False, reason="held by pod default/a", kept_back=True)
    assert devices_of([held], {}, 16) == ()


def test_a_taint_keeps_the_time_set_by_the_api_server() -> None:
    first = slice_of(NODE, [device(LOST)], None)
    assert first is not None
    (taint,) = first["spec"]["devices"][0]["taints"]
    taint["timeAdded"] = "2026-11-28T18:00:00Z"
    before = published(first)
    assert slice_of(NODE, [device(LOST)], before) is None
    other = Device(0, UUID, 15360, healthy=False, reason="critical error XID 79")
    second = slice_of(NODE, [device(other)], before)
    assert second is not None
    assert second["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-11-28T18:00:00Z"
    dead = slice_of(NODE, devices_of([LOST], {UUID: T4}, 16, {UUID}), before)
    assert dead is not None
    assert "timeAdded" not in dead["spec"]["devices"][0]["taints"][0], "it is another taint"


def test_a_slice_belongs_to_its_node_and_begins_with_generation_1() -> None:
    body = slice_of(NODE, [device()], None)
    assert body is not None
    assert body["metadata"] == {
        "name": "n1-gpushare.dev",
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": True}
        ],
    }
    assert body["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}


def test_an_unchanged_slice_is_not_written_again() -> None:
    body = slice_of(NODE, [device()], None)
    assert body is not None
    assert slice_of(NODE, [device()], published(body)) is None


@pytest.mark.parametrize(
    ("owner", "gpu"),
    [
        (NODE, Device(0, UUID, 15000)),
        (NODE, Device(0, UUID, 15360, model="Tesla T4", numa_node=0)),
        (Owner("n1", "another-node-of-that-name"), GPU),
    ],
)
def test_a_change_is_written_with_the_next_generation_over_the_version_that_was_seen(
    owner: Owner, gpu: Device
) -> None:
    body = slice_of(NODE, [device()], None)
    assert body is not None
    changed = slice_of(owner, [device(gpu)], published(body))
    assert changed is not None
    assert changed["spec"]["pool"]["generation"] == 2
    assert changed["metadata"]["resourceVersion"] == "7"
    assert changed["metadata"]["uid"] == "s"


def test_a_change_of_one_of_several_slices_is_one_write_and_keeps_their_generation() -> None:
    def parts(gpu: Device) -> list[Part]:
        consuming = device() | {"name": "mig", "consumesCounters": []}
        return parts_of("n1", [device(gpu), consuming | {"consumesCounters": [{}]}], [{"name": "c"}])

    there = {part.name: published(body) for part, body in slices_of(NODE, parts(GPU), {})}
    assert {one.generation for one in there.values()} == {1}
    assert slices_of(NODE, parts(GPU), there) == []
    ((part, body),) = slices_of(NODE, parts(LOST), there)
    assert (part.name, body["spec"]["pool"]["generation"]) == ("n1-gpushare.dev", 1)
    del there[part.name]
    rewritten = slices_of(NODE, parts(LOST), there)
    assert [body["spec"]["pool"]["generation"] for _, body in rewritten] == [2, 2, 2]
    alone = slices_of(NODE, parts_of("n1", [device()], ()), there)
    assert [body["spec"]["pool"]["generation"] for _, body in alone] == [2], "the others are to be deleted"


@pytest.mark.parametrize("overlapping", [0, 70])
def test_no_slice_has_more_devices_than_api_servers_take_where_one_has_a_taint(overlapping: int) -> None:
    existing = [device(replace(LOST if one == 3 else GPU, uuid=f"MIG-{one}")) for one in range(112)]
    consuming = [device() | {"name": f"mig-{one}", "consumesCounters": [{}]} for one in range(overlapping)]
    parts = parts_of("n1", existing + consuming, [{"name": "c"}] if overlapping else ())
    assert max(len(part.devices) for part in parts) <= 64
    assert [part.name for part in parts if part.devices] == [
        "n1-gpushare.dev",
        "n1-gpushare.dev-1",
        *(f"n1-gpushare.dev-mig-{one}" for one in range(2 if overlapping else 0)),
    ]
    assert [one["name"] for part in parts for one in part.devices] == [
        one["name"] for one in existing + consuming
    ]
    written = slices_of(NODE, parts, {})
    assert {body["spec"]["pool"]["resourceSliceCount"] for _, body in written} == {len(parts)}


def test_an_api_server_without_the_feature_is_detected_by_the_field_it_drops() -> None:
    body = slice_of(NODE, [device()], None)
    assert body is not None
    assert published(body).is_shared
    del body["spec"]["devices"][0]["allowMultipleAllocations"]
    assert not published(body).is_shared


def test_instances_on_demand_have_the_default_of_the_cluster_for_claims_without_an_amount() -> None:
    half = Placement(UUID, "3g.40gb", 9, 4, 4, 40192)
    found = DivisibleGpu(GPU, Hardware(), (half,))
    devices = partitions_of([found], (), 16, default=DefaultShare(4096, 20))
    defaults = {
        name: one["requestPolicy"]["default"]
        for device in devices
        for name, one in device["capacity"].items()
    }
    assert defaults == {"memory": "4096Mi", "compute": "20", "shares": "1"}
