"""A container that got our libraries and no driver: its programs run as they would without us.

Such are containers under Kata Containers or gVisor, and those whose host's driver has moved since
they were created.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.placed import OVER, Way, compiled, must, needs_root, run

pytestmark = needs_root

#: What may be where the driver's libraries should be. The container runtime creates a directory for a path
#: that the host lacks.
LACKS = {
    "nothing": "true",
    "a directory": "mkdir /run/gpushare/driver/$name",
    "an empty file": ": >/run/gpushare/driver/$name",
    "a program of another machine": "printf '\\177ELF\\1\\1\\1' >/run/gpushare/driver/$name",
}
WITHOUT = """
for name in libcuda.so libnvidia-ml.so; do umount -l /run/gpushare/driver/$name; rm /run/gpushare/driver/$name; {}; done
"""
#: How programs look for a GPU: CUDA's runtime, and nvidia-ml-py.
LOOKS = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
print(cuda.cuInit(0), hasattr(cuda, "cuDriverGetVersion"), hasattr(ctypes.CDLL("libnvidia-ml.so.1"), "nvmlInit_v2"))
"""
NO_DEVICE = 100


def without(lack: str) -> Way:
    return Way("preloaded", before=WITHOUT.format(LACKS[lack]) + "unset LD_LIBRARY_PATH; rm -r /run/system")


@pytest.mark.parametrize("lack", LACKS)
def test_a_shell_starts_and_prints_nothing_of_its_own(
    lack: str, container: LimitedContainer, tmp_path: Path
) -> None:
    result = run(container(), without(lack), tmp_path, "bash", "-c", "echo works")
    assert must(result) == "works\n"
    assert result.stderr == ""


@pytest.mark.parametrize("lack", LACKS)
def test_a_program_that_looks_for_a_gpu_finds_none(
    lack: str, container: LimitedContainer, tmp_path: Path
) -> None:
    found = must(run(container(), without(lack), tmp_path, sys.executable, "-c", LOOKS))
    assert found.split() == [str(NO_DEVICE), "False", "False"]


@pytest.mark.parametrize("flag", ["-Wl,-z,now", "-Wl,-z,lazy"])
def test_a_setuid_or_hardened_program_starts_too(
    flag: str, container: LimitedContainer, tmp_path: Path
) -> None:
    program = compiled(tmp_path, "int main(void) { return 0; }", flag)
    program.chmod(0o4755)
    must(run(container(), without("nothing"), tmp_path, "setpriv", "--reuid=1000", "--clear-groups", program))


def test_with_a_driver_no_setting_of_a_program_removes_the_limit(
    container: LimitedContainer, tmp_path: Path
) -> None:
    """The optional dependency is no switch: the loader finds it only by its path."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in (
        "libgpushare-optional-cuda.so.1",
        "libgpushare-optional-nvml.so.1",
        "libcuda.so",
        "libcuda.so.1",
    ):
        subprocess.run(
            ["gcc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", empty / name],
            check=True,
            timeout=60,
        )
    library_path = f"export LD_LIBRARY_PATH={empty}:/run/system"
    preload = f"export LD_PRELOAD={empty}/libgpushare-optional-cuda.so.1"
    way = Way("preloaded", before=f"{library_path}\n{preload}", as_tenant=True)
    must(run(container(), way, tmp_path, sys.executable, "-c", OVER))


@pytest.mark.parametrize(
    "attempt", ["rm -f {}", "mv -f /run/forged {}", ": >{}", "umount {}", "ln -sf /dev/null {}"]
)
@pytest.mark.parametrize("library", ["lib/libgpushare-optional-cuda.so.1", "driver/libcuda.so"])
def test_a_tenant_can_remove_neither_the_driver_nor_the_dependency_on_it(
    attempt: str, library: str, container: LimitedContainer, tmp_path: Path
) -> None:
    tried = f'touch /run/forged; {attempt.format(f"/run/gpushare/{library}")} && echo changed; exec "$@"'
    way = Way("preloaded", as_tenant=True)
    result = run(container(), way, tmp_path, "bash", "-c", tried, "bash", sys.executable, "-c", OVER)
    assert "changed" not in must(result)
