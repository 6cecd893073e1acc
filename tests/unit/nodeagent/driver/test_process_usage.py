"""How drivers report processes, in each of their ways."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpushare.nodeagent.driver.process_usage import ProcessUsage
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess

MIB = 1 << 20


def process(pid: int, used: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def lists(monkeypatch: pytest.MonkeyPatch, **by_name: Any) -> None:
    """The content of each list; an exception is raised. Lists that are not named are empty."""
    for name in ("Compute", "Graphics", "MPSCompute"):
        for suffix in ("", "_v2"):

            def ask(_: Any, name: str = name + suffix) -> Any:
                listed = by_name.get(name, [])
                if isinstance(listed, Exception):
                    raise listed
                return listed

            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}RunningProcesses{suffix}", ask, raising=False)


def busy(monkeypatch: pytest.MonkeyPatch, *samples: tuple[int, int, int]) -> list[int]:
    """What is reported of computing: time in µs, PID, percent. Returns the ``since`` times of the queries."""
    queries: list[int] = []

    def ask(_: Any, since_us: int) -> Any:
        queries.append(since_us)
        if not samples:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [
            SimpleNamespace(timeStamp=at, pid=pid, smUtil=percent, memUtil=percent // 2, encUtil=3, decUtil=0)
            for at, pid, percent in samples
        ]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", ask)
    return queries


def test_a_process_in_several_lists_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = process(7, 300 * MIB)
    lists(monkeypatch, Compute=[both], Graphics=[both, process(8, 5 * MIB)], MPSCompute=[both])
    since = busy(monkeypatch, (1000, 7, 20), (2000, 7, 40), (2000, 9, 99))
    usage = ProcessUsage()
    assert usage.of("GPU-a", None) == [
        GpuProcess("GPU-a", 7, 300, 30, "M+C+G", 15, 3, 0),
        GpuProcess("GPU-a", 8, 5, -1, "G"),
    ]
    usage.of("GPU-a", None)
    usage.of("GPU-b", None)
    assert since == [0, 2000, 0]


def test_a_process_through_mps_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    lists(monkeypatch, Compute=[], Graphics=[], MPSCompute=[process(7, MIB)])
    busy(monkeypatch)
    assert ProcessUsage().of("GPU-a", None) == [GpuProcess("GPU-a", 7, 1, -1, "M+C")]


def test_memory_that_the_driver_does_not_report_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    lists(monkeypatch, Compute=[process(7, None)])
    busy(monkeypatch)
    assert ProcessUsage().of("GPU-a", None) == [GpuProcess("GPU-a", 7, -1, -1, "C")]


def test_older_drivers_are_queried_in_their_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    lists(monkeypatch, Compute=missing, Compute_v2=[process(7, MIB)], Graphics=missing, MPSCompute=missing)
    busy(monkeypatch)
    assert ProcessUsage().of("GPU-a", None) == [GpuProcess("GPU-a", 7, 1, -1, "C")]


def test_a_gpu_that_does_not_answer_reports_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    lists(monkeypatch, Compute=lost, Compute_v2=lost, Graphics=lost, MPSCompute=lost)
    queries = busy(monkeypatch)
    assert ProcessUsage().of("GPU-a", None) == []
    assert queries == []
