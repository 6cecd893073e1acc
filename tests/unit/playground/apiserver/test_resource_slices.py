"""How many devices a ResourceSlice may have."""

from typing import Any

import pytest

from gpushare_playground.apiserver.errors import ApiError
from tests.unit.playground.apiserver.plane import Plane

TAINT = {"key": "gpushare.dev/unhealthy", "effect": "NoSchedule"}


def slice_of(count: int, **first: Any) -> dict[str, Any]:
    devices = [{"name": f"gpu-{number}"} for number in range(count)]
    devices[0] |= first
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n1-gpushare.dev"},
        "spec": {"driver": "gpushare.dev", "nodeName": "n1", "pool": pool, "devices": devices},
    }


@pytest.mark.parametrize(
    ("most", "first"), [(128, {}), (64, {"taints": [TAINT]}), (64, {"consumesCounters": [{}]})]
)
def test_fewer_where_one_has_a_taint_or_consumes_counters(most: int, first: dict[str, Any]) -> None:
    Plane().create("resourceslices", slice_of(most, **first))
    with pytest.raises(ApiError, match=f"spec.devices: Too many: {most + 1}: must have at most {most} items"):
        Plane().create("resourceslices", slice_of(most + 1, **first))
