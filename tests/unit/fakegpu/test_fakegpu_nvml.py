"""What the library reports of described GPUs, queried through nvidia-ml-py."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pynvml
import pytest

from gpushare_playground import gpus

Describe = Callable[..., None]
MIB = 1 << 20


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def one(**fields: Any) -> gpus.GpuNode:
    node = gpus.preset("v100-16384", "n1")
    return replace(node, gpus=(replace(node.gpus[0], **fields),))


def test_the_driver_reports_its_versions(described: Describe) -> None:
    described(replace(one(), driver="535.261.03", cuda="12.2"))
    assert pynvml.nvmlSystemGetDriverVersion() == "535.261.03"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12020
    assert pynvml.nvmlSystemGetNVMLVersion() == "12.535.261.03"


@pytest.mark.parametrize("name", gpus.PRESETS)
def test_every_gpu_of_a_preset_is_reported_as_described(name: str, described: Describe) -> None:
    node = gpus.preset(name, "n1")
    described(node)
    assert pynvml.nvmlDeviceGetCount() == len(node.gpus)
    for index, gpu in enumerate(node.gpus):
        device = handle(index)
        assert pynvml.nvmlDeviceGetName(device) == gpu.model
        assert pynvml.nvmlDeviceGetUUID(device) == gpu.uuid
        assert pynvml.nvmlDeviceGetSerial(device) == gpu.serial
        assert pynvml.nvmlDeviceGetIndex(device) == index
        assert pynvml.nvmlDeviceGetMinorNumber(device) == index
        assert pynvml.nvmlDeviceGetPciInfo(device).busId == gpu.pci
        assert pynvml.nvmlDeviceGetMemoryInfo(device).total == gpu.total_mib * MIB
        assert "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(device)) == gpu.compute
        assert pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU) == gpu.temperature_c
        assert gpu.power_w is not None
        assert pynvml.nvmlDeviceGetEnforcedPowerLimit(device) == gpu.power_w[1] * 1000
        assert pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_MEM) == gpu.clocks_mhz["memory"][1]


def test_reserved_memory_is_separate_in_the_new_form_and_used_in_the_old(described: Describe) -> None:
    described(one(processes=(gpus.Process(1, 1000),)))
    new = pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2)
    old = pynvml.nvmlDeviceGetMemoryInfo(handle())
    assert (new.total, new.reserved, new.used, new.free) == (16384 * MIB, 224 * MIB, 1000 * MIB, 15160 * MIB)
    assert (old.total, old.used, old.free) == (16384 * MIB, 1224 * MIB, 15160 * MIB)


def test_queries_of_undescribed_values_are_not_supported(described: Describe) -> None:
    described(one(serial="", ecc="", numa=None))
    for query in (
        pynvml.nvmlDeviceGetSerial,
        pynvml.nvmlDeviceGetFanSpeed,
        pynvml.nvmlDeviceGetEccMode,
        pynvml.nvmlDeviceGetVbiosVersion,
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetNumaNodeId,
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            query(handle())
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetPersistenceMode(handle(), 1)


def test_the_architecture_follows_from_the_compute_capability(described: Describe) -> None:
    known = {"7.0": "VOLTA", "7.5": "TURING", "8.0": "AMPERE", "8.6": "AMPERE", "8.9": "ADA", "9.0": "HOPPER"}
    for compute, name in known.items():
        described(one(compute=compute))
        assert pynvml.nvmlDeviceGetArchitecture(handle()) == getattr(pynvml, f"NVML_DEVICE_ARCH_{name}")


def test_processes_are_listed_in_each_form(described: Describe) -> None:
    described(one(processes=(gpus.Process(7, 100, name="python3"), gpus.Process(8, 5, "graphics", "Xorg"))))
    for form in ("", "_v2", "_v3"):
        compute = getattr(pynvml, f"nvmlDeviceGetComputeRunningProcesses{form}")(handle())
        graphics = getattr(pynvml, f"nvmlDeviceGetGraphicsRunningProcesses{form}")(handle())
        assert [(process.pid, process.usedGpuMemory) for process in compute] == [(7, 100 * MIB)]
        assert [(process.pid, process.usedGpuMemory) for process in graphics] == [(8, 5 * MIB)]
    assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle()) == []
    assert pynvml.nvmlSystemGetProcessName(8) == "Xorg"


# --- looking up ---------------------------------------------------------------------------------


def test_a_gpu_is_found_by_uuid_serial_and_either_bus_id(described: Describe) -> None:
    node = gpus.preset("mixed", "n1")
    described(node)
    gpu = node.gpus[2]
    for found in (
        pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid),
        pynvml.nvmlDeviceGetHandleBySerial(gpu.serial),
        pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci),
        pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci[4:].lower()),
    ):
        assert pynvml.nvmlDeviceGetIndex(found) == 2
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid[:-1] + "x")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        handle(4)


def test_visible_gpus_are_renumbered_in_the_nodes_order(described: Describe) -> None:
    node = gpus.preset("mixed", "n1")
    described(node, visible=f"{node.gpus[3].uuid},1")
    assert pynvml.nvmlDeviceGetCount() == 2
    assert [pynvml.nvmlDeviceGetUUID(handle(index)) for index in (0, 1)] == [
        node.gpus[1].uuid,
        node.gpus[3].uuid,
    ]
    assert pynvml.nvmlDeviceGetIndex(handle(1)) == 1
    assert pynvml.nvmlDeviceGetMinorNumber(handle(1)) == 3
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(node.gpus[0].uuid)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        handle(2)


@pytest.mark.parametrize(("visible", "count"), [("all", 4), ("none", 0), ("void", 0), ("", 0), ("0,0", 1)])
def test_words_for_all_and_none_are_understood(visible: str, count: int, described: Describe) -> None:
    described(gpus.preset("mixed", "n1"), visible=visible)
    assert pynvml.nvmlDeviceGetCount() == count


def test_a_visible_gpu_that_the_node_lacks_is_refused(
    described: Describe, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(pynvml.NVMLError_NotFound):
        described(gpus.preset("mixed", "n1"), visible="0,9")
    captured = capfd.readouterr()
    assert captured.err == (
        "fakegpu: FAKEGPU_VISIBLE_DEVICES: the node has no GPU '9'; name UUIDs or indices of its GPUs, 'all' or 'none'\n"
    )
    assert captured.out == ""


# --- topology -----------------------------------------------------------------------------------


def test_paths_are_reported_as_described_or_by_numa_node(described: Describe) -> None:
    described(gpus.preset("mixed", "n1"))

    def level(a: int, b: int) -> int:
        return int(pynvml.nvmlDeviceGetTopologyCommonAncestor(handle(a), handle(b)))

    assert level(0, 0) == pynvml.NVML_TOPOLOGY_INTERNAL
    assert level(0, 1) == level(1, 0) == pynvml.NVML_TOPOLOGY_HOSTBRIDGE
    assert level(2, 3) == pynvml.NVML_TOPOLOGY_MULTIPLE
    assert level(0, 2) == pynvml.NVML_TOPOLOGY_SYSTEM
    assert [pynvml.nvmlDeviceGetNumaNodeId(handle(index)) for index in range(4)] == [0, 0, 1, 1]
    assert list(pynvml.nvmlDeviceGetCpuAffinity(handle(3), 2)) == [0xFFFF0000, 0]
    assert list(pynvml.nvmlDeviceGetMemoryAffinity(handle(3), 1, pynvml.NVML_AFFINITY_SCOPE_NODE)) == [2]
    nearest = pynvml.nvmlDeviceGetTopologyNearestGpus(handle(2), pynvml.NVML_TOPOLOGY_MULTIPLE)
    assert [pynvml.nvmlDeviceGetIndex(device) for device in nearest] == [3]


def test_direct_links_end_at_the_other_gpu(described: Describe) -> None:
    node = gpus.preset("core-mem-4", "n1")
    described(node)
    ends = [pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle(0), link).busId for link in range(4)]
    assert ends == [node.gpus[1].pci, node.gpus[2].pci, node.gpus[3].pci, node.gpus[3].pci]
    assert pynvml.nvmlDeviceGetNvLinkState(handle(0), 3) == 1
    assert pynvml.nvmlDeviceGetNvLinkVersion(handle(0), 0) == 2
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkState(handle(0), 4)
    assert pynvml.nvmlDeviceGetP2PStatus(handle(0), handle(1), pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0


def test_switched_links_end_at_a_switch(described: Describe) -> None:
    described(gpus.preset("dgx-h200", "n1"))
    assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle(7), 17) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    fields = pynvml.nvmlDeviceGetFieldValues(handle(0), [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 9999])
    assert (fields[0].nvmlReturn, fields[0].value.uiVal) == (0, 18)
    assert fields[1].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
