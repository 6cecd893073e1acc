"""The layer with what stands between containers and the driver: our libraries and the arbiter, built from ``isolation/``."""

import hashlib
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Final

from gpushare import __version__
from images import oci
from images.errors import CannotBuild
from images.parts import Part, Store, key_of
from images.python import Wheel

SOURCES: Final = Path(__file__).parent.parent / "isolation"
#: Where the node agent looks for them (``--isolation-library-dir``).
PLACE: Final = "usr/lib/gpushare/isolation"
FILES: Final = (
    *("arbiter", "libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so", "libnvidia-ml.so"),
    *("libgpushare-optional-cuda.so.1", "libgpushare-optional-nvml.so.1"),
)
#: Not so long as a slow machine with other work takes, and not for good.
_BUILD_S: Final = 600.0


def build(store: Store) -> Part:
    """The layer; its note is what the list of contents says of it."""
    part = store.part("isolation", key_of([Path(__file__), *sources()], _compiler()))
    if part.stale:
        store.say("isolation libraries")
        root = part.fresh_root()
        compile_into(part.folder / "made", root / PLACE)
        digest = hashlib.sha256()
        for name in FILES:
            digest.update(hashlib.sha256((root / PLACE / name).read_bytes()).digest())
        note = Wheel(
            name="gpushare-isolation",
            version=__version__,
            file=f"/{PLACE}",
            sha256=digest.hexdigest(),
            licence="Apache-2.0",
            homepage="",
        )
        part.keep(oci.tree(root, ""), [asdict(note)], "make -C isolation")
    return part


def compile_into(made: Path, target: Path) -> None:
    """Build in the folder ``made``, put what is shipped into ``target``; the same bytes wherever that is."""
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    flags = f"-O2 -ffile-prefix-map={SOURCES}=isolation -ffile-prefix-map={made}=."
    done = subprocess.run(
        [
            "make",
            "--no-print-directory",
            "-C",
            SOURCES,
            "KINDS=shipped",
            f"OUT={made}",
            f"CFLAGS={flags}",
            "all",
        ],
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if done.returncode:
        raise CannotBuild(f"make -C isolation failed:\n{done.stdout}{done.stderr}")
    target.mkdir(parents=True)
    for name in FILES:
        # What is left out is for debuggers, and names the folders of the machine that built it.
        subprocess.run(["strip", "--strip-unneeded", "-o", target / name, made / name], check=True)
        (target / name).chmod(0o755)


def sources() -> list[Path]:
    """Everything that is compiled, and how."""
    return sorted(
        one for one in SOURCES.rglob("*") if one.suffix in (".c", ".h", ".def") or one.name == "Makefile"
    )


def _compiler() -> str:
    try:
        told = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBuild(f"gcc cannot be run ({error}): install gcc and make") from None
    return told.stdout.partition("\n")[0]
