"""What an isolating node has, and ways in which it can be missing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.api import names
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import Claimed
from tests.integration.nodeagent.cluster_objects import NODE
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.scripted_kubelet import Admitted

SHIMS = ("libcuda.so.1", "libnvidia-ml.so.1")
LIBRARIES = (*SHIMS, "libcuda.so", "libnvidia-ml.so")
DELIVERED = (*LIBRARIES, "libgpushare-optional-cuda.so.1", "libgpushare-optional-nvml.so.1")


def install(world: World, **options: Any) -> None:
    """Our libraries are in the image, the driver's on the host; ``options`` are the command line's."""
    driver = world.folder / "driver" / "usr" / "lib64"
    for folder in (world.folder / "image", driver):
        folder.mkdir(parents=True, exist_ok=True)
        for name in DELIVERED if folder.name == "image" else SHIMS:
            (folder / name).write_text(f"{name} of {folder.name}")
    world.use(
        isolation=replace(world.settings.isolation, **{"asked": AskedIsolation.AUTO, **options}),
        driver_root=world.folder / "driver",
    )


def describe(world: World) -> None:
    """NVIDIA's toolkit describes both GPUs, with the driver's libraries."""
    folder = world.settings.cdi_folders[0]
    folder.mkdir(exist_ok=True)
    mounts = [
        {"hostPath": f"/usr/lib64/{name}.so.535", "containerPath": f"/usr/lib64/{name}.so.535"}
        for name in ("libcuda", "libnvidia-ml")
    ]
    content = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": str(one), "containerEdits": {"deviceNodes": []}} for one in (0, 1)],
        "containerEdits": {"mounts": mounts},
    }
    new = folder / "nvidia.new"
    new.write_text(json.dumps(content))
    new.replace(folder / "nvidia.json")


def mounted(admitted: Admitted, name: str = "c") -> dict[str, tuple[Path, bool]]:
    """Container path → path on the host, and whether it is read-only."""
    return {one.container_path: (Path(one.host_path), one.read_only) for one in admitted.answers[name].mounts}


def directories(world: World) -> dict[str, Claimed | None]:
    return Directories(world.settings.isolation.folder).found()


def active(world: World) -> str:
    return world.api.annotations("nodes", NODE).get(names.ANN_ISOLATION, "")


def without_library(world: World) -> str:
    (world.folder / "image" / "libcuda.so.1").unlink()
    return "image/libcuda.so.1: No such file or directory; it is part of the image"


def without_driver(world: World) -> str:
    (world.folder / "driver" / "usr" / "lib64" / "libcuda.so.1").unlink()
    return "lib64 has no libcuda.so.1; containers need the driver's libraries in addition to ours"


def without_folder(world: World) -> str:
    blocked = world.settings.isolation.folder
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where the folder should be")
    return "it cannot be written: File exists; mount a folder of the node there"
