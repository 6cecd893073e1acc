"""MIG instances on demand, on the fake driver: placements, and what is created and destroyed there."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpushare.nodeagent.driver.nvml import DriverNvml, FoundGpu
from gpushare.nodeagent.driver.placements import Placement, PlacementTaken
from gpushare.nodeagent.errors import NvmlFailed
from gpushare_playground import gpus
from tests.unit.fakegpu.building import build


class Killed(BaseException):
    """The process ends there, as with ``kill -9``."""


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverNvml]:
    """The agent's NVML, opened on an H100 in MIG mode without instances."""
    monkeypatch.setenv("FAKEGPU_NODE", str(tmp_path / "node.gpus"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("programs")))
    monkeypatch.delenv("FAKEGPU_VISIBLE_DEVICES", raising=False)
    node = gpus.preset("h100-80gb", "n1")
    gpus.write(tmp_path / "node.gpus", replace(node, gpus=(replace(node.gpus[0], mig="on"),)))
    made = DriverNvml()
    made.open()
    yield made
    made.close()


def parent(nvml: DriverNvml) -> FoundGpu:
    (found,) = (gpu for gpu in nvml.enumerate(placements=True).gpus if gpu.mig)
    return found


def instances(nvml: DriverNvml) -> list[str]:
    return [gpu.hardware.profile for gpu in nvml.enumerate().gpus if gpu.parent]


def at(nvml: DriverNvml, profile: str, start: int) -> Placement:
    (found,) = (one for one in parent(nvml).placements if (one.profile, one.start) == (profile, start))
    return found


def test_a_gpu_has_the_placements_that_nvml_reports(nvml: DriverNvml) -> None:
    assert nvml.enumerate().gpus[0].placements == ()
    gpu = parent(nvml)
    starts: dict[str, list[int]] = {}
    for one in gpu.placements:
        starts.setdefault(one.profile, []).append(one.start)
    assert starts == {
        "1g.10gb": [0, 1, 2, 3, 4, 5, 6],
        "1g.10gb+me": [0, 1, 2, 3, 4, 5, 6],
        "1g.20gb": [0, 2, 4, 6],
        "2g.20gb": [0, 2, 4],
        "3g.40gb": [0, 4],
        "4g.40gb": [0],
        "7g.80gb": [0],
    }
    half = at(nvml, "3g.40gb", 4)
    assert half == Placement(
        gpu.uuid,
        "3g.40gb",
        9,
        4,
        4,
        40448,
        (("compute-slices", 3), ("decoders", 3), ("jpeg-engines", 3)),
    )
    assert half.name == f"{gpu.uuid.lower()}-mig-9-4"
    assert [one.start for one in gpu.placements if one.profile == "1g.10gb" and one.overlaps(half)] == [
        4,
        5,
        6,
    ]


def test_an_instance_is_created_at_its_placement_and_destroyed_once(nvml: DriverNvml) -> None:
    placement = at(nvml, "1g.10gb", 5)
    for _ in range(2):
        nvml.create_instance(placement, ours=True)
        assert instances(nvml) == ["1g.10gb"]
        assert parent(nvml).occupied == (placement,)
        (instance,) = (gpu for gpu in nvml.enumerate(placements=True).gpus if gpu.parent)
        assert (instance.placements, instance.occupied) == ((), ())
    for _ in range(2):
        nvml.destroy_instance(placement)
        assert parent(nvml).occupied == ()


def test_a_foreign_instance_is_not_taken_for_ours(nvml: DriverNvml) -> None:
    placement = at(nvml, "2g.20gb", 2)
    nvml.create_instance(placement, ours=False)
    with pytest.raises(PlacementTaken, match=r"2g\.20gb at memory slice 2 .* it was not created by gpushare"):
        nvml.create_instance(placement, ours=False)
    with pytest.raises(NvmlFailed, match=r"4g\.40gb at memory slice 0 .*: Insufficient Resources"):
        nvml.create_instance(at(nvml, "4g.40gb", 0), ours=False)


def test_an_instance_without_a_compute_instance_is_noticed(nvml: DriverNvml) -> None:
    parent(nvml)
    assert not nvml.gpus_changed()
    instance = pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 9)
    assert nvml.gpus_changed()
    assert [one.profile for one in parent(nvml).occupied] == ["3g.40gb"]
    assert not nvml.gpus_changed()
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert nvml.gpus_changed()


@pytest.mark.parametrize(
    "step",
    [
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
    ],
)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_the_successor_of_a_process_killed_at_any_step_of_creation_completes_it(
    nvml: DriverNvml, monkeypatch: pytest.MonkeyPatch, step: str, *, done: bool
) -> None:
    placement = at(nvml, "1g.20gb", 6)
    with monkeypatch.context() as patch:
        dies_at(patch, step, done=done)
        with pytest.raises(Killed):
            nvml.create_instance(placement, ours=False)
    nvml.create_instance(placement, ours=True)
    assert instances(nvml) == ["1g.20gb"]
    nvml.destroy_instance(placement)
    assert parent(nvml).occupied == ()


@pytest.mark.parametrize("step", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_the_successor_of_a_process_killed_at_any_step_of_destruction_completes_it(
    nvml: DriverNvml, monkeypatch: pytest.MonkeyPatch, step: str, *, done: bool
) -> None:
    placement = at(nvml, "4g.40gb", 0)
    nvml.create_instance(placement, ours=False)
    with monkeypatch.context() as patch:
        dies_at(patch, step, done=done)
        with pytest.raises(Killed):
            nvml.destroy_instance(placement)
    nvml.destroy_instance(placement)
    assert parent(nvml).occupied == ()


def dies_at(patch: pytest.MonkeyPatch, step: str, *, done: bool) -> None:
    call: Callable[..., Any] = getattr(pynvml, step)

    def dies(*args: Any) -> None:
        if done:
            call(*args)
        raise Killed

    patch.setattr(pynvml, step, dies)
