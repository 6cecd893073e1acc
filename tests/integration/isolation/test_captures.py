"""Streams are captured next to other threads as without our libraries: the fake driver follows the
rules observed on an H200 with driver 580.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.captures import THREADS, beside
from gpushare_playground import gpus
from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant
from tests.unit.fakegpu import building as fakegpu

RULES = Path(fakegpu.__file__).with_name("capture_rules.py")
FORBIDDEN = {
    *("cuEventQuery", "cuStreamQuery", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemAlloc", "cuMemFree"),
    *("cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuMemAllocAsync"),
}
#: Refused, and the capture is invalid; both fine.
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


def test_the_fake_driver_forbids_what_the_driver_forbids(tmp_path: Path) -> None:
    fakegpu.build("library")
    gpus.write(tmp_path / "node.gpus", gpus.preset("v100-16160", "n1"))
    as_seen(rules(fakegpu.environment(tmp_path / "node.gpus")))


def test_limits_forbid_nothing_more(container: LimitedContainer) -> None:
    as_seen(rules(container(more=" core_percent=50").environment()))


@pytest.mark.parametrize("threads", THREADS)
def test_no_capture_is_lost_while_other_threads_launch_and_allocate(
    container: LimitedContainer, threads: int
) -> None:
    lines = beside(threads, captures=1000, seconds=20)
    found = json.loads(run_tenant(container(more=" core_percent=90"), lines).stdout)
    assert found["captures"] > 0
    assert (found["lost"], found["threads"]) == (0, threads)
