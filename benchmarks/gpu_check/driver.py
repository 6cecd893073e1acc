"""The driver under test: the one that this machine's programs find, or the fake driver."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_check.building import ROOT, make

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: Folders of drivers that the loader does not know.
USUAL = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib/*-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib/nvidia*",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/nvidia/driver/usr/lib/*-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/run/opengl-driver/lib",
    "/opt/nvidia/lib64",
)
#: A string in the fake driver's libraries, but not in NVIDIA's.
FAKE_SIGN = b"FAKEGPU_NODE"
#: Our own variables, which must not reach a measured program.
OURS = ("GPUSHARE_", "FAKEGPU_", "LD_PRELOAD", "TENANT_")


class NoDriver(Exception):
    """There is no driver to check; the text names the missing libraries and the searched folders."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The two libraries, and what a program without any limit needs in its environment to find them."""

    cuda: Path
    management: Path
    environment: Mapping[str, str]
    fake: bool


def is_fake(library: Path) -> bool:
    """Whether a library is of the fake driver."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(FAKE_SIGN) >= 0


def plain(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without variables that would affect the measurement."""
    return {name: value for name, value in environ.items() if not name.startswith(OURS)}


def loaded(name: str, environment: Mapping[str, str]) -> Path | None:
    """The file that the loader finds for a library."""
    lines = (
        "import ctypes, os, sys\n"
        f"ctypes.CDLL({name!r})\n"
        "for line in open('/proc/self/maps'):\n"
        "    path = line.partition('/')[2].strip()\n"
        f"    if os.path.basename(path).startswith({name.partition('.so')[0] + '.so'!r}):\n"
        "        print('/' + path)\n"
        "        break\n"
    )
    try:
        ran = subprocess.run(
            [sys.executable, "-c", lines],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    path = ran.stdout.strip()
    return Path(path) if ran.returncode == 0 and path else None


def folders(patterns: Sequence[str], root: Path = Path("/")) -> Iterator[Path]:
    """The usual folders that exist here."""
    for pattern in patterns:
        yield from sorted(folder for folder in root.glob(pattern.lstrip("/")) if folder.is_dir())


def found(environ: Mapping[str, str], usual: Sequence[str] = USUAL) -> Driver:
    """This machine's driver: found by the loader, or in one of the usual folders."""
    environment = plain(environ)
    first = {name: loaded(name, environment) for name in LIBRARIES}
    if not all(first.values()):
        for folder in folders(usual):
            if not all((folder / name).exists() for name in LIBRARIES):
                continue
            known = environment.get("LD_LIBRARY_PATH", "")
            tried = environment | {"LD_LIBRARY_PATH": f"{known}:{folder}" if known else str(folder)}
            second = {name: loaded(name, tried) for name in LIBRARIES}
            if all(second.values()):
                first, environment = second, tried
                break
    cuda, management = first[LIBRARIES[0]], first[LIBRARIES[1]]
    if cuda is None or management is None:
        missing = [name for name, path in first.items() if path is None]
        raise NoDriver(
            f"{' and '.join(missing)}: not found by the loader (ldconfig -p, LD_LIBRARY_PATH), nor in "
            f"{', '.join(usual)}. Install NVIDIA's driver, give the container its GPU, or put the folder with both "
            "libraries into LD_LIBRARY_PATH. To test the check itself: make gpu-check DRIVER=fakegpu"
        )
    if is_fake(cuda) or is_fake(management):
        raise NoDriver(
            f"{cuda}: this is the fake driver, whose results must not look like a real GPU's. "
            "Take it out of LD_LIBRARY_PATH, or use DRIVER=fakegpu"
        )
    return Driver(cuda, management, environment, fake=False)


def fake_driver(folder: Path) -> Driver:
    """The fake driver with one V100, its state in the folder."""
    from gpushare_playground import gpus

    make("fakegpu", "library")
    built = ROOT / "build" / "fakegpu"
    gpus.write(folder / "node.gpus", gpus.preset("v100-16160", "gpu-check"))
    (folder / "state").mkdir()
    unpacked = [str(path) for path in (ROOT / "build" / "system" / "usr" / "lib").glob("*-linux-gnu")]
    environment = plain(os.environ) | {
        "LD_LIBRARY_PATH": ":".join([str(built), *unpacked]),
        "FAKEGPU_NODE": str(folder / "node.gpus"),
        "FAKEGPU_STATE": str(folder / "state"),
    }
    return Driver(built / LIBRARIES[0], built / LIBRARIES[1], environment, fake=True)
