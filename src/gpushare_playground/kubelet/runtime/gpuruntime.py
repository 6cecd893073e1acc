"""Stands in for NVIDIA's container runtime: the GPUs that a container sees, from ``NVIDIA_VISIBLE_DEVICES``.

A container without that variable, or with an empty one or ``void``, gets no driver. With any other value it
finds the fake driver through ``LD_LIBRARY_PATH``; the value (``all``, ``none``, UUIDs or indices) is passed
to it as ``FAKEGPU_VISIBLE_DEVICES``. A real runtime hides the machine's own driver and its GPUs by namespaces;
here nothing is hidden from a program that looks for them by full path.
"""

import shutil
from pathlib import Path
from typing import Final

from gpushare.api.names import ENV_VISIBLE_DEVICES
from gpushare_playground.images.registry import write_program
from gpushare_playground.kubelet.settings import Settings

VOID: Final = "void"
_NO_GPU: Final = "nvidia-smi: not found: this container has no GPU (NVIDIA_VISIBLE_DEVICES is not set)"
_NO_DRIVER: Final = "nvidia-smi: not found: this node has no GPU, real or simulated"
_NO_PROGRAM: Final = (
    "nvidia-smi: not found on this machine: install it (Debian: package nvidia-smi, section non-free), "
    "or unpack it into the checkout with scripts/install-system-packages"
)


def visible_devices(environment: dict[str, str]) -> str:
    """What the container requests: ``void`` for nothing at all."""
    return environment.get(ENV_VISIBLE_DEVICES, "").strip() or VOID


def inject(environment: dict[str, str], settings: Settings, commands: Path) -> None:
    """Add the driver to a container's environment, and ``nvidia-smi`` to its ``commands`` folder."""
    visible = visible_devices(environment)
    environment["FAKEGPU_VISIBLE_DEVICES"] = visible
    if visible == VOID or settings.fakegpu_node is None:
        write_program(commands / "nvidia-smi", _refusal(_NO_GPU if visible == VOID else _NO_DRIVER))
        return
    environment["FAKEGPU_NODE"] = str(settings.fakegpu_node)
    libraries = [str(settings.fakegpu_lib), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    program = find_nvidia_smi(settings)
    write_program(commands / "nvidia-smi", [str(program)] if program else _refusal(_NO_PROGRAM))


def find_nvidia_smi(settings: Settings) -> Path | None:
    """NVIDIA's own program: the configured one, the one unpacked next to the fake driver, or that of ``PATH``."""
    if settings.nvidia_smi is not None:
        return settings.nvidia_smi
    if settings.fakegpu_lib is not None:
        unpacked = settings.fakegpu_lib.parent / "system" / "usr" / "bin" / "nvidia-smi"
        if unpacked.is_file():
            return unpacked
    path = shutil.which("nvidia-smi")
    return Path(path) if path else None


def _refusal(text: str) -> list[str]:
    return ["sh", "-c", f"echo '{text}' >&2; exit 127"]
