"""A share of a MIG instance: the container is held to it, and NVIDIA's nvidia-smi shows it in place
of the instance's memory.
"""

import re
import subprocess
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.integration.isolation.containers import run_tenant, running_tenant
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import MIB, Container, lay_out

LIMIT_MIB = 2154


def smi(container: Container, *arguments: str, **visible: str) -> str:
    program = [fakegpu.system_program("nvidia-smi"), *arguments]
    return subprocess.run(
        program, env=container.environment(**visible), capture_output=True, text=True, timeout=30, check=True
    ).stdout


@pytest.fixture
def container(tmp_path: Path) -> Container:
    gpus.write(tmp_path / "node.gpus", gpus.preset("mig", "n1"))
    laid_out = lay_out(tmp_path / "c1", tmp_path / "node.gpus")
    listed = subprocess.run(
        [fakegpu.system_program("nvidia-smi"), "-L"],
        env=fakegpu.environment(laid_out.node),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    laid_out.limit(f"{re.findall('MIG-[0-9a-f-]+', listed)[1]} memory_bytes={LIMIT_MIB * MIB}")
    return laid_out


def test_a_container_is_held_to_its_share_of_an_instance(container: Container) -> None:
    uuid = container.limits.read_text().split("gpu ")[1].split()[0]
    lines = """
context()
total = c_size_t()
must("cuDeviceTotalMem_v2", byref(total), 0)
assert info()[1] * MIB == total.value == 2154 * MIB
assert take("plain", 300 * MIB)[0] == 0
assert take("plain", 1800 * MIB)[0] == 2
print(used(), flush=True)
sys.stdin.read()
"""
    visible = {"FAKEGPU_VISIBLE_DEVICES": uuid}
    with running_tenant(container, lines, **visible) as line:
        used_mib = int(line())
        table = smi(container, **visible)
        assert re.search(rf"\|  0 +3 +0 +0  \| +{used_mib}MiB / +{LIMIT_MIB}MiB  \|", table)
        assert re.search(rf" 0 +3 +0 +\d+ +C .* {used_mib}MiB \|", table)


def test_another_instance_has_no_memory_for_it(container: Container) -> None:
    other = re.findall("MIG-[0-9a-f-]+", smi(container, "-L"))[0]
    lines = "held = c_void_p()\nprint(call('cuInit', 0), call('cuDevicePrimaryCtxRetain', byref(held), 0))"
    assert run_tenant(container, lines, CUDA_VISIBLE_DEVICES=other).stdout == "0 2\n"
    table = smi(container)
    assert other in smi(container, "-L")
    assert re.search(r"\|  0 +2 +0 +0  \| +40192MiB / +40192MiB  \|", table)
