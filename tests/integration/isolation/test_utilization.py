"""How busy the GPU is: each container sees only its own work."""

import subprocess
from collections import Counter
from pathlib import Path

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import Container

ASK = """
import pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
try:
    samples = pynvml.nvmlDeviceGetProcessUtilization(device, 0)
except pynvml.NVMLError_NotFound:
    samples = []
print(pynvml.nvmlDeviceGetUtilizationRates(device).gpu, *[sample.pid for sample in samples])
"""


def utilization(here: Container) -> tuple[int, set[int]]:
    percent, *pids = map(int, run_tenant(here, ASK).stdout.split())
    return percent, set(pids)


def test_a_container_sees_only_its_own_utilization(container: LimitedContainer) -> None:
    busy, idle = container(), container()
    load = fakegpu.build("programs") / "engine_load"
    program = subprocess.Popen(
        [load, fakegpu.ROOT / "fakegpu" / "examples" / "spin.ptx", "kernels:1000000", "60"],
        env=busy.environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        polls = 0
        while (seen := utilization(busy))[0] < 50:
            polls += 1
            assert polls < 100, "never busy"
            assert program.poll() is None
        percent, pids = seen
        assert 0 < percent <= 100
        assert pids == {program.pid}
        assert utilization(idle) == (0, set())
    finally:
        program.kill()
        program.wait(timeout=10)


WITHHELD = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
device, room = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
for name in ("nvmlDeviceGetAccountingPids", "nvmlDeviceGetDynamicPstatesInfo", "nvmlDeviceGetEncoderSessions", "nvmlGpmSampleGet"):
    assert getattr(nvml, name)(device, room, room) == 3, name
kind, count = ctypes.c_uint(), ctypes.c_uint(16)
for samples in range(10):
    assert nvml.nvmlDeviceGetSamples(device, samples, ctypes.c_uint64(0), ctypes.byref(kind), ctypes.byref(count), room) == 3
"""


def test_others_processes_and_the_whole_gpus_usage_over_time_are_withheld(
    container: LimitedContainer, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    run_tenant(container(), WITHHELD, FAKEGPU_TRACE=str(trace))
    # Of the samples those of power and clocks are passed on, which this driver lacks as well.
    passed_on = Counter(trace.read_text().split())
    assert passed_on["nvmlDeviceGetSamples"] == 4
    assert not passed_on.keys() & {
        "nvmlDeviceGetAccountingPids",
        "nvmlDeviceGetEncoderSessions",
        "nvmlGpmSampleGet",
    }
