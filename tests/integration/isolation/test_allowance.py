"""A container's allowance changes while its processes run: more than its request, or less until
others free memory.
"""

import struct

import pytest

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant, running_tenant
from tests.unit.isolation.building import MIB, Container


def allow(here: Container, mib: int) -> None:
    """In place, as the node agent does: processes have the file mapped."""
    with (here.run / "allowance").open("r+b" if (here.run / "allowance").exists() else "wb") as file:
        file.write(struct.pack("<16Q", mib * MIB, *([0] * 15)))


@pytest.fixture
def bursting(container: LimitedContainer) -> Container:
    """It requests 1024 MiB and may use 4096 at first."""
    here = container(1024)
    here.limits.write_text(here.limits.read_text().replace(" 1.1\n", " 1.2\n") + "allowance\n")
    allow(here, 4096)
    return here


def test_a_running_process_is_held_to_the_current_allowance(bursting: Container) -> None:
    lines = """
context()
print(info()[1], take("plain", 2048 * MIB)[0], flush=True)
while info()[1] != 1024:
    pass
print(info()[0], take("plain", 2 * MIB)[0] == OUT_OF_MEMORY, flush=True)
while info()[1] != 3072:
    pass
print(take("plain", 256 * MIB)[0], flush=True)
"""
    with running_tenant(bursting, lines) as line:
        assert line() == "4096 0\n"
        allow(bursting, 1024)
        assert line() == "0 True\n"
        allow(bursting, 3072)
        assert line() == "0\n"


def test_allocations_within_the_request_wait_for_memory(bursting: Container) -> None:
    allow(bursting, 0)
    lines = """
must("cuInit", 0)
print("begins", flush=True)
made = c_void_p()
must("cuCtxCreate_v2", byref(made), 0, 0)
print(info()[1], take("plain", 256 * MIB)[0], take("plain", 1024 * MIB)[0] == OUT_OF_MEMORY, flush=True)
"""
    with running_tenant(bursting, lines) as line:
        assert line() == "begins\n"
        allow(bursting, 1024)
        assert line() == "1024 0 True\n"


def test_without_its_allowance_file_a_container_gets_no_memory(bursting: Container) -> None:
    (bursting.run / "allowance").unlink()
    refused = run_tenant(bursting, "context()", check=False, GPUSHARE_LOG="1")
    assert refused.returncode != 0
    assert "allowance: No such file or directory; the GPU cannot be used without it" in refused.stderr


def test_an_allowance_file_that_the_limits_do_not_name_is_ignored(container: LimitedContainer) -> None:
    """A tenant may be able to create it."""
    here = container(1024)
    allow(here, 4096)
    run_tenant(here, "context(); assert info()[1] == 1024")
