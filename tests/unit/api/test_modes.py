"""A mode is one object: a fictitious one is read, counted, allocated and refused from its entry only."""

from collections.abc import Iterator

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation, node_devices
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.node.modes import MODES, NodeMode, add, mode_giving
from gpushare.api.node.startup_taint import lacks
from gpushare.api.objects import Node, decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.ledger import Ledger, Refused
from gpushare.reasons.suggestions.modes import selected, wanted_mode
from tests.unit.ledger.ledger_samples import V100, asks, counts, share

SLICE = "example.com/gpu-slice"


@pytest.fixture
def slices() -> Iterator[NodeMode]:
    """A mode in which a pod gets memory of one GPU and slices, enforced by the driver."""
    resources = (names.GPU_MEM, names.GPU_COUNT, SLICE)
    mode = NodeMode("slices", resources, "driver", one_gpu="a slice is of one", needs="a driver from r615 on")
    yield add(mode)
    del MODES["slices"]


def labelled(mode: NodeMode, name: str = "n1") -> Node:
    """A node with two GPUs in ``mode``, all of whose resources its kubelet offers."""
    gpus = tuple(Device(index, f"{name}-gpu{index}", V100) for index in range(2))
    offered = mode.capacity([V100, V100], MemoryUnit.GIB)
    return decode_node(
        {
            "metadata": {
                "name": name,
                "labels": {names.LABEL_MODE: mode.value},
                "annotations": {
                    names.ANN_DEVICES: devices_annotation(mode, MemoryUnit.GIB, gpus),
                    names.ANN_ISOLATION: "none: the driver is older",
                },
            },
            "status": {"allocatable": {one: str(amount) for one, amount in offered.items()}},
        }
    )


def test_a_fictitious_mode_is_read_and_counted_from_its_entry_only(slices: NodeMode) -> None:
    assert slices.capacity([V100, V100], MemoryUnit.GIB) == {names.GPU_MEM: 30, names.GPU_COUNT: 2, SLICE: 2}
    assert mode_giving(SLICE) is slices
    assert lacks(labelled(slices)) == ""
    found = node_devices(labelled(slices))
    assert found is not None
    assert (found.mode, found.refusal, found.max_pods) == (slices, "", 16)
    assert not_held(found, [share("n1-gpu0", 1000)]) == "the driver is older"


def test_a_node_whose_gpus_are_claimed_lacks_nothing_once_it_is_described() -> None:
    assert lacks(labelled(NodeMode.DRA)) == ""
    assert lacks(labelled(NodeMode.DEFAULT)) == "mode default offers no gpushare resource"


def test_a_fictitious_mode_is_allocated_and_refused_from_its_entry_only(slices: NodeMode) -> None:
    ledger = Ledger()
    found = node_devices(labelled(slices))
    assert found is not None
    ledger.set_node(found)
    assert ledger.reserve("a", "default/a", asks(3), "n1").units == 3
    for request, why in (
        (
            asks(3, 30),
            "node offers no compute (it is in mode slices; aliyun.com/gpu-core.percentage needs ",
        ),
        (asks(3, gpus=2), "node offers only one GPU per pod: in mode slices a slice is of one"),
        (counts(1), "node offers no whole GPUs (it is in mode slices; aliyun.com/gpu needs label "),
    ):
        with pytest.raises(Refused) as refusal:
            ledger.reserve("b", "default/b", request, "n1")
        assert refusal.value.hopeless
        assert refusal.value.reason.startswith(why)


def test_a_fictitious_mode_is_suggested_from_its_entry_only(slices: NodeMode) -> None:
    ledger = Ledger()
    found = node_devices(labelled(NodeMode.SHARE))
    assert found is not None
    ledger.set_node(found)
    advice = selected(ledger, asks(3), f"{names.LABEL_MODE}=slices", ["n1"])
    assert advice == (
        "no node is in mode slices, which its nodeSelector requires; node n1 is in mode share: "
        "`kubectl label node n1 ack.node.gpu.schedule=slices --overwrite` (a driver from r615 on must be installed on that node)"
    )


@pytest.mark.parametrize(
    ("request_", "mode"),
    [(asks(1), NodeMode.SHARE), (asks(1, 30), NodeMode.CORE_MEM), (counts(2), NodeMode.TOPOLOGY)],
)
def test_a_request_has_a_suggested_mode(request_, mode) -> None:
    assert wanted_mode(request_) is mode
    assert mode.serves(whole=request_.by_gpu, core=request_.wants_core, gpus=request_.gpu_count)


def test_a_change_of_mode_keeps_pods_limited_if_the_same_enforcer_has_the_same_limits() -> None:
    kept = {
        (before.value, after.value)
        for before in MODES.values()
        for after in MODES.values()
        if before.isolated and before.keeps_isolation(after)
    }
    limits = {("core_mem", "core_mem"), ("core_mem", "dra"), ("dra", "core_mem"), ("dra", "dra")}
    assert kept == {("cgpu", "cgpu"), ("cgpu", "core_mem"), ("cgpu", "dra"), ("mps", "mps"), *limits}
    assert all(NodeMode.SHARE.keeps_isolation(after) for after in MODES.values())
