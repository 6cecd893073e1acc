"""The clients' own virtual environment: their unmodified wheels, and our replacements for NVIDIA's libraries."""

import re
import subprocess
import sys
import venv
from typing import Final

from tests.building import ROOT
from tests.clients import standins

REQUIREMENTS: Final = ROOT / "requirements" / "clients.txt"
FOLDER: Final = ROOT / "build" / "clients"
PYTHON: Final = FOLDER / "venv" / "bin" / "python"
#: pip's message for a wheel that the registry lacks, for this Python or at all.
_NOT_THERE: Final = re.compile(r"No matching distribution found for (\S+)")
#: Packages whose libraries look up functions by name at run time, invisible to the linker.
_BY_NAME: Final = ("jax_plugins", "jax_cuda13_plugin")


class WheelMissing(Exception):
    """The registry lacks one of the wheels."""


def install() -> None:
    """Installs the wheels, unless they are installed, and builds the replacements for NVIDIA's libraries.

    Raises WheelMissing if the registry lacks one, and CalledProcessError for any other failure.
    """
    installed = FOLDER / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if not installed.exists() or installed.read_text() != wanted:
        installed.unlink(missing_ok=True)
        venv.create(FOLDER / "venv", clear=True, symlinks=True)
        _fetch()
        installed.write_text(wanted)
    _stand_in()


def _fetch() -> None:
    options = ("--no-cache-dir", "--no-deps", "--require-hashes", "--only-binary", ":all:")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        PYTHON,
        "install",
        "--quiet",
        *options,
        "-r",
        REQUIREMENTS,
    ]
    completed = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if missing := _NOT_THERE.search(completed.stderr):
        raise WheelMissing(missing[1])
    sys.stderr.write(completed.stderr)
    completed.check_returncode()


def _stand_in() -> None:
    site = next((FOLDER / "venv" / "lib").glob("python*")) / "site-packages"
    nvidia = site / "nvidia" / "cu13"
    standins.build_runtime(nvidia / "include", nvidia / "lib")
    names = set(standins.undefined((site / "torch" / "lib").glob("lib*.so")))
    # With a version where the linker requires one: names looked up at run time accept any version.
    linked = {name.partition("@")[0] for name in names}
    for package in _BY_NAME:
        for library in (site / package).rglob("*.so"):
            names |= set(standins.looked_up(library)) - linked
    for library in standins.LIBRARIES:
        standins.build_library(
            library, (name for name in names if standins.belongs_to(name) is library), nvidia / "lib"
        )
