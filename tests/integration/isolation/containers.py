"""Containers on the fake driver, and the memory that the driver itself accounts to them."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import SLOWNESS
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import Container

TENANT = Path(__file__).with_name("tenant.py")


def run_tenant(
    container: Container, lines: str, check: bool = True, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs the lines in a program of the container (tenant.py)."""
    result = subprocess.run(
        [sys.executable, TENANT],
        input=lines,
        env=container.environment(**more),
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
        check=False,
    )
    assert not check or result.returncode == 0, result.stderr
    return result


@contextmanager
def running_tenant(container: Container, lines: str, **more: str) -> Iterator[Callable[[], str]]:
    """A program that runs during the block; the yielded function reads its next line of output. It
    may read stdin, which ends with the block.
    """
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(TENANT.parent)!r})\nfrom tenant import *\n{lines}",
        ],
        env=container.environment(**more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin
    assert program.stdout
    try:
        yield program.stdout.readline
    finally:
        program.stdin.close()
        program.kill()
        program.wait(timeout=10)
        program.stdout.close()


def driver_used_mib(node: Path, index: int = 0) -> int:
    """Memory of a GPU that the driver counts as used by processes."""
    smi = fakegpu.system_program("nvidia-smi")
    ran = subprocess.run(
        [smi, "--query-compute-apps=used_memory", "--format=csv,noheader,nounits", f"--id={index}"],
        env=fakegpu.environment(node),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return sum(int(number) for number in re.findall(r"^\d+", ran.stdout, re.MULTILINE))
