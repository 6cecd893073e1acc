"""Shares too small for a CUDA context, by its measured size."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_over
from gpushare.api.node.context_cost import can_be_too_small, too_small_anywhere, too_small_there
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request, request_of

HELD = "preload (by CDI): mode cgpu"
#: Measured on an H200: 518 MiB by the driver's count.
H200, T4 = 518, 110


def node(
    *contexts_mib: int, mode: NodeMode = NodeMode.CGPU, isolation: str = HELD, name: str = "n"
) -> NodeDevices:
    devices = tuple(
        Device(number, f"GPU-{name}-{number}", 15360, context_mib=mib)
        for number, mib in enumerate(contexts_mib)
    )
    return NodeDevices(name, mode, MemoryUnit.MIB_128, devices, isolation=isolation)


def requesting(*units: int, init: int = 0, labels: dict[str, str] | None = None) -> Request:
    def one(name: str, amount: int) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {names.GPU_MEM: str(amount)}}}

    spec = {"containers": [one(f"c{number}", amount) for number, amount in enumerate(units)]}
    if init:
        spec["initContainers"] = [one("init", init)]
    request = request_of(decode_pod({"metadata": {"name": "p", "labels": labels or {}}, "spec": spec}))
    assert request is not None
    return request


def there(node: NodeDevices, request: Request) -> list[str]:
    return too_small_there(node, allocate_over(node, node.devices[: request.gpu_count], request))


def test_a_limit_below_a_context_is_reported_with_a_sufficient_one() -> None:
    assert there(node(H200), requesting(4)) == [
        "container c0 has 512 MiB of GPU 0 of node n, less than the 518 MiB that a CUDA context takes there; no CUDA "
        "program can start with that: request 5 units of 128MiB or more of each GPU"
    ]
    assert there(node(H200), requesting(5)) == []
    assert there(node(512), requesting(4)) == []


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (node(0), 0),
        (node(H200, mode=NodeMode.SHARE, isolation=""), 0),
        (node(H200, mode=NodeMode.MPS, isolation="mps: mode mps"), 0),
        (node(H200, isolation="none: mode cgpu asks for isolation, and this node cannot: no driver"), 0),
        (node(H200, isolation="none: --isolation none disables it"), 0),
        (node(H200), 1),
    ],
    ids=["not measured", "share", "MPS", "not mounted", "switched off", "held"],
)
def test_without_isolation_or_a_measurement_there_is_no_remark(which: NodeDevices, expected: int) -> None:
    assert len(there(which, requesting(2))) == expected
    assert len(too_small_anywhere([which], requesting(2))) == expected


def test_each_container_counts_separately_init_containers_too() -> None:
    found = there(node(H200), requesting(3, 8, init=2))
    assert [one.split(" ")[1] for one in found] == ["init", "c0"]
    assert [one.split(" ")[1] for one in too_small_anywhere([node(H200)], requesting(3, 8, init=2))] == [
        "init",
        "c0",
    ]


def test_of_several_gpus_the_part_of_each_counts() -> None:
    over_two = requesting(8, labels={names.LABEL_POD_GPU_COUNT: "2"})
    assert "has 512 MiB of GPU 1" in there(node(T4, H200), over_two)[0]
    apart = requesting(4, 4, labels={names.LABEL_POD_APART: "true"})
    assert [one.partition(" of node")[0] for one in there(node(T4, H200), apart)] == [
        "container c1 has 512 MiB of GPU 1"
    ]


def test_a_pod_with_a_whole_gpu_has_room_for_a_context() -> None:
    whole = requesting(2, labels={names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE})
    assert there(node(H200), whole) == too_small_anywhere([node(H200)], whole) == []


def test_a_pending_pod_is_reported_if_no_measured_gpu_suffices_with_the_smallest() -> None:
    large, small = node(600, name="large"), node(H200, name="small")
    (report,) = too_small_anywhere([large, small, node(0, name="new")], requesting(4))
    assert report.startswith(
        "container c0 would get 512 MiB of a GPU of node small, less than the 518 MiB that a CUDA context takes there, the "
        "least of 2 GPUs where that is known; no CUDA program can start with that"
    )
    assert too_small_anywhere([large, small, node(T4, name="t4")], requesting(4)) == []


def test_nodes_are_read_for_small_shares_only() -> None:
    assert (can_be_too_small([512]), can_be_too_small([4096, 2048]), can_be_too_small([])) == (
        True,
        False,
        False,
    )
