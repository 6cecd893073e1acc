"""Streams are captured beside other threads as without us: the stand-in has the rules that an H200 with driver 580 was seen to have."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpushare_playground import gpus
from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant
from tests.integration.isolation.test_compute_limit import LOAD
from tests.unit.fakegpu import building as fakegpu

RULES = Path(fakegpu.__file__).with_name("capture_rules.py")
FORBIDDEN = {
    *("cuEventQuery", "cuStreamQuery", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemAlloc", "cuMemFree"),
    *("cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuMemAllocAsync"),
}
#: Refused, and the capture is invalid; both fine.
#: What is asked may not be done yet (600).
FAILS, FINE = [900, 901], ([0, 0], [600, 0])


def rules(environment: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, RULES], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_seen(found: Any) -> None:
    assert {name for name, answer in found["global"].items() if answer == FAILS} == FORBIDDEN
    assert {name for name, answer in found["relaxed"].items() if answer == FAILS} == {"cuCtxSynchronize"}
    assert all(answer in (FAILS, *FINE) for mode in found.values() for answer in mode.values())


def test_the_placeholder_forbids_what_the_driver_forbids(tmp_path: Path) -> None:
    fakegpu.build("library")
    gpus.write(tmp_path / "node.gpus", gpus.preset("v100-16160", "n1"))
    as_seen(rules(fakegpu.environment(tmp_path / "node.gpus")))


def test_limits_forbid_nothing_more(container: LimitedContainer) -> None:
    as_seen(rules(container(more=" core_percent=50").environment()))


def test_no_capture_is_lost_beside_threads_that_launch_and_ask_for_memory(
    container: LimitedContainer,
) -> None:
    lines = (
        LOAD
        + """
import threading
over = threading.Event()
mine = c_void_p()
must("cuCtxGetCurrent", byref(mine))
def busy():
    must("cuCtxSetCurrent", mine)
    own = c_void_p()
    must("cuStreamCreate", byref(own), 1)
    while not over.is_set():
        launch(200_000, own)
        info()
threads = [threading.Thread(target=busy) for _ in range(4)]
for one in threads: one.start()
stream, ends = c_void_p(), []
must("cuStreamCreate", byref(stream), 1)
for _ in range(1500):
    graph = c_void_p()
    must("cuStreamBeginCapture_v2", stream, 0)
    launch(1000, stream)
    ends.append(call("cuStreamEndCapture", stream, byref(graph)))
over.set()
for one in threads: one.join()
print(len(ends), set(ends))
"""
    )
    assert run_tenant(container(more=" core_percent=90"), lines).stdout == "1500 {0}\n"
