"""The binary interface: names that clients look up, and layouts that they read."""

import ctypes
import re
import subprocess
from pathlib import Path

import pynvml
import pytest

from tests.unit.fakegpu.building import LIBRARY, build

#: Names that gpustat, nvitop, nvisel, nvtop, nvidia-ml-py and py3nvml look up, and the minimum that they work with.
NEEDED = """
nvmlDeviceGetClockInfo nvmlDeviceGetComputeMode nvmlDeviceGetComputeRunningProcesses
nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetCount_v2 nvmlDeviceGetCudaComputeCapability
nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetDecoderUtilization
nvmlDeviceGetDisplayActive nvmlDeviceGetDisplayMode nvmlDeviceGetDriverModel_v2 nvmlDeviceGetEncoderUtilization
nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetFanSpeed nvmlDeviceGetGraphicsRunningProcesses
nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetIndex nvmlDeviceGetMaxClockInfo
nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2
nvmlDeviceGetMigMode nvmlDeviceGetName nvmlDeviceGetPciInfo_v3 nvmlDeviceGetPcieThroughput
nvmlDeviceGetPerformanceState nvmlDeviceGetPersistenceMode nvmlDeviceGetPowerManagementLimit nvmlDeviceGetPowerUsage
nvmlDeviceGetProcessUtilization nvmlDeviceGetTemperature nvmlDeviceGetTemperatureThreshold nvmlDeviceGetTemperatureV
nvmlDeviceGetTotalEccErrors nvmlDeviceGetUUID nvmlDeviceGetUtilizationRates nvmlDeviceIsMigDeviceHandle
nvmlErrorString nvmlInitWithFlags nvmlInit_v2 nvmlShutdown nvmlSystemGetCudaDriverVersion nvmlSystemGetDriverVersion
"""

#: Also needed, by the node agent and nvidia-smi 535.
ALSO_NEEDED = """
nvmlInternalGetExportTable nvmlDeviceGetHandleByUUID nvmlEventSetCreate nvmlEventSetFree nvmlEventSetWait_v2
nvmlDeviceRegisterEvents nvmlDeviceGetSupportedEventTypes nvmlDeviceGetFieldValues nvmlDeviceGetTopologyCommonAncestor
nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetCpuAffinity nvmlDeviceGetMemoryAffinity nvmlDeviceGetP2PStatus
"""

#: nvmlDeviceGetRunningProcessDetailList and ...ConfComputeMemSizeInfo come together: with one alone nvitop
#: reads lists of processes by another layout.
TOGETHER = ["nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"]

STRUCTS = {
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": pynvml.c_nvmlBAR1Memory_t,
    "nvmlSetMemoryLimits_v1_t": pynvml.c_nvmlSetMemoryLimits_v1_t,
    "nvmlGetMemoryLimits_v1_t": pynvml.c_nvmlGetMemoryLimits_v1_t,
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlPciInfo_v2_t": pynvml.nvmlPciInfo_v2_t,
    "nvmlPciInfoExt_t": pynvml.nvmlPciInfoExt_v1_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v2_t,
    "nvmlProcessDetail_v1_t": pynvml.c_nvmlProcessDetail_v1_t,
    "nvmlProcessDetailList_v1_t": pynvml.c_nvmlProcessDetailList_v1_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlEccErrorCounts_t": pynvml.c_nvmlEccErrorCounts_t,
    "nvmlViolationTime_t": pynvml.c_nvmlViolationTime_t,
    "nvmlConfComputeMemSizeInfo_t": pynvml.c_nvmlConfComputeMemSizeInfo_t,
    "nvmlGpuInstanceProfileInfo_t": pynvml.c_nvmlGpuInstanceProfileInfo_t,
    "nvmlGpuInstanceProfileInfo_v2_t": pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    "nvmlGpuInstanceInfo_t": pynvml.c_nvmlGpuInstanceInfo_t,
    "nvmlComputeInstanceProfileInfo_t": pynvml.c_nvmlComputeInstanceProfileInfo_t,
    "nvmlComputeInstanceProfileInfo_v2_t": pynvml.c_nvmlComputeInstanceProfileInfo_v2_t,
    "nvmlComputeInstanceInfo_t": pynvml.c_nvmlComputeInstanceInfo_t,
    "nvmlGpuInstancePlacement_t": pynvml.c_nvmlGpuInstancePlacement_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
}


@pytest.fixture(scope="module")
def exported() -> set[str]:
    build("programs")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, timeout=30, check=True
    )
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def test_every_name_that_clients_need_is_exported(exported: set[str]) -> None:
    assert sorted({*NEEDED.split(), *ALSO_NEEDED.split(), *TOGETHER} - exported) == []


def test_every_function_that_nvidia_ml_py_knows_is_exported(exported: set[str]) -> None:
    source = Path(pynvml.__file__).read_text()
    known = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', source))
    assert len(known) > 300
    assert sorted(known - exported) == []


def test_nothing_but_the_interface_is_exported(exported: set[str]) -> None:
    assert [name for name in sorted(exported) if not name.startswith("nvml")] == []


def test_the_library_has_the_drivers_name(exported: set[str]) -> None:
    assert exported
    output = subprocess.run(
        ["readelf", "-d", LIBRARY], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert "soname: [libnvidia-ml.so.1]" in output
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", output) == ["libc.so.6"]


def test_structs_have_the_sizes_that_nvidia_ml_py_declares() -> None:
    printed = subprocess.run(
        [build("programs") / "struct_sizes"], capture_output=True, text=True, timeout=30, check=True
    )
    ours = {name: int(size) for name, size in (line.split() for line in printed.stdout.splitlines())}
    assert ours == {name: ctypes.sizeof(struct) for name, struct in STRUCTS.items()}


def test_the_private_table_begins_with_its_size_and_is_returned_by_name(
    library: ctypes.CDLL,
) -> None:
    table = ctypes.POINTER(ctypes.c_size_t)()
    name = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
    assert library.nvmlInternalGetExportTable(ctypes.byref(table), name) == 0
    assert table[0] == 256 * 8
    assert library.nvmlInternalGetExportTable(ctypes.byref(table), bytes(16)) == pynvml.NVML_ERROR_NOT_FOUND
