"""Ways to the driver's functions: limited functions are ours on each of them, and unknown ones are passed on."""

import os

import pytest

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import TENANT, run_tenant
from tests.unit.isolation.building import OPEN

OVER = "context()\nresult, _ = take('plain', 4096 * MIB)\nassert result == OUT_OF_MEMORY, result\n"


def test_cu_get_proc_address_returns_ours_for_every_version_and_stream(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        """
must("cuInit", 0)
for name, version, flags, expected in (
    ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
    ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
    ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
    ("cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
    ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
    ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
    ("cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"),
    ("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"),
    ("cuMemAlloc", 13000, 2, "cuMemAlloc_v2"),
    ("cuStreamSynchronize", 7000, 2, "cuStreamSynchronize_ptsz"),
    ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
    ("cuInit", 2000, 0, "cuInit"),
):
    assert look_up(name, version, flags) == exported(expected), (name, version, flags)
for name in ("cuNoSuchFunction", ""):
    assert look_up(name, 13000) == 0
assert look_up("cuDeviceGetName", 2000) == exported("cuDeviceGetName") != 0
""",
    )


def test_unlimited_functions_come_from_the_driver(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        """
name = ctypes.create_string_buffer(64)
must("cuInit", 0)
must("cuDeviceGetName", name, 64, 0)
assert name.value.startswith(b"Tesla V100"), name.value
""",
    )


def test_rtld_deepbind_meets_our_library(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        "tenant = sys.modules[__name__]\ntenant.cuda = ctypes.CDLL('libcuda.so.1', mode=8 | os.RTLD_NOW)\n"
        + OVER,
    )


def test_preloaded_it_is_met_where_the_program_brings_its_own_path(container: LimitedContainer) -> None:
    here = container()
    run_tenant(
        here,
        OVER,
        LD_PRELOAD=str(OPEN / "libcuda.so.1"),
        LD_LIBRARY_PATH=f"{here.run / 'driver'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    )


def test_the_full_path_of_our_library_is_our_library(container: LimitedContainer) -> None:
    run_tenant(container(), OVER, TENANT_CUDA=str(OPEN / "libcuda.so.1"))


def test_a_child_of_fork_has_its_own_slot_and_accounts(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        """
child = os.fork()
if not child:
    context()
    assert take("plain", 1024 * MIB)[0] == 0
    os._exit(0 if take("plain", 1024 * MIB)[0] == OUT_OF_MEMORY else 1)
assert os.waitpid(child, 0)[1] == 0
context()
base = used()
assert take("plain", 1024 * MIB)[0] == 0
child = os.fork()
if not child:
    result, _ = take("plain", MIB)
    os._exit(0 if result == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
assert used() == base + 1024
""",
    )


def test_a_process_that_begins_another_program_leaves_nothing_behind(container: LimitedContainer) -> None:
    here = container()
    run_tenant(
        here,
        f"""
context()
assert take("plain", 1500 * MIB)[0] == 0
os.execve(sys.executable, [sys.executable, "-c", '''
import sys
sys.path.insert(0, {str(TENANT.parent)!r})
from tenant import *
context()
assert take("plain", 1500 * MIB)[0] == 0
'''], os.environ)
""",
    )


@pytest.mark.parametrize(
    "spoil",
    [
        "limits.unlink()",
        "limits.write_text('')",
        "limits.write_text('gpushare-limits 2.0\\n')",
        "usage.unlink()",
        "usage.write_bytes(b'')",
        "usage.write_bytes(b'x' * usage.stat().st_size)",
    ],
)
def test_without_limits_or_usage_the_gpu_cannot_be_used_and_the_reason_is_logged(
    spoil: str, container: LimitedContainer
) -> None:
    here = container()
    exec(spoil, {"limits": here.limits, "usage": here.usage})
    lines = "assert call('cuInit', 0) == NOT_READY\nassert take('plain', MIB)[0] != 0"
    refused = run_tenant(here, lines, GPUSHARE_LOG="1")
    assert "gpushare: " in refused.stderr
    assert "the GPU cannot be used" in refused.stderr
    assert run_tenant(here, lines).stderr == ""


def test_a_gpu_that_was_not_allocated_has_no_memory(container: LimitedContainer) -> None:
    here = container()
    here.limit("GPU-00000000-0000-0000-0000-000000000000 memory_bytes=1073741824")
    run_tenant(
        here,
        "must('cuInit', 0)\nmade = c_void_p()\nassert call('cuCtxCreate_v2', byref(made), 0, 0) == OUT_OF_MEMORY",
    )
