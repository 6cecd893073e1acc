"""A node's GPUs are read from our annotations or another agent's, or refused by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.errors import MalformedDevices
from gpushare.api.node.device import (
    Device,
    Placement,
    described_devices,
    devices_annotation,
    mode_of,
    node_devices,
)
from gpushare.api.node.modes import MODES, NodeMode
from gpushare.api.node.topology import matrix
from gpushare.api.objects import Node, NodeCondition, decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.reasons.categories import Category, category_of

T4 = Device(0, "GPU-a", 15360, "Tesla T4")


def node(
    labels: dict[str, str] | None = None,
    annotation: str | None = None,
    capacity: dict[str, Any] | None = None,
) -> Node:
    annotations = {} if annotation is None else {"gpushare.dev/devices": annotation}
    return decode_node(
        {
            "metadata": {"name": "n1", "labels": labels or {}, "annotations": annotations},
            "status": {"capacity": capacity or {}},
        }
    )


devices = st.lists(
    st.builds(
        Device,
        index=st.integers(0, 127),
        uuid=st.text(min_size=1),
        total_mib=st.integers(1, 1 << 20),
        model=st.text(),
        healthy=st.booleans(),
        reason=st.text(),
        pci_bus_id=st.text(),
        numa_node=st.integers(-1, 8),
    ),
    max_size=8,
    unique_by=(lambda device: device.index, lambda device: device.uuid),
).map(lambda found: tuple(sorted(found, key=lambda device: device.index)))


@given(mode=st.sampled_from(list(MODES.values())), unit=st.sampled_from(MemoryUnit), found=devices)
def test_the_node_agents_description_is_read_back_unchanged(
    mode: NodeMode, unit: MemoryUnit, found: tuple[Device, ...]
) -> None:
    assert described_devices(node(annotation=devices_annotation(mode, unit, found))) == (mode, unit, found)


def test_proximity_of_gpus_is_read_in_the_order_of_their_indices() -> None:
    near = matrix(3, lambda a, b: 10 * (a + 1) + b + 1 if a > b else 10 * (b + 1) + a + 1)
    there = tuple(Device(index, f"GPU-{index}", 15360) for index in range(3))
    text = devices_annotation(NodeMode.TOPOLOGY, MemoryUnit.GIB, there, near)
    assert '"near":[[],[21],[31,32]]' in text
    read = node_devices(node({"ack.node.gpu.schedule": "topology"}, text))
    assert read is not None
    assert read.near == near
    backwards = devices_annotation(
        NodeMode.TOPOLOGY, MemoryUnit.GIB, there[::-1], tuple(row[::-1] for row in near[::-1])
    )
    assert backwards != text
    assert node_devices(node({"ack.node.gpu.schedule": "topology"}, backwards)) == read
    # An earlier description lacks it, and an earlier reader ignores it.
    older = devices_annotation(NodeMode.TOPOLOGY, MemoryUnit.GIB, there)
    assert '"near"' not in older
    assert described_devices(node(annotation=text)) == described_devices(node(annotation=older))


def test_proximity_of_gpus_other_than_the_described_is_refused() -> None:
    text = devices_annotation(NodeMode.TOPOLOGY, MemoryUnit.GIB, (T4,), ((0, 5), (5, 0)))
    with pytest.raises(
        MalformedDevices, match="nearness of 1 GPU is listed in rows of 0 to 0 numbers; a running node agent"
    ):
        described_devices(node(annotation=text))


def test_gpus_of_different_sizes_keep_their_own_units() -> None:
    text = devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4, Device(1, "GPU-b", 81920)))
    read = node_devices(node({"ack.node.gpu.schedule": "share"}, text))
    assert read is not None
    assert [read.units_of(device) for device in read.devices] == [15, 80]
    assert read.total_units == 95
    assert read.device_at(1) == Device(1, "GPU-b", 81920)
    assert '"foreign"' not in text
    assert read.device_at(2) is None


def test_another_agents_node_is_divided_evenly_over_its_gpus() -> None:
    read = node_devices(node(capacity={"aliyun.com/gpu-mem": "60", "aliyun.com/gpu-count": "4"}))
    assert read is not None
    assert read.mode is NodeMode.SHARE
    assert [(device.uuid, device.total_mib) for device in read.devices] == [
        (f"n1/{i}", 15360) for i in range(4)
    ]


def test_a_node_without_gpus_is_not_ours() -> None:
    assert node_devices(node()) is None
    assert node_devices(node({"ack.node.gpu.schedule": "topology"})) is None


def test_capacity_zero_is_not_taken_for_having_no_gpus() -> None:
    text = devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,))
    read = node_devices(node({"ack.node.gpu.schedule": "share"}, text, {"aliyun.com/gpu-mem": "0"}))
    assert read is not None
    assert read.total_units == 15


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        (
            node({"ack.node.gpu.schedule": "share"}),
            "node is labelled ack.node.gpu.schedule=share but reports no GPU yet",
        ),
        (
            node({"ack.node.gpu.schedule": "share"}, devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, ())),
            "node is labelled ack.node.gpu.schedule=share but has no GPU",
        ),
        (
            node(
                {"ack.node.gpu.schedule": "core_mem"},
                devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,)),
            ),
            "node is switching from share to core_mem",
        ),
        (
            node({}, devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,))),
            "node is switching from share to default",
        ),
    ],
)
def test_a_node_that_is_not_ready_for_pods_gives_the_reason(spec: Node, refusal: str) -> None:
    read = node_devices(spec)
    assert read is not None
    assert read.refusal == refusal


NOT_LOADED = "NVML: Driver Not Loaded. Run `nvidia-smi` as root on the node to load it"
SHARED = {"ack.node.gpu.schedule": "share"}


def with_condition(spec: Node, status: str = "False", reason: str = "DriverFailed") -> Node:
    """As after a node agent's report that no GPU works."""
    spec.status.conditions = [
        NodeCondition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        NodeCondition("GPUShareReady", status, reason, NOT_LOADED),
    ]
    return spec


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(node(SHARED), id="the agent started without a driver"),
        pytest.param(
            node(SHARED, devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,))),
            id="the driver failed later",
        ),
        pytest.param(node({"ack.node.gpu.schedule": "topology"}), id="a node of whole GPUs"),
    ],
)
@pytest.mark.parametrize("reason", ["DriverFailed", "DriverNotFound", "NoGPU"])
def test_a_node_without_a_working_driver_reports_what_its_agent_found(spec: Node, reason: str) -> None:
    read = node_devices(with_condition(spec, reason=reason))
    assert read is not None
    assert read.refusal == f"node has no working GPU ({NOT_LOADED})"
    assert category_of(read.refusal) is Category.HEALTH


@pytest.mark.parametrize(
    ("status", "reason"), [("True", "Sharing"), ("Unknown", "AgentStopped"), ("False", "GPUUnhealthy")]
)
def test_other_conditions_do_not_change_the_nodes_description(status: str, reason: str) -> None:
    described = node(SHARED, devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,)))
    read = node_devices(with_condition(described, status, reason))
    assert read is not None
    assert read.refusal == ""


def test_a_condition_left_by_our_agent_does_not_apply_to_another_agents_gpus() -> None:
    foreign = node(capacity={"aliyun.com/gpu-mem": "60", "aliyun.com/gpu-count": "4"})
    read = node_devices(with_condition(foreign))
    assert read is not None
    assert read.refusal == ""


@pytest.mark.parametrize(
    ("labels", "cap"),
    [
        ({"ack.node.gpu.schedule": "share"}, None),
        ({"ack.node.gpu.schedule": "share", "ack.node.gpu.max-pod": "3"}, 3),
        ({"ack.node.gpu.schedule": "cgpu"}, 16),
        ({"ack.node.gpu.schedule": "cgpu", "ack.node.gpu.max-pod": "40"}, 16),
        ({"ack.node.gpu.schedule": "core_mem", "ack.node.gpu.max-pod": "2"}, 2),
    ],
)
def test_pods_per_gpu_are_capped_by_label_and_by_the_limit_of_isolation(
    labels: dict[str, str], cap: int | None
) -> None:
    mode = MODES[labels["ack.node.gpu.schedule"]]
    read = node_devices(node(labels, devices_annotation(mode, MemoryUnit.GIB, (T4,))))
    assert read is not None
    assert read.max_pods == cap


def test_pods_per_node_are_capped_by_our_label() -> None:
    text = devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,))
    labels = {"ack.node.gpu.schedule": "share"}
    free = node_devices(node(labels, text))
    capped = node_devices(node(labels | {"gpushare.dev/max-pods-per-node": "3"}, text))
    assert free is not None
    assert capped is not None
    assert (free.max_node_pods, capped.max_node_pods) == (None, 3)


@pytest.mark.parametrize(
    ("text", "cordoned"),
    [
        ("", []),
        ("1", [1]),
        (" 1 , 0 ", [0, 1]),
        ("GPU-b,", [1]),
        # One that the node does not have, or does not have at present.
        ("7,GPU-z,n1/5", []),
    ],
)
def test_gpus_are_cordoned_by_index_or_uuid(text: str, cordoned: list[int]) -> None:
    gpus = (Device(0, "GPU-a", 1024), Device(1, "GPU-b", 1024))
    spec = node({"ack.node.gpu.schedule": "share"}, devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, gpus))
    assert spec.metadata.annotations is not None
    spec.metadata.annotations["gpushare.dev/cordoned-gpus"] = text
    read = node_devices(spec)
    assert read is not None
    assert [device.index for device in read.devices if device.cordoned] == cordoned
    assert not read.problem


@pytest.mark.parametrize("text", ["one", "-1", "0 1", "gpu0"])
def test_a_malformed_cordon_keeps_new_pods_away_from_the_node(text: str) -> None:
    spec = node({"ack.node.gpu.schedule": "share"}, devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,)))
    assert spec.metadata.annotations is not None
    spec.metadata.annotations["gpushare.dev/cordoned-gpus"] = text
    read = node_devices(spec)
    assert read is not None
    assert (
        read.refusal
        == read.problem
        == (
            f"annotation gpushare.dev/cordoned-gpus names no GPU with '{text}': write indices or UUIDs, with commas"
        )
    )


def test_another_agents_description_cordons_nothing() -> None:
    annotation = devices_annotation(
        NodeMode.SHARE, MemoryUnit.GIB, (Device(0, "GPU-a", 1024, cordoned=True),)
    )
    read = node_devices(node({"ack.node.gpu.schedule": "share"}, annotation))
    assert read is not None
    assert not read.devices[0].cordoned


def test_placement_and_mode_come_from_labels() -> None:
    text = devices_annotation(NodeMode.SHARE, MemoryUnit.MIB_128, (T4,))
    read = node_devices(node({"ack.node.gpu.schedule": "share", "ack.node.gpu.placement": "spread"}, text))
    assert read is not None
    assert (read.placement, read.unit, read.total_units) == (Placement.SPREAD, MemoryUnit.MIB_128, 120)
    assert mode_of(node()) is NodeMode.DEFAULT


TWICE = devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4, T4))
HUGE = devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (Device(0, "GPU-a", 1 << 40),))
MANY = devices_annotation(
    NodeMode.SHARE, MemoryUnit.GIB, tuple(Device(i, f"GPU-{i}", 1024) for i in range(129))
)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (node(annotation="{"), "cannot be read .*; a running node agent"),
        (node(annotation='{"version":1,"unit":"3GiB","mode":"share","gpus":[]}'), "unknown GPU memory unit"),
        (
            node(annotation='{"version":2,"unit":"1GiB","mode":"share","gpus":[]}'),
            "version 2, this program reads 1",
        ),
        (node(annotation=TWICE), "lists a GPU twice"),
        (node(annotation=HUGE), "size out of range"),
        (node(annotation=MANY), "129 GPUs are more than"),
        (node(capacity={"aliyun.com/gpu-mem": "1.5", "aliyun.com/gpu-count": "1"}), "not a whole number"),
        (node(capacity={"aliyun.com/gpu-mem": "99999999999", "aliyun.com/gpu-count": "1"}), "cannot be true"),
    ],
)
def test_an_invalid_node_is_refused_by_name(spec: Node, message: str) -> None:
    with pytest.raises(MalformedDevices, match=message) as caught:
        node_devices(spec)
    assert caught.value.subject == "node n1"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            {"ack.node.gpu.schedule": "shared"},
            "label ack.node.gpu.schedule=shared is unknown; use one of default",
        ),
        ({"ack.node.gpu.schedule": "share", "ack.node.gpu.placement": "tight"}, "use one of binpack, spread"),
        ({"ack.node.gpu.schedule": "share", "ack.node.gpu.max-pod": "none"}, "max-pod=none is not a number"),
        ({"ack.node.gpu.schedule": "share", "ack.node.gpu.max-pod": "0"}, "max-pod=0 is not a number from 1"),
        (
            {"ack.node.gpu.schedule": "share", "gpushare.dev/max-pods-per-node": "-1"},
            "max-pods-per-node=-1 is not a number from 1",
        ),
    ],
)
def test_a_malformed_label_keeps_new_pods_away_and_the_nodes_gpus_known(
    labels: dict[str, str], message: str
) -> None:
    read = node_devices(node(labels, devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (T4,))))
    assert read is not None
    assert message in read.problem
    assert read.refusal == read.problem
    assert read.devices == (T4,)
    bare = node_devices(node({"ack.node.gpu.placement": "tight"}))
    assert bare is not None
    assert bare.problem
