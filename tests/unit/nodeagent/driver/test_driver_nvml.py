"""How NVML's answers are interpreted, including rare ones. (Those of the fake driver are tested as a whole.)"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpushare.nodeagent.driver.cgroup_memory_limits import NO_LIMIT
from gpushare.nodeagent.driver.driver_faults import suggestion_of
from gpushare.nodeagent.driver.nvml import DriverNvml, FoundGpu, Hardware, XidEvent
from gpushare.nodeagent.errors import DriverMissing, NvmlFailed

MIB = 1 << 20


def fails(code: int) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise pynvml.NVMLError(code)

    return call


def handle_at(address: int) -> Any:
    """A device's handle: a pointer that only the driver follows."""
    return ctypes.cast(address, pynvml.c_nvmlDevice_t)


def index_of(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0) // 0x1000 - 1


def handle_of(index: int) -> Any:
    return handle_at((index + 1) * 0x1000)


def xid_events(*events: tuple[Any, int]) -> Callable[..., Any]:
    """XIDs in the order in which the driver reports them: device and number."""
    waiting = list(events)

    def wait(events: object, timeout_ms: int) -> Any:
        if not waiting:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        device, xid = waiting.pop(0)
        event = pynvml.c_nvmlEventData_t()
        event.device, event.eventType, event.eventData = device, pynvml.nvmlEventTypeXidCriticalError, xid
        return event

    return wait


class Driver:
    """Two GPUs, whose answers a test replaces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.answers("nvmlInit", lambda: None)
        self.answers("nvmlShutdown", lambda: None)
        self.answers("nvmlDeviceGetCount", lambda: 2)
        self.answers("nvmlDeviceGetHandleByIndex", handle_of)
        self.answers("nvmlDeviceGetUUID", lambda handle: f"GPU-{index_of(handle)}")
        self.answers("nvmlDeviceGetName", lambda handle: b"Tesla T4")
        self.answers(
            "nvmlDeviceGetMemoryInfo",
            lambda handle, version=None: SimpleNamespace(total=15360 * MIB + 5, reserved=0),
        )
        self.answers("nvmlDeviceGetPciInfo", lambda handle: SimpleNamespace(busId=b"00000000:3B:00.0"))
        self.answers("nvmlDeviceGetMinorNumber", lambda handle: index_of(handle) + 4)
        self.answers("nvmlDeviceGetMigMode", fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
        self.answers("nvmlDeviceGetMemoryAffinity", fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
        self.answers("nvmlDeviceGetFieldValues", fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
        self.answers("nvmlEventSetCreate", lambda: "set")
        self.answers("nvmlEventSetFree", lambda events: None)
        self.answers("nvmlDeviceRegisterEvents", lambda handle, types, events: None)
        self.answers("nvmlEventSetWait_v2", fails(pynvml.NVML_ERROR_TIMEOUT))

    def answers(self, function: str, answer: Callable[..., Any]) -> None:
        self._monkeypatch.setattr(pynvml, function, answer)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def opened(sysfs: Path = Path("/nowhere")) -> DriverNvml:
    nvml = DriverNvml(sysfs_pci=sysfs)
    nvml.open()
    nvml.enumerate()
    return nvml


def test_a_node_without_a_driver_is_distinguished_from_one_whose_driver_fails(driver: Driver) -> None:
    driver.answers("nvmlInit", fails(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    with pytest.raises(DriverMissing, match=r"^NVIDIA driver: ") as missing:
        DriverNvml().open()
    assert "Install the NVIDIA driver" in suggestion_of(missing.value)


@pytest.mark.parametrize(
    ("code", "suggestion"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Run `nvidia-smi` as root on the node to load it"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot the node"),
        (pynvml.NVML_ERROR_UNKNOWN, "for its error message"),
    ],
)
def test_a_failing_driver_is_present_and_its_suggestion_follows_from_the_error(
    driver: Driver, code: int, suggestion: str
) -> None:
    driver.answers("nvmlInit", fails(code))
    with pytest.raises(NvmlFailed) as failure:
        DriverNvml().open()
    assert failure.value.code == code
    assert suggestion in suggestion_of(failure.value)
    assert "Install" not in suggestion_of(failure.value)


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNINITIALIZED,
    ],
)
def test_a_driver_error_for_one_gpu_is_the_drivers_failure(driver: Driver, code: int) -> None:
    nvml = opened()
    driver.answers("nvmlDeviceGetMemoryInfo", fails(code))
    for call in (lambda: nvml.probe("GPU-0"), nvml.enumerate):
        with pytest.raises(NvmlFailed) as failure:
            call()
        assert (failure.value.subject, failure.value.code) == ("NVML", code)
    driver.answers("nvmlDeviceGetMemoryInfo", fails(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert nvml.enumerate().gpus == ()


def test_an_nvml_text_that_is_a_sentence_becomes_part_of_one(driver: Driver) -> None:
    driver.answers("nvmlInit", fails(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    with pytest.raises(NvmlFailed) as failure:
        DriverNvml().open()
    assert str(failure.value) == "NVML: RM has detected an NVML/RM version mismatch"


def test_gpus_are_read_with_the_drivers_properties(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    nvml = DriverNvml(sysfs_pci=tmp_path)
    nvml.open()
    found = nvml.enumerate()
    assert found.gpus[0] == FoundGpu(0, "GPU-0", 15360, "Tesla T4", "00000000:3B:00.0", 1, mig=False, minor=4)
    assert found.unreadable == ()


def test_gpu_properties_come_from_the_driver_and_the_root_complex_from_the_kernel(
    driver: Driver, tmp_path: Path
) -> None:
    driver.answers("nvmlDeviceGetArchitecture", lambda handle: pynvml.NVML_DEVICE_ARCH_HOPPER)
    driver.answers("nvmlDeviceGetCudaComputeCapability", lambda handle: (9, 0))
    driver.answers("nvmlSystemGetDriverVersion", lambda: b"580.95.05")
    device = tmp_path / "devices" / "pci0000:3a" / "0000:3a:01.0" / "0000:3b:00.0"
    device.mkdir(parents=True)
    (tmp_path / "0000:3b:00.0").symlink_to(device)
    nvml = DriverNvml(sysfs_pci=tmp_path)
    nvml.open()
    assert nvml.enumerate().gpus[0].hardware == Hardware("Hopper", "9.0", "580.95.05", "pci0000:3a")


def test_a_gpu_with_unknown_properties_is_found_all_the_same(driver: Driver) -> None:
    driver.answers("nvmlDeviceGetArchitecture", lambda handle: 4294967295)
    driver.answers("nvmlDeviceGetCudaComputeCapability", fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
    driver.answers("nvmlSystemGetDriverVersion", fails(pynvml.NVML_ERROR_UNKNOWN))
    nvml = DriverNvml(sysfs_pci=Path("/nowhere"))
    nvml.open()
    assert nvml.enumerate().gpus[0].hardware == Hardware()


def test_the_drivers_numa_node_takes_precedence_over_the_kernels(driver: Driver) -> None:
    driver.answers("nvmlDeviceGetMemoryAffinity", lambda handle, size, scope: [0b100])
    nvml = DriverNvml()
    nvml.open()
    assert nvml.enumerate().gpus[0].numa_node == 2


def test_memory_reserved_by_the_driver_is_rounded_up(driver: Driver) -> None:
    memory = SimpleNamespace(total=143771 * MIB, reserved=615 * MIB + 1)
    driver.answers("nvmlDeviceGetMemoryInfo", lambda handle, version=None: memory)
    nvml = DriverNvml()
    nvml.open()
    assert [(gpu.total_mib, gpu.reserved_mib) for gpu in nvml.enumerate().gpus] == [(143771, 616)] * 2


def test_drivers_before_the_second_version_of_memory_info_are_read_by_the_first(driver: Driver) -> None:
    def answer(handle: object, version: int | None = None) -> Any:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=16160 * MIB)

    driver.answers("nvmlDeviceGetMemoryInfo", answer)
    nvml = DriverNvml()
    nvml.open()
    assert nvml.enumerate().gpus[0].total_mib == 16160


def test_an_unreadable_gpu_is_named_and_the_others_are_found(driver: Driver) -> None:
    def answer(index: int) -> Any:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return handle_of(index)

    driver.answers("nvmlDeviceGetHandleByIndex", answer)
    nvml = DriverNvml()
    nvml.open()
    found = nvml.enumerate()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-1"]
    assert [str(one) for one in found.unreadable] == ["GPU 0 cannot be read (GPU is lost)"]


def test_mig_mode_is_seen(driver: Driver) -> None:
    driver.answers("nvmlDeviceGetMigMode", lambda handle: [1, 1])
    nvml = DriverNvml()
    nvml.open()
    driver.answers("nvmlDeviceGetMaxMigDeviceCount", lambda handle: 0)
    assert all(gpu.mig and not gpu.hides_instances for gpu in nvml.enumerate().gpus)
    driver.answers("nvmlDeviceGetMaxMigDeviceCount", fails(pynvml.NVML_ERROR_NO_PERMISSION))
    assert all(gpu.mig and gpu.hides_instances for gpu in nvml.enumerate().gpus)


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        pytest.param("nvmlDeviceGetCount", lambda: 3, id="one more"),
        pytest.param("nvmlDeviceGetCount", lambda: 1, id="one fewer"),
        pytest.param("nvmlDeviceGetHandleByIndex", lambda index: handle_of(1 - index), id="other indices"),
        pytest.param("nvmlDeviceGetMigMode", lambda handle: [index_of(handle), 0], id="MIG mode"),
        pytest.param(
            "nvmlDeviceGetHandleByIndex", fails(pynvml.NVML_ERROR_GPU_IS_LOST), id="one is not readable"
        ),
    ],
)
def test_changed_gpus_are_noticed(driver: Driver, function: str, answer: Callable[..., Any]) -> None:
    driver.answers("nvmlDeviceGetMaxMigDeviceCount", lambda handle: 0)
    nvml = opened()
    assert not nvml.gpus_changed()
    driver.answers(function, answer)
    assert nvml.gpus_changed()
    nvml.enumerate()
    assert not nvml.gpus_changed()


def test_a_gpu_that_only_the_kernel_module_has_is_noticed(driver: Driver, tmp_path: Path) -> None:
    nvml = DriverNvml(procfs_gpus=tmp_path)
    nvml.open()
    nvml.enumerate()
    assert not nvml.gpus_changed()
    (tmp_path / "0000:3b:00.0").mkdir()
    assert nvml.gpus_changed()


def test_an_unavailable_list_is_a_failure(driver: Driver) -> None:
    driver.answers("nvmlDeviceGetCount", fails(pynvml.NVML_ERROR_UNKNOWN))
    nvml = DriverNvml()
    nvml.open()
    with pytest.raises(NvmlFailed):
        nvml.enumerate()


def test_a_probe_names_the_fault(driver: Driver) -> None:
    nvml = opened()
    assert nvml.probe("GPU-0") == ""
    assert nvml.probe("GPU-9") == "NVML no longer finds it"
    driver.answers("nvmlDeviceGetMemoryInfo", fails(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert nvml.probe("GPU-0") == "GPU is lost"


def test_a_driver_that_requires_a_reset_is_reported(driver: Driver) -> None:
    nvml = opened()
    action = SimpleNamespace(
        nvmlReturn=0, value=SimpleNamespace(uiVal=pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    )
    driver.answers("nvmlDeviceGetFieldValues", lambda handle, fields: [action])
    assert nvml.probe("GPU-0") == "the driver requires a reset of this GPU"
    action.value.uiVal = pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    assert nvml.probe("GPU-0") == ""


def test_xids_are_read_until_none_is_left(driver: Driver) -> None:
    nvml = opened()
    driver.answers("nvmlEventSetWait_v2", xid_events((handle_of(1), 48), (handle_of(0), 13)))
    assert nvml.wait_xids(0.01) == [XidEvent("GPU-1", 48), XidEvent("GPU-0", 13)]
    assert nvml.wait_xids(0.01) == []


def test_an_xid_of_a_lost_gpu_is_known_by_its_handle(driver: Driver) -> None:
    nvml = opened()
    driver.answers("nvmlDeviceGetUUID", fails(pynvml.NVML_ERROR_GPU_IS_LOST))
    driver.answers("nvmlEventSetWait_v2", xid_events((handle_of(0), 79)))
    assert nvml.wait_xids(0.01) == [XidEvent("GPU-0", 79)]


def test_an_xid_with_another_handle_is_known_by_the_uuid(driver: Driver) -> None:
    nvml = opened()
    driver.answers("nvmlDeviceGetUUID", lambda handle: b"GPU-1")
    driver.answers("nvmlEventSetWait_v2", xid_events((handle_at(0xABC000), 48)))
    assert nvml.wait_xids(0.01) == [XidEvent("GPU-1", 48)]


def test_an_xid_of_a_gpu_that_the_driver_cannot_name_counts_for_all(driver: Driver) -> None:
    nvml = opened()
    driver.answers("nvmlDeviceGetUUID", fails(pynvml.NVML_ERROR_GPU_IS_LOST))
    driver.answers("nvmlEventSetWait_v2", xid_events((None, 79)))
    assert nvml.wait_xids(0.01) == [XidEvent("GPU-0", 79), XidEvent("GPU-1", 79)]


def test_if_events_stop_the_probes_remain(driver: Driver) -> None:
    nvml = opened()
    driver.answers("nvmlEventSetWait_v2", fails(pynvml.NVML_ERROR_UNKNOWN))
    assert nvml.wait_xids(0.01) == []
    assert nvml.wait_xids(0.01) is None
    driver.answers("nvmlShutdown", fails(pynvml.NVML_ERROR_UNINITIALIZED))
    nvml.close()


def test_events_that_stopped_are_subscribed_to_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe of a GPU need fail for that, and nothing else would reopen NVML."""
    monkeypatch.setattr("gpushare.nodeagent.driver.nvml._LISTEN_AGAIN_S", 0.0)
    nvml = opened()
    driver.answers("nvmlEventSetWait_v2", fails(pynvml.NVML_ERROR_UNKNOWN))
    assert nvml.wait_xids(0.01) == []
    driver.answers("nvmlEventSetCreate", fails(pynvml.NVML_ERROR_UNKNOWN))
    assert nvml.wait_xids(0.01) is None
    driver.answers("nvmlEventSetCreate", lambda: "another set")
    driver.answers("nvmlEventSetWait_v2", xid_events((handle_of(1), 48)))
    assert nvml.wait_xids(0.01) == [XidEvent("GPU-1", 48)]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            "this driver has no limits by cgroup; they come with r615 (CUDA 13.4)",
        ),
        (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            "the driver says that this GPU does not support limits by cgroup",
        ),
        (pynvml.NVML_ERROR_NOT_FOUND, ""),
        (pynvml.NVML_ERROR_OPERATING_SYSTEM, ""),
    ],
)
def test_support_for_cgroup_limits_is_queried_of_the_root_cgroup(driver: Driver, code: int, why: str) -> None:
    driver.answers("nvmlDeviceGetMemoryLimits_v1", fails(code))
    assert opened().can_limit("/sys/fs/cgroup") == {"GPU-0": why, "GPU-1": why}


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNKNOWN,
    ],
)
def test_a_gpu_that_does_not_answer_is_not_reported_to_have_cgroup_limits(driver: Driver, code: int) -> None:
    driver.answers("nvmlDeviceGetMemoryLimits_v1", fails(code))
    assert opened().can_limit("/sys/fs/cgroup") == {}


def test_limits_are_set_in_bytes_without_a_soft_one_and_read_back(driver: Driver) -> None:
    stored: dict[tuple[int, str], tuple[int, int]] = {}

    def take(handle: Any, limits: Any) -> None:
        stored[index_of(handle), limits.nameSpace] = (limits.softLimit, limits.hardLimit)

    def tell(handle: Any, limits: Any) -> None:
        if (index_of(handle), limits.nameSpace) not in stored:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        limits.softLimit, limits.hardLimit = stored[index_of(handle), limits.nameSpace]

    driver.answers("nvmlDeviceSetMemoryLimits_v1", take)
    driver.answers("nvmlDeviceGetMemoryLimits_v1", tell)
    nvml = opened()
    assert nvml.limit_bytes("GPU-1", "/sys/fs/cgroup/a") == NO_LIMIT
    nvml.set_limit("GPU-1", "/sys/fs/cgroup/a", 5 * MIB)
    assert stored == {(1, "/sys/fs/cgroup/a"): (0, 5 * MIB)}
    assert nvml.limit_bytes("GPU-1", "/sys/fs/cgroup/a") == 5 * MIB
    assert nvml.limit_bytes("GPU-0", "/sys/fs/cgroup/a") == NO_LIMIT


def test_limits_refused_by_the_driver_are_failures_of_that_gpu(driver: Driver) -> None:
    driver.answers("nvmlDeviceSetMemoryLimits_v1", fails(pynvml.NVML_ERROR_NO_PERMISSION))
    driver.answers("nvmlDeviceGetMemoryLimits_v1", fails(pynvml.NVML_ERROR_OPERATING_SYSTEM))
    nvml = opened()
    with pytest.raises(NvmlFailed, match=r"^GPU GPU-1: .*[Pp]ermission"):
        nvml.set_limit("GPU-1", "/sys/fs/cgroup/a", MIB)
    with pytest.raises(NvmlFailed) as failure:
        nvml.limit_bytes("GPU-1", "/sys/fs/cgroup/a")
    assert failure.value.code == pynvml.NVML_ERROR_OPERATING_SYSTEM
    with pytest.raises(NvmlFailed, match="lost"):
        nvml.limit_bytes("GPU-7", "/sys/fs/cgroup/a")


def test_a_driver_without_events_is_watched_by_probes(driver: Driver) -> None:
    driver.answers("nvmlEventSetCreate", fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    assert opened().wait_xids(0.01) is None
    driver.answers("nvmlEventSetCreate", lambda: "set")
    driver.answers("nvmlDeviceRegisterEvents", fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert opened().wait_xids(0.01) == []
