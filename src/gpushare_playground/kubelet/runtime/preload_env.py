"""Replaces mounts at fixed paths, for processes that see the machine's own files at those paths.

Two kinds, which the isolation libraries need. The libraries in a container's ``/etc/ld.so.preload`` are loaded by its dynamic linker
into each program first; here ``LD_PRELOAD`` does the same, with the paths of the mounts on this machine. And the
libraries of the kind "open" (docs/developer/isolation.md) read ``/run/gpushare`` from ``GPUSHARE_RUN``, and load the
driver by special names in ``LD_LIBRARY_PATH``. Real mounts work whatever the environment is; these work for
programs that leave it unchanged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare_playground.images.registry import inside_path

PRELOAD: Final = "/etc/ld.so.preload"
RUN: Final = "/run/gpushare"
#: The driver's libraries there, and the names by which our open kind loads them.
_DRIVER: Final = {
    "libcuda.so": "libgpushare-driver-cuda.so",
    "libnvidia-ml.so": "libgpushare-driver-nvml.so",
}


def play_mounts(environment: dict[str, str], mounts: Mapping[str, str], rootfs: Path) -> None:
    """Set in ``environment`` what ``mounts`` (path in the container → path here) would provide.

    Raises ``OSError`` if links in ``rootfs`` cannot be created.
    """
    if PRELOAD in mounts:
        named = Path(mounts[PRELOAD]).read_text().split()
        first = [mounts.get(path, path) for path in named]
        environment["LD_PRELOAD"] = ":".join([*first, *filter(None, [environment.get("LD_PRELOAD")])])
    limits = mounts.get(f"{RUN}/limits")
    if limits is not None:
        # The library follows no link to a usage file, so it gets the real folder.
        environment["GPUSHARE_RUN"] = str(Path(limits).parent)
    drivers = {name: f"{RUN}/driver/{name}" for name in _DRIVER if f"{RUN}/driver/{name}" in mounts}
    if drivers:
        folder = inside_path(rootfs, f"{RUN}/driver")
        folder.mkdir(parents=True, exist_ok=True)
        for name, inside in drivers.items():
            link = folder / _DRIVER[name]
            link.unlink(missing_ok=True)
            link.symlink_to(mounts[inside])
        path = [str(folder), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, path))
