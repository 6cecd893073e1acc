"""What was allocated to a ResourceClaim, as shares of GPUs."""

import json
from typing import Any

import pytest

from gpushare.api.node.device import Device
from gpushare.nodeagent.dra.claims import ClaimReference, allocated_devices, shares_of
from gpushare.nodeagent.errors import AllocationRefused
from tests.integration.nodeagent.node.scripted_dra_kubelet import allocated

GPUS = (Device(0, "GPU-A", 15360), Device(1, "GPU-B", 16384))


def reference(claim: dict[str, Any]) -> ClaimReference:
    metadata = claim["metadata"]
    return ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])


def shares(claim: dict[str, Any]) -> dict[str, tuple[int, int, int, int]]:
    """By UUID: MiB, units, units of the GPU, percent of compute."""
    named = reference(claim)
    found = shares_of(named, allocated_devices(json.dumps(claim).encode(), named, "n1").devices, GPUS)
    return {one.uuid: (one.mib, one.units, one.device_units, one.core_percent) for one in found}


def refusal(claim: dict[str, Any]) -> str:
    with pytest.raises(AllocationRefused) as refused:
        shares(claim)
    assert refused.value.subject == "ResourceClaim default/c"
    return refused.value.problem


def test_consumed_capacity_is_the_share() -> None:
    assert shares(allocated("c", ("gpu-a", "3Gi", 30))) == {"GPU-A": (3072, 3072, 15360, 30)}
    assert shares(allocated("c", ("gpu-b", "1536Mi", 0))) == {"GPU-B": (1536, 1536, 16384, 0)}


def test_requests_on_one_gpu_are_one_share_of_it() -> None:
    assert shares(allocated("c", ("gpu-a", "1Gi", 10), ("gpu-a", "2Gi", 20)))["GPU-A"][0] == 3072
    assert shares(allocated("c", ("gpu-a", "1Gi", 10), ("gpu-a", "2Gi", 20)))["GPU-A"][3] == 30
    assert shares(allocated("c", ("gpu-a", "1Gi", 10), ("gpu-a", "2Gi", 0)))["GPU-A"][3] == 0


def test_devices_of_other_drivers_and_nodes_are_skipped() -> None:
    claim = allocated("c", ("gpu-a", "1Gi", 0))
    results = claim["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "driver": "gpu.nvidia.com"}, {**results[0], "pool": "n2"}]
    assert list(shares(claim)) == ["GPU-A"]


def test_an_alternative_of_a_request_is_reported_to_the_kubelet_as_the_request() -> None:
    claim = allocated("c", ("gpu-a", "1Gi", 0), request="gpu/small")
    (found,) = allocated_devices(json.dumps(claim).encode(), reference(claim), "n1").devices
    assert found.request == "gpu"


CONFIG = {"apiVersion": "gpushare.dev/v1", "kind": "ShareConfig"}


def configured(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"opaque": {"driver": "gpushare.dev", "parameters": parameters}, **more}


def test_unknown_parameters_are_refused_rather_than_ignored() -> None:
    claim = allocated("c", ("gpu-a", "1Gi", 0))
    devices = claim["status"]["allocation"]["devices"]
    devices["config"] = [{"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}]
    assert list(shares(claim)) == ["GPU-A"]
    for parameters, why in (
        ({}, "Object missing required field `apiVersion`"),
        ({**CONFIG, "kind": "GpuConfig"}, "Invalid enum value 'GpuConfig' - at `$.kind`"),
        ({**CONFIG, "timeSlice": 3}, "Object contains unknown field `timeSlice`"),
        ({**CONFIG, "computePolicy": "soft"}, "Invalid enum value 'soft' - at `$.computePolicy`"),
    ):
        devices["config"][1:] = [configured(parameters)]
        assert f"its parameters for driver gpushare.dev: {why}" in refusal(claim)


def test_parameters_of_the_claim_override_those_of_its_class_field_by_field() -> None:
    claim = allocated("c", ("gpu-a", "1Gi", 30))
    claim["status"]["allocation"]["devices"]["config"] = [
        configured({**CONFIG, "computePolicy": "work-conserving", "computeClass": "batch"}),
        configured({**CONFIG, "computeClass": "latency"}, requests=["gpu0"]),
    ]
    found = allocated_devices(json.dumps(claim).encode(), reference(claim), "n1").config
    assert (found.core_policy, found.compute_class) == ("idle", "latency")


def test_parameters_for_some_requests_are_refused_as_a_claim_is_one_share() -> None:
    claim = allocated("c", ("gpu-a", "1Gi", 30), ("gpu-b", "1Gi", 30))
    config = configured({**CONFIG, "computePolicy": "hard"}, requests=["gpu0"])
    claim["status"]["allocation"]["devices"]["config"] = [config]
    assert "apply only to some of its requests" in refusal(claim)


def test_admin_access_is_for_a_whole_claim() -> None:
    claim = allocated("c", ("gpu-a", "0", 0), adminAccess=True)
    (found,) = allocated_devices(json.dumps(claim).encode(), reference(claim), "n1").devices
    assert (found.admin_access, found.mib) == (True, 0)
    mixed = allocated("c", ("gpu-a", "1Gi", 0), ("gpu-b", "1Gi", 0))
    mixed["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert "use a claim for each" in refusal(mixed)


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (allocated("c", ("gpu-c", "1Gi", 0)), "node n1 has no GPU gpu-c now"),
        (allocated("c", ("gpu-a", "1Gi", 0), consumedCapacity=None), "which is not a valid share"),
        (allocated("c", ("gpu-a", "1Gi", 0), consumedCapacity={"memory": "x"}), "is not a valid quantity"),
        (allocated("c"), "it is allocated no GPU of node n1"),
        (
            {"metadata": {"namespace": "default", "name": "c", "uid": "u"}},
            "it is allocated no GPU of node n1",
        ),
    ],
)
def test_an_allocation_that_is_no_share_of_this_node_is_refused(claim: dict[str, Any], why: str) -> None:
    assert why in refusal(claim)


def test_another_claim_of_that_name_is_refused() -> None:
    claim = allocated("c", ("gpu-a", "1Gi", 0))
    with pytest.raises(AllocationRefused, match="the claim was replaced meanwhile"):
        allocated_devices(json.dumps(claim).encode(), ClaimReference("default", "c", "older"), "n1")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"metadata": {"uid": 3}}',
        b"\xff",
        pytest.param(b'{"status": ' + b"[" * 50_000 + b"]" * 50_000, id="deep"),
    ],
)
def test_texts_that_are_no_claim_are_refused(text: bytes) -> None:
    with pytest.raises(AllocationRefused, match="is no claim"):
        allocated_devices(text, ClaimReference("default", "c", "u"), "n1")
