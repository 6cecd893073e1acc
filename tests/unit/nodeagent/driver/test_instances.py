"""MIG instances as the node agent reads them from the fake driver."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.api.node.device import Device, instance_index
from gpushare.nodeagent.driver.nvml import DriverNvml
from gpushare_playground import gpus
from tests.unit.fakegpu.building import build


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverNvml:
    """The agent's NVML on a description in the folder, which a test writes first."""
    monkeypatch.setenv("FAKEGPU_NODE", str(tmp_path / "node.gpus"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("programs")))
    monkeypatch.delenv("FAKEGPU_VISIBLE_DEVICES", raising=False)
    return DriverNvml()


def test_an_instance_is_a_gpu_with_its_own_index_and_device_nodes(nvml: DriverNvml, tmp_path: Path) -> None:
    node = gpus.preset("mig", "n1")
    gpus.write(tmp_path / "node.gpus", node)
    nvml.open()
    try:
        found = {gpu.index: gpu for gpu in nvml.enumerate().gpus}
        assert [
            (index, gpu.total_mib, gpu.mig, gpu.capabilities) for index, gpu in sorted(found.items())
        ] == [
            (0, 81920, True, ()),
            (1, 81920, False, ()),
            (16, 19968, False, (30, 31)),
            (18, 9728, False, (84, 85)),
            (20, 40192, False, (21, 22)),
        ]
        assert {found[index].parent for index in (16, 18, 20)} == {node.gpus[0].uuid}
        assert (found[20].hardware.parent_uuid, found[20].hardware.profile) == (node.gpus[0].uuid, "3g.40gb")
        assert found[20].model == f"{node.gpus[0].model} MIG 3g.40gb"
        assert [nvml.probe(gpu.uuid) for gpu in found.values() if not gpu.mig] == [""] * 4
        assert {one.gpu for one in nvml.readings()} == {gpu.uuid for gpu in found.values() if not gpu.mig}
    finally:
        nvml.close()


def test_an_xid_of_a_gpu_in_mig_mode_is_that_of_its_instances(nvml: DriverNvml, tmp_path: Path) -> None:
    node = gpus.preset("mig", "n1")
    gpus.write(tmp_path / "node.gpus", node)
    nvml.open()
    try:
        parts = {gpu.uuid for gpu in nvml.enumerate().gpus if gpu.parent}
        text = (tmp_path / "node.gpus").read_text().replace("gpu 0\n", "gpu 0\n  fault xid 79\n", 1)
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(tmp_path / "node.gpus")
        events = nvml.wait_xids(30.0)
        assert events is not None
        assert {(event.uuid, event.xid) for event in events} == {(uuid, 79) for uuid in parts}
    finally:
        nvml.close()


def test_an_instance_shared_by_several_compute_instances_is_left_out(
    nvml: DriverNvml, tmp_path: Path
) -> None:
    node = gpus.preset("a100-80gb", "n1")
    divided = (gpus.Instance("3g.40gb", 4, "1c@0 1c@1"), gpus.Instance("2g.20gb", 0))
    gpus.write(tmp_path / "node.gpus", divided_into(node, divided))
    nvml.open()
    try:
        assert [gpu.index for gpu in nvml.enumerate().gpus] == [0, 16]
    finally:
        nvml.close()


def test_an_instance_that_is_created_later_is_noticed(nvml: DriverNvml, tmp_path: Path) -> None:
    node = gpus.preset("a100-80gb", "n1")
    gpus.write(tmp_path / "node.gpus", divided_into(node, (gpus.Instance("2g.20gb", 0),)))
    nvml.open()
    try:
        nvml.enumerate()
        assert not nvml.gpus_changed()
        instances = (gpus.Instance("2g.20gb", 0), gpus.Instance("3g.40gb", 4))
        gpus.write(tmp_path / "node.gpus", divided_into(node, instances))
        assert nvml.gpus_changed()
        assert sorted(gpu.index for gpu in nvml.enumerate().gpus) == [0, 16, 20]
    finally:
        nvml.close()


def divided_into(node: gpus.GpuNode, instances: tuple[gpus.Instance, ...]) -> gpus.GpuNode:
    return replace(node, gpus=(replace(node.gpus[0], mig="on", instances=instances),))


def test_the_last_instance_of_the_last_gpu_has_an_index_that_nodes_can_have() -> None:
    indices = [instance_index(gpu, start) for gpu in range(16) for start in range(7)]
    assert len(set(indices)) == len(indices) == 112
    assert max(filter(None, indices)) == 127
    assert instance_index(16, 0) is None
    assert [Device(index, "MIG-a", 1).label for index in (16, 20, 127)] == ["0/0", "0/4", "15/6"]
    assert Device(20, "GPU-a", 1).label == "20"
