"""The usage file under a tenant's control: damage there affects only its own container, and is
repaired where possible.
"""

import os
import random
import subprocess
import threading
from pathlib import Path

import pytest

from tests.building import ROOT
from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import TENANT, run_tenant, running_tenant

TAKES = (
    "context()\nbase = used()\nassert take('plain', 1024 * MIB)[0] == 0\nprint(base, used(), flush=True)\n"
)


def test_memory_of_another_process_opened_here_is_charged_once(container: LimitedContainer) -> None:
    here = container()
    exports = """
context()
base = used()
result, address = take("plain", 512 * MIB)
handle = (ctypes.c_ubyte * 64)()
must("cuIpcGetMemHandle", byref(handle), address)
print(base, bytes(handle).hex(), flush=True)
sys.stdin.read()
"""
    with running_tenant(here, exports) as line:
        base, handle = line().split()
        run_tenant(
            here,
            f"""
context()
before = used()
assert before == 2 * {base} + 512, before
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
address = c_uint64()
cuda.cuIpcOpenMemHandle_v2.argtypes = [c_void_p, Handle, c_uint]
must("cuIpcOpenMemHandle_v2", byref(address), Handle.from_buffer_copy(bytes.fromhex("{handle}")), 1)
assert used() == before, used()
must("cuIpcCloseMemHandle", address)
assert used() == before, used()
""",
        )


def test_a_process_that_loses_its_lock_is_charged_again_at_its_next_allocation(
    container: LimitedContainer,
) -> None:
    here = container()
    run_tenant(
        here,
        f"""
import subprocess
sibling = "import sys\\nsys.path.insert(0, {str(TENANT.parent)!r})\\nfrom tenant import *\\ncontext()\\nprint(used())"
context()
base = used()
assert take("plain", 1024 * MIB)[0] == 0
os.close(os.open({str(here.usage)!r}, os.O_RDWR))
ran = subprocess.run([sys.executable, "-c", sibling], capture_output=True, text=True, check=True)
assert int(ran.stdout) == base, ran.stdout
result, _ = take("plain", 1024 * MIB)
assert result == OUT_OF_MEMORY, result
assert used() == base + 1024, used()
""",
    )


@pytest.mark.parametrize("version", [b"\x02", b"\xff"])
def test_a_usage_file_of_another_version_is_refused(container: LimitedContainer, version: bytes) -> None:
    here = container()
    run_tenant(here, "context()")
    with here.usage.open("r+b") as usage:
        usage.seek(8)
        usage.write(version)
    refused = run_tenant(here, "assert call('cuInit', 0) == NOT_READY", GPUSHARE_LOG="1")
    assert "of another version than this library; restart the container" in refused.stderr


def test_noise_in_the_usage_file_neither_hangs_nor_ends_a_process(container: LimitedContainer) -> None:
    here = container()
    stop = threading.Event()

    def scribble() -> None:
        noise = random.Random(3)
        size = here.usage.stat().st_size
        with here.usage.open("r+b", buffering=0) as usage:
            while not stop.is_set():
                usage.seek(noise.randrange(4096, size - 64))
                usage.write(noise.randbytes(64))

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        ran = run_tenant(
            here,
            """
must("cuInit", 0)
made = c_void_p()
if call("cuCtxCreate_v2", byref(made), 0, 0) == 0:
    for _ in range(3000):
        result, held = take("plain", MIB)
        if result == 0:
            give("plain", held)
print("through")
""",
        )
    finally:
        stop.set()
        writer.join()
    assert ran.stdout == "through\n"


def test_the_libraries_compile_for_aarch64() -> None:
    compiler = "aarch64-linux-gnu-gcc"
    if not any((Path(folder) / compiler).exists() for folder in os.environ["PATH"].split(":")):
        pytest.skip(f"{compiler} is not here")
    made = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT / "isolation"), "aarch64"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert made.returncode == 0, made.stderr
