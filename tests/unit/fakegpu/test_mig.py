"""MIG of the fake driver, through nvidia-ml-py and CUDA. For the output of nvidia-smi see tests/integration/fakegpu/test_mig_clients.py."""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.cuda_process import MIB, OUT, Out, Processes

Describe = Callable[..., None]
NODE = gpus.preset("mig", "n1")
#: NVML's ids of the profiles for an eighth, a quarter, a half, four sevenths and all of a GPU.
EIGHTH, QUARTER, HALF, FOUR_SEVENTHS, WHOLE = 19, 14, 9, 5, 0


def empty(model: str = "a100-80gb") -> gpus.GpuNode:
    node = gpus.preset(model, "n1")
    return replace(node, gpus=(replace(node.gpus[0], mig="on"),))


def gpu(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def devices(parent: Any) -> list[Any]:
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index))
        except pynvml.NVMLError_NotFound:
            break
    return found


def create(profile: int) -> int:
    """The id of a new GPU instance, whose place the driver chooses."""
    return int(pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceCreateGpuInstance(gpu(), profile)).id)


def test_a_mig_device_is_a_device_with_its_instances_memory(described: Describe) -> None:
    described(NODE)
    found = devices(gpu())
    assert [pynvml.nvmlDeviceGetName(one) for one in found] == [
        f"{NODE.gpus[0].model} MIG {profile}" for profile in ("3g.40gb", "2g.20gb", "1g.10gb")
    ]
    assert [pynvml.nvmlDeviceGetMemoryInfo(one).total // MIB for one in found] == [40192, 19968, 9728]
    assert [pynvml.nvmlDeviceGetGpuInstanceId(one) for one in found] == [2, 3, 9]
    assert [pynvml.nvmlDeviceGetIndex(one) for one in found] == [0, 1, 2]
    attributes = pynvml.nvmlDeviceGetAttributes_v2(found[0])
    assert (attributes.multiprocessorCount, attributes.gpuInstanceSliceCount, attributes.memorySizeMB) == (
        42,
        3,
        40192,
    )
    uuids = [pynvml.nvmlDeviceGetUUID(one) for one in found]
    assert all(
        re.fullmatch(r"MIG-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", uuid)
        for uuid in uuids
    )
    again = pynvml.nvmlDeviceGetHandleByUUID(uuids[1])
    assert pynvml.nvmlDeviceIsMigDeviceHandle(again).value == 1
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(again)
    assert pynvml.nvmlDeviceGetUUID(parent) == NODE.gpus[0].uuid
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTemperature(again, pynvml.NVML_TEMPERATURE_GPU)


def test_only_gpus_in_mig_mode_have_mig_devices(described: Describe) -> None:
    described(NODE)
    assert [pynvml.nvmlDeviceGetMigMode(gpu(index)) for index in (0, 1)] == [[1, 1], [0, 0]]
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu()).value == 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceCreateGpuInstance(gpu(1), EIGHTH)


@pytest.mark.parametrize(
    ("model", "memory_mib"),
    [
        ("a100-80gb", {19: 9728, 20: 9728, 15: 19968, 14: 19968, 9: 40192, 5: 40192, 0: 80896}),
        ("h100-80gb", {19: 9984, 20: 9984, 15: 20096, 14: 20096, 9: 40448, 5: 40448, 0: 81152}),
    ],
)
def test_profiles_are_those_of_the_model(described: Describe, model: str, memory_mib: dict[int, int]) -> None:
    described(empty(model))
    found = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), number, version=2)
        except pynvml.NVMLError_NotSupported:
            continue
        found[profile.id] = profile.memorySizeMB
    assert found == memory_mib


def test_instances_get_the_ids_and_places_that_nvidias_guide_shows(described: Describe) -> None:
    described(empty())
    assert [create(profile) for profile in (HALF, EIGHTH, QUARTER, EIGHTH)] == [2, 7, 4, 8]
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(gpu(), EIGHTH)


def test_a_half_no_longer_fits_after_small_instances(described: Describe) -> None:
    described(empty())
    assert [create(profile) for profile in (EIGHTH, EIGHTH, QUARTER)] == [13, 11, 3]
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(), HALF) == 0
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(gpu(), HALF)


def test_an_instance_is_created_at_the_requested_place(described: Describe) -> None:
    described(empty())
    place = pynvml.c_nvmlGpuInstancePlacement_t(0, 4)
    elsewhere = pynvml.c_nvmlGpuInstancePlacement_t(2, 4)
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), HALF, ctypes.byref(place))
    assert pynvml.nvmlGpuInstanceGetInfo(instance).placement.start == 0
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), HALF, ctypes.byref(place))
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), HALF, ctypes.byref(elsewhere))


def test_an_instance_is_destroyed_after_its_compute_instance_and_comes_back_the_same(
    described: Describe,
) -> None:
    described(empty())

    def whole_instance() -> tuple[Any, Any, str]:
        instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(), HALF)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
        return instance, compute, pynvml.nvmlDeviceGetUUID(devices(gpu())[0])

    instance, compute, uuid = whole_instance()
    device = devices(gpu())[0]
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(compute)
    assert devices(gpu()) == []
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMemoryInfo(device)
    pynvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlGpuInstanceGetInfo(instance)
    assert whole_instance()[2] == uuid


def test_switching_mig_mode_off_removes_the_instances(described: Describe) -> None:
    described(NODE)
    pynvml.nvmlDeviceSetMigMode(gpu(), 0)
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]
    pynvml.nvmlDeviceSetMigMode(gpu(), 1)
    assert devices(gpu()) == []


def test_instances_can_be_created_only_if_the_description_is_writable(
    described: Describe, tmp_path: Path
) -> None:
    described(empty())
    # The temporary file that would replace it cannot be written, not even by root.
    (tmp_path / f"node.gpus.{os.getpid()}").mkdir()
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceCreateGpuInstance(gpu(), HALF)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("3g.40gb 2",), "instance 3g.40gb 2: the profile cannot begin there"),
        (("9g.90gb 0",), "instance 9g.90gb 0: the model has no such MIG profile"),
        (("3g.40gb 0", "1g.10gb 2"), "instance 1g.10gb 2: it overlaps another instance"),
        (("1g.10gb+me 0", "1g.10gb+me 2"), "instance 1g.10gb+me 2: there are too many of the profile"),
        (("2g.20gb 0 2c@0 1c@1",), "instance 2g.20gb 0: its compute instances overlap"),
        (("4g.40gb 0 3c@0",), "instance 4g.40gb 0: it has no such compute instance"),
    ],
)
def test_instances_that_the_model_cannot_have_are_rejected(
    described: Describe, capfd: pytest.CaptureFixture[str], lines: tuple[str, ...], problem: str
) -> None:
    node = empty()
    instances = tuple(gpus.Instance(*_parts(line)) for line in lines)
    with pytest.raises(pynvml.NVMLError):
        described(replace(node, gpus=(replace(node.gpus[0], instances=instances),)))
    assert f"gpu 0: {problem}; see `nvidia-smi mig -lgipp`" in capfd.readouterr().err


def _parts(line: str) -> tuple[str, int, str]:
    profile, start, *compute = line.split(" ", 2)
    return profile, int(start), "".join(compute)


# --- CUDA ---------------------------------------------------------------------------------------


@pytest.fixture
def processes(described: Describe, tmp_path: Path) -> Iterator[Processes]:
    described(NODE)
    with Processes(tmp_path / "node.gpus").closing() as started:
        yield started


def uuid_of(index: int) -> str:
    return str(pynvml.nvmlDeviceGetUUID(devices(gpu())[index]))


def seen(cuda: Any) -> list[tuple[str, int, int]]:
    """Name, MiB and multiprocessors of each device."""
    count = int.from_bytes(cuda.good("cuDeviceGetCount", Out(4)), "little")
    return [
        (
            cuda.good("cuDeviceGetName", Out(64), 64, each).split(b"\0")[0].decode(),
            cuda.good("cuDeviceTotalMem_v2", OUT, each) // MIB,
            int.from_bytes(cuda.good("cuDeviceGetAttribute", Out(4), 16, each), "little"),
        )
        for each in range(count)
    ]


HALF_SEEN = (f"{NODE.gpus[0].model} MIG 3g.40gb", 40192, 42)
EIGHTH_SEEN = (f"{NODE.gpus[0].model} MIG 1g.10gb", 9728, 14)
WHOLE_SEEN = (NODE.gpus[1].model, 81920, 108)


def test_a_process_sees_the_named_mig_device(processes: Processes) -> None:
    def start(**environment: str) -> list[tuple[str, int, int]]:
        cuda = processes.start(**environment)
        cuda.good("cuInit", 0)
        return seen(cuda)

    assert start(CUDA_VISIBLE_DEVICES=uuid_of(2)) == [EIGHTH_SEEN]
    assert start(FAKEGPU_VISIBLE_DEVICES=uuid_of(2)) == [EIGHTH_SEEN]
    assert start() == [HALF_SEEN]
    assert start(CUDA_VISIBLE_DEVICES="0") == [HALF_SEEN]
    assert start(CUDA_VISIBLE_DEVICES=NODE.gpus[1].uuid) == [WHOLE_SEEN]
    assert start(CUDA_VISIBLE_DEVICES=f"{uuid_of(0)},{uuid_of(2)}") == [HALF_SEEN]


def test_whole_gpus_are_chosen_in_the_order_of_their_names(processes: Processes) -> None:
    node = gpus.preset("mixed", "n1")
    gpus.write(processes.node, node)

    def start(names: str) -> list[str]:
        cuda = processes.start(CUDA_VISIBLE_DEVICES=names)
        opened = cuda.cu("cuInit", 0)
        return [one[0] for one in seen(cuda)] if opened == "SUCCESS" else [opened]

    first, last = node.gpus[0].model, node.gpus[3].model
    assert start("3,0") == [last, first]
    assert start(f"{node.gpus[3].uuid[:16]},0,9,1") == [last, first]
    assert start("") == ["NO_DEVICE"]


def test_memory_is_the_instances_own_and_counts_for_the_gpu_too(processes: Processes) -> None:
    eighth, half = (processes.start(CUDA_VISIBLE_DEVICES=uuid_of(index)) for index in (2, 0))
    for cuda in (eighth, half):
        cuda.open()
    assert eighth.cu("cuMemAlloc_v2", OUT, 9728 * MIB)[0] == "OUT_OF_MEMORY"
    assert half.cu("cuMemAlloc_v2", OUT, 9728 * MIB)[0] == "SUCCESS"
    context_mib = 256
    used = [pynvml.nvmlDeviceGetMemoryInfo(one).used // MIB for one in (*devices(gpu()), gpu())]
    assert used == [9728 + context_mib, 0, context_mib, 9728 + 2 * context_mib]
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu())
    assert sorted((one.gpuInstanceId, one.computeInstanceId) for one in running) == [(2, 0), (9, 0)]
    assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(devices(gpu())[2])) == 1
    instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), 9)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
