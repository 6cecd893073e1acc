"""All functions that this machine's driver exports: limited, passed on, or new."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_check.building import ROOT
from benchmarks.gpu_check.lab import TROUBLES, Lab, Share
from benchmarks.gpu_check.report import Row, measured, promise

TITLE = "Functions of the driver"

#: Queries our library for every function of the driver's cuGetProcAddress, and compares addresses.
RESULT_AS_JSON = """
real = ctypes.CDLL("libgpushare-driver-cuda.so")
names, limited = open(NAMES).read().split(), set(open(LIMITED).read().split())
address = lambda library, name: ctypes.cast(getattr(library, name), c_void_p).value
symbols = {address(real, name): name for name in names}
queried, wrong = 0, []
for base in BASES:
    for version in VERSIONS:
        for flags in (0, 1, 2):
            found, status = c_void_p(), c_int()
            if real.cuGetProcAddress_v2(base.encode(), byref(found), version, c_uint64(flags), byref(status)) or not found.value:
                continue
            queried += 1
            symbol = symbols.get(found.value)
            mine = look_up(base, version, flags)
            if mine != (address(cuda, symbol) if symbol in limited else found.value):
                wrong.append(f"{base} {version} {flags} ({symbol})")
print(json.dumps({"queried": queried, "wrong": wrong, "cuInit": call("cuInit", 0)}))
"""
VERSIONS = (
    2000,
    3010,
    3020,
    4000,
    5050,
    6050,
    7000,
    8000,
    9000,
    10000,
    11000,
    11020,
    11040,
    12000,
    12020,
    12080,
    13000,
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """A library's functions, by their handling."""

    limited: frozenset[str]
    passed_on: frozenset[str]
    new: frozenset[str]


def exported(library: Path) -> frozenset[str]:
    """Names of the functions that a library offers."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, timeout=60, check=True
    )
    lines = (line.split() for line in listed.stdout.splitlines())
    return frozenset(words[2].partition("@")[0] for words in lines if len(words) == 3 and words[1] in "TWiV")


def listed(library: str) -> frozenset[str]:
    """The functions that are passed on."""
    text = (ROOT / "isolation" / "symbols" / f"passed_on_{library}.txt").read_text()
    return frozenset(name for line in text.splitlines() if not line.startswith("#") for name in line.split())


def coverage(there: frozenset[str], ours: frozenset[str], table: frozenset[str], prefix: str) -> Coverage:
    """Classifies the exported names; only those of the driver's interface count."""
    names = frozenset(name for name in there if re.match(prefix, name))
    return Coverage(names & ours, names & table - ours, names - ours - table)


def reached(lab: Lab, there: frozenset[str], ours: frozenset[str]) -> Row:
    """The results of cuGetProcAddress in a container."""
    name = "cuGetProcAddress returns our functions for what is limited, the driver's for the rest"
    functions = sorted(there)
    (lab.folder / "names").write_text("\n".join(functions))
    (lab.folder / "limited").write_text("\n".join(sorted(ours & there)))
    bases = sorted({re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", function) for function in functions})
    values = {"NAMES": str(lab.folder / "names"), "LIMITED": str(lab.folder / "limited"), "BASES": bases}
    lines = "".join(f"{key} = {value!r}\n" for key, value in values.items()) + f"VERSIONS = {VERSIONS}\n"
    try:
        result = lab.result(lab.container(Share(lab.room_mib(64))), lines + RESULT_AS_JSON)
    except TROUBLES as error:
        return promise(name, "every version and flag", error, False)
    got = f"{result['queried']} asked" + (
        f", wrong: {', '.join(result['wrong'][:20])}" if result["wrong"] else ""
    )
    return promise(name, "every version and flag", got, bool(result["queried"]) and not result["wrong"])


def rows(lab: Lab) -> Iterator[Row]:
    """Both libraries; a new name is only reported, not a failure: the driver is newer than the lists."""
    for library, path, prefix, file in (
        ("cuda", lab.driver.cuda, "cu[A-Z]", "libcuda.so.1"),
        ("nvml", lab.driver.management, "nvml", "libnvidia-ml.so.1"),
    ):
        there, ours = exported(path), exported(lab.libraries / file)
        found = coverage(there, ours, listed(library), prefix)
        yield measured(
            f"{file} exports",
            f"{len(found.limited) + len(found.passed_on) + len(found.new)} functions: "
            f"{len(found.limited)} limited, {len(found.passed_on)} passed on, {len(found.new)} new",
        )
        if found.new:
            yield measured(f"new in {file}", ", ".join(sorted(found.new)))
        if library == "cuda":
            yield reached(lab, frozenset(name for name in there if re.match(prefix, name)), ours)
