"""Every name of the CUDA driver's interface is found, and means the right variant."""

import ctypes
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.building import ROOT
from tests.unit.fakegpu.building import BUILT, IN_CI, SYSTEM, build
from tests.unit.fakegpu.cuda_process import OUT, CudaProcess, Processes

TABLE = ROOT / "fakegpu" / "cuda" / "entry" / "functions.def"
LINE = re.compile(r"(FUNCTION|PER_THREAD)\((\w+), (\d+), (\w+)\)")
#: Exports of the real library for debuggers.
PRIVATE = re.compile(r"cudbg")
NOT_FOUND = 500
LEGACY, PER_THREAD = 1, 2


@pytest.fixture(scope="module")
def exported() -> set[str]:
    build("programs")
    return symbols(BUILT / "libcuda.so.1")


@pytest.fixture(scope="module")
def library(exported: set[str]) -> ctypes.CDLL:
    """For looking up only: nothing is initialised in this process."""
    assert exported
    return ctypes.CDLL(str(BUILT / "libcuda.so.1"))


@pytest.fixture
def cuda(tmp_path: Path, exported: set[str]) -> Iterator[CudaProcess]:
    assert exported
    node = tmp_path / "node.gpus"
    gpus.write(node, gpus.preset("v100-16160", "n1"))
    with Processes(node).closing() as started:
        yield started.start()


def look_up(library: ctypes.CDLL, name: str, version: int, flags: int = 0) -> tuple[int, int, int | None]:
    """Result, status, address."""
    found, status = ctypes.c_void_p(), ctypes.c_int()
    result = library.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    return result, status.value, found.value


def address_of(library: ctypes.CDLL, symbol: str) -> int | None:
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value


def symbols(library: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, timeout=30, check=True
    )
    return {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}


def table() -> list[tuple[str, int, str, bool]]:
    """Name, version, symbol, whether it is for programs with a default stream for each thread."""
    return [
        (name, int(version), symbol, kind == "PER_THREAD")
        for kind, name, version, symbol in LINE.findall(TABLE.read_text())
    ]


def header(name: str) -> Path:
    """A header of NVIDIA's development package; the newest installed."""
    package = importlib.util.find_spec("nvidia")
    folders = list(package.submodule_search_locations or []) if package else []
    found = [path for folder in folders for path in Path(folder).glob(f"*/include/{name}")]
    if not found:
        pytest.skip(f"{name} is not here; PyPI's nvidia-cuda-runtime has it")
    return max(found)


def test_every_name_of_the_table_is_exported_and_nothing_else(exported: set[str]) -> None:
    unlisted = set(re.findall(r"UNLISTED\((\w+)\)$", TABLE.read_text(), re.MULTILINE))
    named = {symbol for _, _, symbol, _ in table()} | unlisted
    assert sorted(named - exported) == []
    assert sorted(exported - named) == []


def test_the_table_has_every_variant_that_nvidias_newest_header_names() -> None:
    types = header("cudaTypedefs.h").read_text()
    known = {
        (name, int(version), bool(thread))
        for name, version, thread in re.findall(r"\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(_pt[ds][sz])?\)", types)
    }
    assert len(known) > 600
    ours = {(name, version, per_thread) for name, version, _, per_thread in table()}
    assert sorted(known - ours) == []


def test_every_function_that_nvidias_newest_header_declares_is_exported(exported: set[str]) -> None:
    path = header("cuda.h")
    seen: set[str] = set()
    for defined in ([], ["__CUDA_API_VERSION_INTERNAL"], ["CUDA_API_PER_THREAD_DEFAULT_STREAM"]):
        ran = subprocess.run(
            ["gcc", "-E", "-P", *(f"-D{name}" for name in defined), path],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        seen |= set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", ran.stdout))
    assert len(seen) > 600
    assert sorted(seen - exported) == []


def test_every_name_of_the_real_library_of_driver_535_is_exported(exported: set[str]) -> None:
    real = next(iter(SYSTEM.glob("usr/lib/*-linux-gnu/**/libcuda.so.535*")), None)
    if real is None:
        pytest.skip("the real libcuda1 535 is not here (Debian's non-free section has it)")
    names = symbols(real)
    assert len(names) > 600
    assert sorted(name for name in names - exported if not PRIVATE.match(name)) == []


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, PER_THREAD, "cuMemAlloc_v2"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuLaunchKernel", 12000, LEGACY, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, PER_THREAD, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 12000, PER_THREAD, "cuMemcpyHtoD_v2_ptds"),
        ("cuStreamGetCaptureInfo", 11000, PER_THREAD, "cuStreamGetCaptureInfo_ptsz"),
        ("cuStreamGetCaptureInfo", 12020, 0, "cuStreamGetCaptureInfo_v2"),
    ],
)
def test_a_plain_name_means_the_newest_variant_of_the_version(
    library: ctypes.CDLL, name: str, version: int, flags: int, symbol: str
) -> None:
    assert look_up(library, name, version, flags) == (0, 0, address_of(library, symbol))


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [("cuMemAllocAsync", 11010, 2), ("cuNoSuchThing", 13000, 1), ("", 13000, 1), ("cuMemAlloc_v2", 13000, 1)],
)
def test_a_symbol_newer_than_the_version_differs_from_an_unknown_one(
    library: ctypes.CDLL, name: str, version: int, status: int
) -> None:
    assert look_up(library, name, version) == (0, status, None)


def answers(library: ctypes.CDLL) -> list[tuple[object, ...]]:
    """Results of both forms for names that exist, are too new or unknown, and for flags."""
    results: list[tuple[object, ...]] = []
    before = 0xABCD
    for form in ("cuGetProcAddress", "cuGetProcAddress_v2"):
        for name, version in (
            *(("cuNoSuchThing", 12000), ("cuMemAllocAsync", 5000), ("cuMemAlloc_v2", 3020), ("", 12000)),
            *(("cuMemAlloc", 3020), ("cuMemAllocAsync", 11020), ("cuStreamSynchronize", 7000)),
        ):
            for flags in (0, LEGACY, PER_THREAD, LEGACY | PER_THREAD, 4, 99):
                for status in (ctypes.c_int(-1), None) if form.endswith("v2") else (None,):
                    found = ctypes.c_void_p(before)
                    more = (None if status is None else ctypes.byref(status),) if form.endswith("v2") else ()
                    result = getattr(library, form)(
                        name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), *more
                    )
                    left = found.value if found.value in (None, before) else "found"
                    results.append(
                        (form, name, flags, result, left, None if status is None else status.value)
                    )
    return results


def test_an_unknown_name_gives_the_result_of_nvidias_driver(library: ctypes.CDLL) -> None:
    """Compared with NVIDIA's 535, which needs no GPU for that; an H200 with 580 behaves the same."""
    real = next(iter(SYSTEM.glob("usr/lib/*/nvidia/current/libcuda.so.535.*")), None)
    if real is None:
        if IN_CI:
            pytest.fail("NVIDIA's libcuda is not here; scripts/install-system-packages unpacks it")
        pytest.skip("NVIDIA's libcuda is not here; scripts/install-system-packages unpacks it")
    assert answers(library) == answers(ctypes.CDLL(str(real)))


def test_cugetprocaddress_follows_the_table(library: ctypes.CDLL) -> None:
    for name, version, symbol, per_thread in table():
        found = look_up(library, name, version, PER_THREAD if per_thread else 0)
        assert found == (0, 0, address_of(library, symbol)), (name, version)


def test_names_are_bound_within_the_library(exported: set[str]) -> None:
    """A library with the same names may be loaded before it: it must return its own functions."""
    assert exported
    output = subprocess.run(
        ["readelf", "-d", BUILT / "libcuda.so.1"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert "SYMBOLIC" in output
    assert "NODELETE" in output
    assert "soname: [libcuda.so.1]" in output


def test_an_unsupported_function_fails_with_not_supported_once_the_driver_is_initialised(
    cuda: CudaProcess,
) -> None:
    assert cuda.cu("cuTexObjectCreate", OUT, None, None, None)[0] == "NOT_INITIALIZED"
    cuda.open()
    assert cuda.cu("cuTexObjectCreate", OUT, None, None, None)[0] == "NOT_SUPPORTED"


def test_private_tables_are_refused(cuda: CudaProcess) -> None:
    cuda.open()
    runtimes = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9")
    assert cuda.cu("cuGetExportTable", OUT, runtimes) == (NOT_FOUND, 0)
