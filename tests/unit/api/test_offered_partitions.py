"""Free MIG instances on demand: what kube-scheduler's counters leave."""

import json

from gpushare.api.allocation.resource_claim import decode_resource_claims
from gpushare.api.allocation.resource_slice import decode_resource_slices, offered_gpus


def slices(*starts_and_sizes: tuple[str, int, int]) -> bytes:
    devices = [
        {
            "name": name,
            "allowMultipleAllocations": True,
            "capacity": {"memory": {"value": "10Gi"}, "compute": {"value": "100"}, "shares": {"value": "16"}},
            "consumesCounters": [
                {
                    "counterSet": "gpu-a",
                    "counters": {
                        f"memory-slice-{number}": {"value": "1"} for number in range(start, start + size)
                    },
                }
            ],
        }
        for name, start, size in starts_and_sizes
    ]
    counters = {
        "name": "gpu-a",
        "counters": {f"memory-slice-{number}": {"value": "1"} for number in range(8)},
    }
    own = {"driver": "gpushare.dev", "nodeName": "n1", "pool": {"name": "n1", "generation": 1}}
    items = [{"spec": own | {"sharedCounters": [counters]}}, {"spec": own | {"devices": devices}}]
    return json.dumps({"items": items}).encode()


def claim(device: str) -> dict[str, object]:
    result = {"request": "gpu", "driver": "gpushare.dev", "pool": "n1", "device": device}
    result["consumedCapacity"] = {"memory": "1Gi", "compute": "0", "shares": "1"}  # type: ignore[assignment]
    return {
        "metadata": {"uid": device, "namespace": "default", "name": device},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def test_instances_that_others_exclude_are_not_free() -> None:
    found = decode_resource_slices(
        slices(("small-0", 0, 1), ("small-4", 4, 1), ("half-4", 4, 4), ("whole", 0, 8))
    )
    assert len(offered_gpus(found, [])) == 4
    claims = decode_resource_claims(json.dumps({"items": [claim("small-4")]}).encode())
    assert {gpu.device: gpu.free_mib for gpu in offered_gpus(found, claims)} == {
        "small-0": 10 * 1024,
        "small-4": 9 * 1024,
    }
