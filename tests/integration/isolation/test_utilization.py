"""How busy the GPU is: each container sees only its own work."""

import subprocess

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
        looks = 0
        while utilization(busy)[0] < 50:
            looks += 1
            assert looks < 100, "never busy"
            assert program.poll() is None
        percent, pids = utilization(busy)
        assert 0 < percent <= 100
        assert pids == {program.pid}
        assert utilization(idle) == (0, set())
    finally:
        program.kill()
        program.wait(timeout=10)
