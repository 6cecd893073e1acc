"""Plays mounts that programs find by fixed paths, for processes that see the machine's own files at those paths.

Two kinds, which the isolation libraries need. What a container has at ``/etc/ld.so.preload`` its dynamic linker loads
into each program first; here ``LD_PRELOAD`` says the same, with the paths that the mounts have on this machine. And the
libraries of the kind "open" (docs/developer/isolation.md) look for ``/run/gpushare`` where ``GPUSHARE_RUN`` says, and for the
driver by names of its own in ``LD_LIBRARY_PATH``. Real mounts hold whatever the environment says; these hold
programs that leave it as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare_playground.images.registry import inside_path

PRELOAD: Final = "/etc/ld.so.preload"
RUN: Final = "/run/gpushare"
#: The driver's libraries there, and what the open kind of ours calls them.
_DRIVER: Final = {
    "libcuda.so": "libgpushare-driver-cuda.so",
    "libnvidia-ml.so": "libgpushare-driver-nvml.so",
}


def play_mounts(environment: dict[str, str], mounts: Mapping[str, str], rootfs: Path) -> None:
    """Let ``environment`` say what ``mounts`` (path in the container → path here) would show.

    Raises ``OSError`` when links in ``rootfs`` cannot be made.
    """
    if PRELOAD in mounts:
        named = Path(mounts[PRELOAD]).read_text().split()
        first = [mounts.get(path, path) for path in named]
        environment["LD_PRELOAD"] = ":".join([*first, *filter(None, [environment.get("LD_PRELOAD")])])
    limits = mounts.get(f"{RUN}/limits")
    if limits is not None:
        # The library follows no link to a usage file, so it is sent to where that lies.
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
