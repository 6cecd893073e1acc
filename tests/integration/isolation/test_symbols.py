"""Every function of the driver is limited, or passed on with a reason, and can be reached through
our libraries.

Compared with NVIDIA's own libraries (which load without a GPU), the newest cuda.h and the newest
bindings of NVML.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pynvml
import pytest

from tests.building import ROOT
from tests.unit.fakegpu.building import IN_CI, SYSTEM
from tests.unit.isolation.building import BUILT, OPEN, build

LIBRARIES = {"cuda": "libcuda.so", "nvml": "libnvidia-ml.so"}


def real(library: str) -> Path:
    found = sorted(SYSTEM.glob(f"usr/lib/*/nvidia/current/{LIBRARIES[library]}.*.*"))
    if not found:
        missing = f"NVIDIA's {LIBRARIES[library]} is not here; scripts/install-system-packages unpacks it"
        if IN_CI:
            pytest.fail(missing)
        pytest.skip(missing)
    return found[0]


def exported(path: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, timeout=30, check=True
    )
    return {line.split()[2].partition("@")[0] for line in listed.stdout.splitlines()}


def ours(library: str) -> set[str]:
    build("libraries")
    return exported(BUILT / f"{LIBRARIES[library]}.1")


def passed_on(library: str) -> list[str]:
    text = (ROOT / "isolation" / "symbols" / f"passed_on_{library}.txt").read_text()
    return [name for line in text.splitlines() if not line.startswith("#") for name in line.split()]


def bound() -> set[str]:
    """The functions of NVML that NVIDIA's newest bindings look up."""
    found = re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text())
    assert len(found) > 400
    return set(found)


def declared() -> set[str]:
    """The symbols that programs built with the newest cuda.h look for."""
    (header,) = (
        Path(str(file.locate()))
        for file in distribution("nvidia-cuda-runtime").files or []
        if file.name == "cuda.h"
    )
    text = header.read_text()
    found = set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w+)\s*\(", text))
    for symbol in re.findall(r"^\s*#\s*define\s+cu[A-Z]\w+\s+(.+)$", text, re.MULTILINE):
        variant = re.search(r"__CUDA_API_PT(SZ|DS)\((cu\w+)\)", symbol)
        if variant:
            found |= {variant[2], f"{variant[2]}_pt{variant[1].lower()}"}
        elif re.fullmatch(r"cu\w+", symbol.strip()):
            found.add(symbol.strip())
    return found - {"cuGetProcAddress_v2_ptsz"}  # a function of the header, which no library has


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_every_function_is_limited_or_passed_on_with_a_reason(library: str) -> None:
    there = exported(real(library)) | (declared() if library == "cuda" else bound())
    table = passed_on(library)
    assert len(table) == len(set(table))
    assert set(table) & ours(library) == set(), "limited, and in the table of what is not"
    assert there - ours(library) - set(table) == set(), "not classified"
    assert set(table) - there == set(), "no driver has these"


#: Functions that end something, and free nothing that is charged.
ENDS_NOTHING_CHARGED = {
    "nothing of it is charged: no memory of the GPU, or code (which is not)": {
        "cuEventDestroy", "cuStreamDestroy", "cuLinkDestroy", "cuLibraryUnload", "cuModuleUnload", "cuMemFreeHost",
        "cuMemHostUnregister", "cuMemAddressFree", "cuUserObjectRelease", "cuDestroyExternalSemaphore",
        "cuDeviceUnregisterAsyncNotification", "cuLogsUnregisterCallback", "cuCtxDisablePeerAccess",
        "cuCtxResetPersistingL2Cache",
    },
    "a view of memory, which stays": {"cuSurfObjectDestroy", "cuTexObjectDestroy", "cuTexRefDestroy"},
    "memory of other interfaces and machines, which is not charged; multicast objects, which have none": {
        "cuDestroyExternalMemory", "cuGraphicsUnmapResources", "cuGraphicsUnregisterResource",
        "cuLogicalEndpointDestroy", "cuLogicalEndpointIdRelease", "cuLogicalEndpointUnbind", "cuMulticastUnbind",
    },
    "a graph is charged when it is instantiated, until that is destroyed": {
        "cuGraphDestroy", "cuGraphDestroyNode", "cuGraphReleaseUserObject", "cuGraphAddMemFreeNode",
        "cuGraphMemFreeNodeGetParams",
    },
    "memory keeps its place": {"cuMemDiscardBatchAsync"},
}  # fmt: skip


def test_functions_that_end_something_are_limited_or_free_nothing_charged() -> None:
    """A function that is newer than these lists must be considered."""
    verbs = "Destroy|Free|Unload|Release|Reset|Close|Detach|Unregister|Unmap|Unbind|Disable|Discard|Trim"
    ends = {name for name in declared() if re.search(verbs, name)}
    assert {"cuMemFree", "cuMemFree_v2", "cuGreenCtxDestroy", "cuIpcCloseMemHandle"} <= ends
    reasons = set().union(*ENDS_NOTHING_CHARGED.values())
    base = {name: re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) for name in ends}
    assert {name for name in ends - ours("cuda") if base[name] not in reasons} == set()
    assert reasons - set(base.values()) == set(), "no driver has these"
    assert {name for name in ends & ours("cuda") if base[name] in reasons} == set(), (
        "limited, with a reason not to be"
    )


def test_the_library_exports_only_functions_of_the_driver() -> None:
    assert ours("cuda") - exported(real("cuda")) - declared() == set()


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_every_function_can_be_reached_by_its_name(library: str, tmp_path: Path) -> None:
    (tmp_path / f"libgpushare-driver-{library}.so").symlink_to(real(library))
    (tmp_path / "names").write_text("\n".join(sorted(exported(real(library)))))
    script = f"""
import ctypes
address = lambda library, name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
ours, real = ctypes.CDLL("{LIBRARIES[library]}.1"), ctypes.CDLL("libgpushare-driver-{library}.so")
for name in open("names").read().split():
    print(name, address(ours, name) == address(real, name))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"LD_LIBRARY_PATH": f"{OPEN}:{tmp_path}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    passed = {line.split()[0]: line.endswith("True") for line in ran.stdout.splitlines()}
    assert {name for name, is_real in passed.items() if not is_real} == ours(library) & exported(
        real(library)
    )


def test_cu_get_proc_address_returns_ours_for_every_limited_function_of_nvidia(tmp_path: Path) -> None:
    """Where NVIDIA's driver returns a function that we limit, ours must be returned, in every version and flag."""
    (tmp_path / "libgpushare-driver-cuda.so").symlink_to(real("cuda"))
    (tmp_path / "names").write_text("\n".join(sorted(exported(real("cuda")))))
    (tmp_path / "ours").write_text("\n".join(sorted(ours("cuda"))))
    script = """
import ctypes, re
ours, real = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libgpushare-driver-cuda.so")
address = lambda library, name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
names, limited = open("names").read().split(), set(open("ours").read().split())
symbols = {address(real, name): name for name in names}
asked = 0
for base in sorted({re.sub(r"(_v\\d+)?(_pt[sd][sz])?$", "", name) for name in names}):
    for version in (2000, 3010, 3020, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 11000, 11020, 11040, 12000, 12020):
        for flags in (0, 1, 2):
            answers = []
            for library in (real, ours):
                for variant in ("cuGetProcAddress", "cuGetProcAddress_v2"):
                    found, status = ctypes.c_void_p(), ctypes.c_int()
                    more = [ctypes.byref(status)] if variant.endswith("v2") else []
                    result = getattr(library, variant)(
                        base.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), *more
                    )
                    answers.append((result, found.value, status.value))
            for theirs, mine in zip(answers[:2], answers[2:]):
                symbol = symbols.get(theirs[1])
                expected = address(ours, symbol) if symbol in limited else theirs[1]
                assert mine == (theirs[0], expected, theirs[2]), (base, version, flags, symbol, theirs, mine)
            asked += 1
print(asked > 1000)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"LD_LIBRARY_PATH": f"{OPEN}:{tmp_path}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


def versions_needed(path: Path) -> set[tuple[int, ...]]:
    listed = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, timeout=30, check=True)
    return {
        tuple(map(int, version.split(".")))
        for version in re.findall(r"\*UND\*.*\bGLIBC_([\d.]+)", listed.stdout)
    }


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_glibc_2_17_is_new_enough(library: str) -> None:
    """The tenant's programs load the library on whatever system their image contains."""
    needed = versions_needed(build("libraries") / f"{LIBRARIES[library]}.1")
    assert needed
    assert max(needed) <= (2, 17)


@pytest.mark.parametrize("library", ["cuda", "nvml"])
def test_the_drivers_library_is_an_optional_dependency_at_fixed_places(library: str) -> None:
    optional = f"libgpushare-optional-{library}.so.1"
    ours, between = (
        subprocess.run(
            ["readelf", "-dW", build("libraries") / name],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        for name in (f"{LIBRARIES[library]}.1", optional)
    )
    assert re.findall(r"Shared library: \[(.*)\]", ours) == [optional, "libc.so.6"]
    assert f"Library soname: [{LIBRARIES[library]}.1]" in ours
    assert "Library rpath: [/run/gpushare/lib:$ORIGIN]" in ours
    assert "NODELETE" in ours
    assert "NEEDED" not in between
    assert f"Auxiliary library: [/run/gpushare/driver/{LIBRARIES[library]}]" in between
