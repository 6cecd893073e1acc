"""Faults switched on and off while a program runs, and invalid description files."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.building import environment

Describe = Callable[..., None]
NODE = gpus.preset("core-mem-4", "n1")


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def with_first(**fields: Any) -> gpus.GpuNode:
    return replace(NODE, gpus=(replace(NODE.gpus[0], **fields), *NODE.gpus[1:]))


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("lost", pynvml.NVMLError_GpuIsLost),
        ("reset-required", pynvml.NVMLError_ResetRequired),
        ("unknown-error", pynvml.NVMLError_Unknown),
    ],
)
def test_a_fault_fails_every_call_on_its_gpu_only_until_it_is_removed(
    fault: str, error: type[Exception], described: Describe
) -> None:
    described(NODE)
    first, second = handle(0), handle(1)
    described(with_first(fault=fault))
    for query in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetCpuAffinity):
        with pytest.raises(error):
            query(first, 1) if query is pynvml.nvmlDeviceGetCpuAffinity else query(first)
    with pytest.raises(error):
        handle(0)
    assert pynvml.nvmlDeviceGetCount() == 4
    assert pynvml.nvmlDeviceGetUUID(second) == NODE.gpus[1].uuid
    described(NODE)
    assert pynvml.nvmlDeviceGetUUID(first) == NODE.gpus[0].uuid


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("driver-not-loaded", pynvml.NVMLError_DriverNotLoaded),
        ("version-mismatch", pynvml.NVMLError_LibRmVersionMismatch),
    ],
)
def test_a_removed_driver_fails_every_call_and_can_come_back(
    fault: str, error: type[Exception], described: Describe
) -> None:
    described(NODE)
    device = handle()
    described(replace(NODE, fault=fault))
    for query in (
        pynvml.nvmlInit,
        pynvml.nvmlDeviceGetCount,
        pynvml.nvmlSystemGetDriverVersion,
        lambda: pynvml.nvmlDeviceGetUUID(device),
    ):
        with pytest.raises(error):
            query()
    described(NODE)
    assert pynvml.nvmlDeviceGetUUID(device) == NODE.gpus[0].uuid


def test_ecc_errors_are_counted(described: Describe) -> None:
    described(NODE)
    described(with_first(ecc_uncorrected=2, ecc_corrected=5))
    corrected, uncorrected = (
        pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    )
    counts = [
        pynvml.nvmlDeviceGetTotalEccErrors(handle(index), kind, pynvml.NVML_VOLATILE_ECC)
        for index in (0, 1)
        for kind in (corrected, uncorrected)
    ]
    assert counts == [5, 2, 0, 0]


def test_the_recovery_action_of_a_gpu_is_reported(described: Describe) -> None:
    def reported_action() -> int:
        field = pynvml.nvmlDeviceGetFieldValues(handle(), [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
        assert field.nvmlReturn == pynvml.NVML_SUCCESS
        return int(field.value.uiVal)

    described(NODE)
    assert reported_action() == pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    actions = [name for name in dir(pynvml) if name.startswith("NVML_GPU_RECOVERY_ACTION_")]
    for name in actions:
        action = name.removeprefix("NVML_GPU_RECOVERY_ACTION_").lower().replace("_", "-")
        if action != "none":
            described(with_first(recovery=action))
            assert reported_action() == getattr(pynvml, name)


def test_a_gpu_removed_from_the_file_is_lost(described: Describe) -> None:
    described(NODE)
    last = handle(3)
    three = replace(NODE, gpus=NODE.gpus[:3], paths={}, nvlinks={})
    described(three)
    assert pynvml.nvmlDeviceGetCount() == 3
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetUUID(last)


def test_calls_outside_of_init_and_shutdown_are_refused(described: Describe) -> None:
    described(NODE)
    device = handle()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetUUID(device)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceSetPersistenceMode(device, 1)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetUUID(device) == NODE.gpus[0].uuid


# --- events ---------------------------------------------------------------------------------------

EVERYTHING = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeSingleBitEccError
)


class Watch:
    """An event set on all GPUs of the node."""

    def __init__(self, types: int = EVERYTHING) -> None:
        self.set = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            assert pynvml.nvmlDeviceGetSupportedEventTypes(handle(index)) & types == types
            pynvml.nvmlDeviceRegisterEvents(handle(index), types, self.set)

    def next(self, timeout_ms: int = 0) -> tuple[str, int, int] | None:
        try:
            event = pynvml.nvmlEventSetWait_v2(self.set, timeout_ms)
        except pynvml.NVMLError_Timeout:
            return None
        return pynvml.nvmlDeviceGetUUID(event.device), event.eventType, event.eventData

    def all(self) -> list[tuple[str, int, int]]:
        return list(iter(self.next, None))  # type: ignore[arg-type]


def test_each_step_up_of_an_xid_is_one_event(described: Describe) -> None:
    described(with_first(xids={31: 1}))
    watch = Watch()
    uuid, xid = NODE.gpus[0].uuid, pynvml.nvmlEventTypeXidCriticalError
    assert watch.all() == []
    described(with_first(xids={31: 1, 79: 2}))
    assert watch.all() == [(uuid, xid, 79), (uuid, xid, 79)]
    described(with_first(xids={31: 2, 79: 2}))
    assert watch.all() == [(uuid, xid, 31)]
    described(with_first())
    assert watch.all() == []
    described(with_first(xids={79: 1}))
    assert watch.all() == [(uuid, xid, 79)]


def test_ecc_errors_are_events_for_registered_listeners(described: Describe) -> None:
    described(NODE)
    everything, xids = Watch(), Watch(pynvml.nvmlEventTypeXidCriticalError)
    described(with_first(ecc_corrected=1, ecc_uncorrected=1, xids={48: 1}))
    assert sorted(event[1] for event in everything.all()) == [
        pynvml.nvmlEventTypeSingleBitEccError,
        pynvml.nvmlEventTypeDoubleBitEccError,
        pynvml.nvmlEventTypeXidCriticalError,
    ]
    assert [event[1:] for event in xids.all()] == [(pynvml.nvmlEventTypeXidCriticalError, 48)]


def test_a_wait_ends_when_the_event_comes(described: Describe) -> None:
    described(NODE)
    watch = Watch()
    seen: list[Any] = []
    waiter = threading.Thread(target=lambda: seen.append(watch.next(timeout_ms=30_000)))
    waiter.start()
    described(with_first(xids={79: 1}))
    waiter.join(20)
    assert not waiter.is_alive()
    assert seen == [(NODE.gpus[0].uuid, pynvml.nvmlEventTypeXidCriticalError, 79)]


def test_a_lost_gpu_ends_the_wait_after_its_last_event(described: Describe) -> None:
    described(NODE)
    watch = Watch()
    described(with_first(xids={79: 1}, fault="lost"))
    event = pynvml.nvmlEventSetWait_v2(watch.set, 1000)
    assert event.eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        watch.next(timeout_ms=30_000)


def test_events_that_a_gpu_cannot_have_are_not_registered(described: Describe) -> None:
    described(with_first(ecc=""))
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handle()) == pynvml.nvmlEventTypeXidCriticalError
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(handle(), EVERYTHING, pynvml.nvmlEventSetCreate())


# --- files ------------------------------------------------------------------------------------------

PROBE = """
import pynvml
for attempt in range(3):
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        last = error
raise SystemExit(last.value % 256)
"""


def opened_by_a_program(node: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROBE],
        env=environment(node),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.usefixtures("library")
def test_a_typo_fails_init_with_one_line_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "node.gpus"
    path.write_text(gpus.render(NODE).replace("memory", "memry", 1))
    completed = opened_by_a_program(path)
    assert completed.returncode == pynvml.NVML_ERROR_UNKNOWN % 256
    assert completed.stdout == ""
    assert completed.stderr == f"fakegpu: {path}:9: memry: unknown key; did you mean 'memory'?\n"


@pytest.mark.usefixtures("library")
def test_a_missing_file_is_reported_as_a_missing_driver(tmp_path: Path) -> None:
    advice = "; name the file that describes the node's GPUs\n"
    completed = opened_by_a_program(tmp_path / "none")
    assert completed.returncode == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert (completed.stdout, completed.stderr) == (
        "",
        f"fakegpu: FAKEGPU_NODE: {tmp_path}/none: No such file or directory{advice}",
    )
    os.mkfifo(tmp_path / "pipe")
    completed = opened_by_a_program(tmp_path / "pipe")
    assert completed.returncode == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


@pytest.mark.usefixtures("library")
def test_an_unset_variable_is_reported() -> None:
    settings = environment(Path())
    del settings["FAKEGPU_NODE"]
    completed = subprocess.run(
        [sys.executable, "-c", PROBE], env=settings, capture_output=True, text=True, timeout=30, check=False
    )
    assert completed.returncode == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert completed.stderr == (
        "fakegpu: FAKEGPU_NODE: not set, and no /etc/fakegpu/node.conf; name the file that describes the node's GPUs\n"
    )


def test_a_relative_name_stays_valid_when_the_program_changes_its_directory(
    described: Describe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAKEGPU_NODE", "node.gpus")
    described(NODE)
    monkeypatch.chdir("/")
    described(with_first(fault="lost"))
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        handle()


def test_a_mistake_in_a_live_file_is_reported_once_and_the_previous_version_stays(
    described: Describe, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    described(NODE)
    device, path = handle(), tmp_path / "node.gpus"
    path.write_text(gpus.render(NODE) + "falut lost\n")
    for _ in range(3):
        assert pynvml.nvmlDeviceGetUUID(device) == NODE.gpus[0].uuid
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"fakegpu: {path}:")
    assert captured.err.endswith(
        "falut: unknown key; did you mean 'fault'? (the description before it stays in force)\n"
    )
    assert captured.err.count("\n") == 1


def test_without_its_file_the_driver_is_not_loaded_until_it_is_back(
    described: Describe, tmp_path: Path
) -> None:
    described(NODE)
    device = handle()
    (tmp_path / "node.gpus").unlink()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlDeviceGetUUID(device)
    described(NODE)
    assert pynvml.nvmlDeviceGetUUID(device) == NODE.gpus[0].uuid


def test_a_trace_names_the_calls(
    described: Describe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKEGPU_TRACE", str(tmp_path / "trace"))
    described(NODE)
    handle(1)
    assert (tmp_path / "trace").read_text().split() == ["nvmlInit", "nvmlDeviceGetHandleByIndex_v2"]
