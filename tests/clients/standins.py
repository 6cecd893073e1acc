"""Builds replacements for NVIDIA's libraries in the clients' folder: the CUDA runtime, and the libraries that need it.

The runtime is ours (``fakegpu/runtime``). Of cuBLAS, cuDNN and the others only functions that a client refers to exist, and compute nothing: objects can be created, matrix
products take a kernel's time, and anything else returns the library's own "not supported".
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.building import ROOT

SOURCES: Final = ROOT / "fakegpu" / "runtime"
DRIVER: Final = ROOT / "build" / "fakegpu" / "libcuda.so.1"
RUNTIME: Final = "libcudart.so.13"
_FLAGS: Final = ("-O2", "-g", "-fPIC", "-shared", "-Wl,-Bsymbolic")
_VERSION: Final = re.compile(r"@+(?P<node>\S+)$")


@dataclass(frozen=True)
class Library:
    """One of NVIDIA's libraries, by its soname."""

    soname: str
    prefix: str
    """Prefix of its functions' names, in lower case."""
    unsupported: int
    """Its status for unsupported functions."""


LIBRARIES: Final = (
    Library("libcublasLt.so.13", "cublaslt", 15),
    Library("libcublas.so.13", "cublas", 15),
    Library("libcudnn.so.9", "cudnn", 3000),
    Library("libcufft.so.12", "cufft", 16),
    Library("libcusolver.so.12", "cusolver", 9),
    Library("libcusparseLt.so.0", "cusparselt", 10),
    Library("libcusparse.so.12", "cusparse", 10),
    Library("libcufile.so.0", "cufile", 5005),
    Library("libcupti.so.13", "cupti", 27),
    Library("libnccl.so.2", "nccl", 5),
    Library("libnvshmem_host.so.3", "nvshmem", 1),
)
#: A complete string, in the libraries' spelling.
_LOOKED_UP: Final = re.compile(
    rb"(?<=\0)(?:cublas|cudnn|cufft|cusolver|cusparse|cupti|nccl|nvshmem)[A-Za-z][A-Za-z0-9_]+(?=\0)"
)

_HEADER: Final = """
#include <stdlib.h>
#include <string.h>
int fakegpuLaunchAny(void *stream);
static int make(void **made) { *made = calloc(1, 4096); return *made ? 0 : 3; }
"""
#: Bodies of functions by name, the first match counts; a handle holds its stream. The versions are those that clients were built for.
_BODIES: Final = (
    (r"cudnnGetVersion", "size_t {name}(void) {{ return 92600; }}"),
    (r"cublasLtGetVersion|cudnnGetCudartVersion", "size_t {name}(void) {{ return 130200; }}"),
    (r"cublasGetVersion\w*", "int {name}(void *handle, int *version) {{ (void)handle; *version = 130401; return 0; }}"),
    (r"cufftGetVersion", "int {name}(int *version) {{ *version = 12200; return 0; }}"),
    (r"cuptiGetVersion", "int {name}(int *version) {{ *version = 130200; return 0; }}"),
    (r"cusparseGetProperty", "int {name}(int part, int *value) {{ *value = (int[]){{12, 7, 10}}[part % 3]; return 0; }}"),
    (r"cudnnGetProperty", "int {name}(int part, int *value) {{ *value = (int[]){{9, 26, 0}}[part % 3]; return 0; }}"),
    (r"\w+Get(Error|Status)String", 'const char *{name}(int status) {{ (void)status; return "not on the stand-in"; }}'),
    (r"cublasLtMatmulAlgoGetHeuristic",
     "int {name}(void *h, void *m, void *a, void *b, void *c, void *d, void *p, int asked, char *results, int *count)"
     " {{ (void)h, (void)m, (void)a, (void)b, (void)c, (void)d, (void)p, (void)asked; memset(results, 0, 64); *count = 1; return 0; }}"),
    (r"cublasLtMatmul",
     "int {name}(void *h, void *m, void *alpha, void *a, void *al, void *b, void *bl, void *beta, void *c, void *cl, void *d, void *dl,"
     " void *algo, void *space, size_t bytes, void *stream)"
     " {{ (void)h, (void)m, (void)alpha, (void)a, (void)al, (void)b, (void)bl, (void)beta, (void)c, (void)cl, (void)d, (void)dl,"
     " (void)algo, (void)space, (void)bytes; return fakegpuLaunchAny(stream) ? 13 : 0; }}"),
    (r"cublas\w*([Gg]emm|[Gg]emv|[Dd]ot|[Tt]rsm)\w*", "int {name}(void **handle) {{ return fakegpuLaunchAny(*handle) ? 13 : 0; }}"),
    (r"\w+SetStream\w*", "int {name}(void **handle, void *stream) {{ *handle = stream; return 0; }}"),
    (r"\w+GetStream\w*", "int {name}(void **handle, void **stream) {{ *stream = *handle; return 0; }}"),
    (r"cublasGetMathMode|cublasGetPointerMode\w*", "int {name}(void *handle, int *mode) {{ (void)handle; *mode = 0; return 0; }}"),
    (r"(cublas|cusolver|cusparse|cudnn)\w*Create(?!Descriptor$)\w*", "int {name}(void **made) {{ return make(made); }}"),
    (r"(cublas|cusolver|cusparse|cudnn)\w*(Set|Destroy)\w*", "int {name}(void) {{ return 0; }}"),
)  # fmt: skip


def undefined(libraries: Iterable[Path]) -> Iterator[str]:
    """Symbols that the libraries import from others, as ``NAME`` or ``NAME@VERSION``."""
    for library in libraries:
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", "--with-symbol-versions", library],
            capture_output=True,
            text=True,
            check=True,
        )
        for line in listed.stdout.splitlines():
            yield line.split()[-1]


def looked_up(library: Path) -> Iterator[str]:
    """Names in a library's text that it may look up in NVIDIA's libraries at run time."""
    for name in _LOOKED_UP.findall(library.read_bytes()):
        yield name.decode()


def build_runtime(headers: Path, out: Path) -> None:
    """Writes our CUDA runtime into ``out``; ``headers`` are from NVIDIA's wheels."""
    out.joinpath("runtime.map").write_text(f"{RUNTIME} {{ global: cuda*; __cuda*; fakegpu*; local: *; }};\n")
    warnings = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
    _compile(
        out / RUNTIME,
        *warnings,
        "-isystem",
        headers,
        f"-Wl,--version-script={out / 'runtime.map'}",
        *sorted(SOURCES.glob("*.c")),
        DRIVER,
        "-pthread",
    )


def build_library(library: Library, names: Iterable[str], out: Path) -> None:
    """Writes a replacement with the library's functions among ``names`` into ``out``."""
    functions: dict[str, str] = {}
    for name in sorted(set(names)):
        version = _VERSION.search(name)
        functions[name.partition("@")[0]] = version["node"] if version else ""
    source = out / f"{library.soname}.c"
    source.write_text(_HEADER + "\n".join(_body(name, library) for name in functions) + "\n")
    script = out / f"{library.soname}.map"
    nodes = sorted({node for node in functions.values() if node})
    script.write_text(f"{nodes[0] if nodes else library.soname} {{ global: {library.prefix[:4]}*; *; }};\n")
    version_script = [f"-Wl,--version-script={script}"] if nodes else []
    _compile(out / library.soname, "-w", *version_script, source, out / RUNTIME)


def belongs_to(name: str) -> Library | None:
    """The library of a function, by its name; longer prefixes come first."""
    small = name.lower()
    return next((library for library in LIBRARIES if small.startswith(library.prefix)), None)


def _body(name: str, library: Library) -> str:
    for pattern, body in _BODIES:
        if re.fullmatch(pattern, name):
            return body.format(name=name)
    return f"int {name}(void) {{ return {library.unsupported}; }}"


def _compile(out: Path, *arguments: str | Path) -> None:
    subprocess.run(["gcc", *_FLAGS, f"-Wl,-soname,{out.name}", "-o", out, *arguments], check=True)
