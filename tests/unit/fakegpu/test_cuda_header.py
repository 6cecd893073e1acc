"""Our declarations of constants and layouts, compared with NVIDIA's header where it is installed."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.building import ROOT
from tests.unit.fakegpu.test_cuda_names import header

FAKEGPU = ROOT / "fakegpu"
#: Our headers that declare parts of the interface.
HEADERS = (
    "interface/cuda.h",
    "interface/cuda_memory.h",
    "interface/cuda_work.h",
    "cuda/copy/copies.h",
    "cuda/module/modules.h",
    "cuda/graph/graphs.h",
)
#: Sums and bounds of our own among the interface's names.
OWN = re.compile(r"_KNOWN$")


def declarations() -> str:
    text = "".join((FAKEGPU / name).read_text() for name in HEADERS)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def constants() -> list[str]:
    named = re.findall(r"\b(CU(?:DA)?_[A-Z0-9_]+) = ", declarations())
    return [name for name in named if not OWN.search(name)]


def members() -> list[tuple[str, str]]:
    """Structs, each with its members; a struct within a struct is left to its size."""
    found = []
    for body, name in re.findall(r"typedef struct (\{[^}]*\}) (CU\w+);", declarations()):
        found.append((name, ""))
        for declarators in re.findall(r"\w[\w ]*?[ *]+([\w\[\], *]+);", body):
            found += [(name, member) for member in re.findall(r"(\w+)(?:\[\w+\])?(?:,|$)", declarators)]
    return found


def printed(folder: Path, include: str, search: Path) -> dict[str, int]:
    """The value of each name in a program that includes the header."""
    lines = [f'printf("{name} %d\\n", (int){name});' for name in constants()]
    for struct, member in members():
        value = f"offsetof({struct}, {member})" if member else f"sizeof({struct})"
        lines.append(f'printf("{struct}.{member} %d\\n", (int){value});')
    source = folder / "print.c"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n{include}\nint main(void) {{\n"
        + "\n".join(lines)
        + "\n}\n"
    )
    subprocess.run(["gcc", "-o", folder / "print", source, f"-I{search}"], timeout=60, check=True)
    output = subprocess.run([folder / "print"], capture_output=True, text=True, timeout=30, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def test_numbers_and_layouts_equal_those_of_nvidias_header(tmp_path: Path) -> None:
    theirs = printed(tmp_path, "#include <cuda.h>", header("cuda.h").parent)
    ours = printed(tmp_path, "".join(f'#include "{name}"\n' for name in HEADERS), FAKEGPU)
    assert len(ours) > 150
    assert {name: value for name, value in ours.items() if theirs[name] != value} == {}


def enumerators(enumeration: str) -> dict[str, int]:
    text = re.sub(r"/\*.*?\*/", "", header("cuda.h").read_text(), flags=re.DOTALL)
    body = re.search(rf"typedef enum {enumeration} \{{(.*?)\}}", text, re.DOTALL)
    assert body
    return {name: int(value) for name, value in re.findall(r"(CU\w+)\s*=\s*(\d+)\s*[,\n]", body[1] + "\n")}


def test_every_error_of_nvidias_header_has_its_name_and_a_text() -> None:
    table = (FAKEGPU / "cuda" / "entry" / "error_table.h").read_text()
    ours = {name: int(code) for code, name in re.findall(r'ERROR\((\d+), (\w+), "[^"]+"\)', table)}
    assert ours == enumerators("cudaError_enum")


def test_device_attributes_have_the_numbers_of_nvidias_header() -> None:
    known = enumerators("CUdevice_attribute_enum")
    source = (FAKEGPU / "cuda" / "device" / "data_sheet.c").read_text()
    ours = [
        (int(number or case), name)
        for number, case, name in re.findall(r"(?:\[(\d+)\] = \S+|case (\d+):)\s*/\* ([A-Z0-9_]+)", source)
    ]
    assert len(ours) > 90
    assert [each for each in ours if known[f"CU_DEVICE_ATTRIBUTE_{each[1]}"] != each[0]] == []
    bound = re.search(r"ATTRIBUTES = (\d+)", source)
    assert bound
    assert int(bound[1]) == max(known.values()) + 1


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_the_interface_is_self_contained(name: str) -> None:
    command = [
        "gcc",
        "-std=c11",
        "-fsyntax-only",
        "-Wall",
        "-Werror",
        f"-I{FAKEGPU}",
        "-x",
        "c",
        FAKEGPU / name,
    ]
    subprocess.run(command, timeout=60, check=True)
