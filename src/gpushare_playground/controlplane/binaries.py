"""Locates the components' binaries, and explains what to do if one is missing."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare_playground.controlplane.errors import ControlPlaneError

COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""In the order of their start."""
_ADVICE: Final = (
    "build the components with `python -m tests.e2e.cluster build kubernetes-1.37` in a checkout, "
    "or name a folder that has them, such as $KUBEBUILDER_ASSETS"
)
_VERSION_S: Final = 20.0


def find(folder: Path, components: Sequence[str]) -> dict[str, Path]:
    """The binary of each component; raises ``ControlPlaneError`` naming all that are missing or unknown."""
    if unknown := [name for name in components if name not in COMPONENTS]:
        raise ControlPlaneError(f"no such component: {', '.join(unknown)}; there are {', '.join(COMPONENTS)}")
    if not folder.is_dir():
        raise ControlPlaneError(f"{folder} is no folder of binaries; {_ADVICE}")
    binaries = {name: folder.absolute() / name for name in components}
    missing = [name for name, path in binaries.items() if not path.is_file()]
    if missing:
        raise ControlPlaneError(f"{folder} lacks {', '.join(missing)}; {_ADVICE}")
    barred = [name for name, path in binaries.items() if not os.access(path, os.X_OK)]
    if barred:
        raise ControlPlaneError(f"{', '.join(barred)} in {folder} cannot be executed; chmod +x them")
    return binaries


def version_of(binary: Path) -> tuple[int, int]:
    """(major, minor) of a Kubernetes component, from its ``--version``; raises ``ControlPlaneError``."""
    try:
        ran = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=True
        )
        major, minor = ran.stdout.strip().rpartition("v")[2].split(".")[:2]
        return int(major), int(minor)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ControlPlaneError(f"{binary} --version says nothing useful ({error}); {_ADVICE}") from error
