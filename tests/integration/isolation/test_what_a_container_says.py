"""The node agent's readings of a container's usage file match what its programs did."""

from pathlib import Path

import pytest

from gpushare.nodeagent.isolation.storage.usage_file import read_usage
from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant, running_tenant
from tests.integration.isolation.test_compute_limit import LOAD, arbiter, place
from tests.patience import Deadline

MIB = 1 << 20


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    """Where the arbiter looks for containers."""
    folder = tmp_path / "containers"
    folder.mkdir()
    return folder


def test_a_container_in_which_nothing_ran_reports_nothing(container: LimitedContainer) -> None:
    assert read_usage(container().run, 1) == []


def test_memory_is_logged_as_charged_and_each_refusal_once(container: LimitedContainer) -> None:
    here = container(1024)
    lines = """
context()
print(used(), flush=True)
result, held = take("plain", 256 * MIB)
for _ in range(3):
    assert take("plain", 1024 * MIB)[0] == OUT_OF_MEMORY
print(used(), flush=True)
sys.stdin.read()
"""
    with running_tenant(here, lines) as line:
        base_mib, used_mib = int(line()), int(line())
        (usage,) = read_usage(here.run, 1)
        assert used_mib == base_mib + 256
        assert usage.context_bytes == base_mib * MIB
        assert usage.memory_bytes == used_mib * MIB
        assert usage.refused == 3
        assert (usage.busy_ns, usage.waited_ns) == (0, 0)


def test_a_container_with_a_compute_share_reports_usage_and_waiting_time(
    container: LimitedContainer, containers: Path
) -> None:
    here = container(more=" core_percent=20")
    place(containers, here)
    # A loop uses all of the GPU's time: however busy the machine is, it has to wait sooner or later.
    loop = LOAD + 'while True:\n    launch(10_000_000)\n    print("launched", flush=True)'
    deadline = Deadline(60.0)
    with arbiter(containers), running_tenant(here, loop) as line:
        while line():
            (usage,) = read_usage(here.run, 1)
            if usage.busy_ns > 60e6 and usage.waited_ns > 300e6:
                break
            assert not deadline.passed(), usage
    assert usage.refused == 0


def test_a_log_that_a_tenant_overwrites_or_truncates_harms_no_other_container(
    container: LimitedContainer,
) -> None:
    here = container()
    run_tenant(here, "context()")
    assert len(read_usage(here.run, 16)) == 16
    assert len(read_usage(here.run, 99)) == 16
    whole = here.usage.read_bytes()
    here.usage.write_bytes(b"\xff" * len(whole))
    assert read_usage(here.run, 1) == []
    here.usage.write_bytes(whole[:16] + b"\xff" * (len(whole) - 16))
    assert read_usage(here.run, 1)[0].refused == 2**64 - 1
    for size in (0, 10, 16, 5000, 69_640):
        here.usage.write_bytes(whole[:size])
        assert read_usage(here.run, 1) == []
    here.usage.unlink()
    assert read_usage(here.run, 1) == []
    here.usage.symlink_to("/etc/passwd")
    assert read_usage(here.run, 1) == []
