"""What the node agents of a playground need to limit containers to their shares."""

from pathlib import Path
from typing import Final

#: In the folder that `make isolation` writes. Containers here have no mounts, so they use the libraries that locate their files
#: through the environment.
PARTS: Final = (
    "open/libcuda.so.1",
    "open/libnvidia-ml.so.1",
    "open/libcuda.so",
    "open/libnvidia-ml.so",
    "open/libgpushare-optional-cuda.so.1",
    "open/libgpushare-optional-nvml.so.1",
    "arbiter",
)


def missing(built: Path) -> list[str]:
    """Which parts are not in the folder ``built``."""
    return [part for part in PARTS if not (built / part).exists()]


def in_one_folder(built: Path, folder: Path) -> None:
    """Link the parts into a new ``folder``, next to each other as in a node agent's image."""
    folder.mkdir()
    for part in PARTS:
        (folder / Path(part).name).symlink_to((built / part).absolute())
