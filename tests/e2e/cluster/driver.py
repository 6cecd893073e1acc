"""The fake NVIDIA driver, installed on a node like a driver, and its GPUs described for CDI by NVIDIA's
toolkit.

Installed are the libraries under their versioned names, ``nvidia-smi``, device nodes, and the description of
the GPUs at ``/etc/fakegpu/node.conf``. Containers get all of that, as ``nvidia-ctk cdi generate`` finds it,
plus ``/etc/fakegpu`` and ``/run/fakegpu``, which only the fake driver needs.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare_playground.gpus import preset, write
from tests.e2e.cluster.cluster import Node

ROOT: Final = Path(__file__).parents[3]
LIBRARY: Final = ROOT / "build" / "fakegpu" / "libnvidia-ml.so.1"
CUDA: Final = LIBRARY.with_name("libcuda.so.1")
SMI: Final = ROOT / "build" / "system" / "usr" / "lib" / "nvidia" / "current" / "nvidia-smi"
LIBRARIES: Final = "/usr/lib/x86_64-linux-gnu"

DESCRIPTION: Final = "/etc/fakegpu"
STATE: Final = "/run/fakegpu"
"""What processes hold of the GPUs: what the kernel's driver knows of a real one, whatever container they are in."""
_MAJOR: Final = 195
_UVM_MAJOR: Final = 510
_CAPS_MAJOR: Final = 511
#: Device nodes in /dev/nvidia-caps: two of the driver, and of each GPU nine for each of fifteen instances. All are there from the
#: beginning; NVIDIA's tools make those of an instance when it is created.
_OF_THE_DRIVER: Final = 3
_OF_A_GPU: Final = 15 * 9


class DriverMissing(RuntimeError):
    """The fake driver is not built; the message contains the command."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The result: GPUs by index, and ``nvidia-ctk``'s stderr."""

    gpus: int
    toolkit_stderr: str


def describe(node: Node) -> None:
    """Write the description of the node's GPUs as its preset has them. Raises ``ValueError`` without a preset."""
    if node.preset is None:
        raise ValueError(f"{node.name}: has no GPUs; give it a preset, NAME=PRESET")
    node.gpu_file.parent.mkdir(parents=True, exist_ok=True)
    write(node.gpu_file, preset(node.preset, node.name))


def install(node: Node, *, cdi: bool = True) -> Installed:
    """Install the driver on the node while it runs; with ``cdi`` write the CDI specification, too.

    An installed one is replaced. The node's GPUs are those in :attr:`Node.gpu_file`, made from the preset if
    it is missing. Raises :class:`DriverMissing`, ``RuntimeError`` with what failed on the node.
    """
    if not LIBRARY.is_file():
        raise DriverMissing(f"{LIBRARY}: not built; run: make fakegpu")
    if not node.gpu_file.exists():
        describe(node)
    described = node.gpu_file.read_text()
    version = re.findall(r"^driver (\S+)", described, re.MULTILINE)[0]
    links = []
    for library in (LIBRARY, CUDA):
        if library.is_file():
            stem = library.name.removesuffix(".1")
            _put(node, library, f"{LIBRARIES}/{stem}.{version}", 0o644)
            links += [f"ln -sf {stem}.{version} {stem}.1", f"ln -sf {stem}.1 {stem}"]
    if SMI.is_file():
        _put(node, SMI, "/usr/bin/nvidia-smi", 0o755)
    sections = re.split(r"^gpu \d+", described, flags=re.MULTILINE)[1:]
    minors = [
        int(found[0]) if (found := re.findall(r"^\s*minor (\d+)", gpu, re.MULTILINE)) else index
        for index, gpu in enumerate(sections)
    ]
    devices = [(f"nvidia{minor}", _MAJOR, minor) for minor in minors]
    devices += [
        ("nvidiactl", _MAJOR, 255),
        ("nvidia-uvm", _UVM_MAJOR, 0),
        ("nvidia-uvm-tools", _UVM_MAJOR, 1),
    ]
    if re.search(r"^\s*mig on", described, re.MULTILINE):
        capabilities = range(1, _OF_THE_DRIVER + _OF_A_GPU * (max(minors) + 1))
        devices += [(f"nvidia-caps/nvidia-cap{number}", _CAPS_MAJOR, number) for number in capabilities]
    lines = [
        "set -e",
        "mkdir -p /dev/nvidia-caps",
        f"mkdir -p {STATE} && chmod 1777 {STATE}",
        f"mkdir -p {DESCRIPTION} && (mountpoint -q {DESCRIPTION} || mount --bind {node.gpu_file.parent} {DESCRIPTION})",
        " && ".join([f"cd {LIBRARIES}", *links, "ldconfig"]),
        *(
            f"[ -e /dev/{name} ] || mknod -m 666 /dev/{name} c {major} {minor}"
            for name, major, minor in devices
        ),
    ]
    node.run("sh", "-c", "\n".join(lines))
    return Installed(len(minors), write_cdi(node) if cdi else "")


def remove(node: Node) -> None:
    """Remove the driver, its device nodes and the CDI specification while the node runs."""
    lines = [
        f"rm -rf {cdi_file(node)} /usr/bin/nvidia-smi {LIBRARIES}/libnvidia-ml.so* {LIBRARIES}/libcuda.so* /dev/nvidia*",
        "ldconfig",
        f"! mountpoint -q {DESCRIPTION} || umount {DESCRIPTION}",
    ]
    node.run("sh", "-c", "\n".join(lines))


def cdi_file(node: Node) -> str:
    """NVIDIA's CDI specification, on the node; ``/var/run/cdi/nvidia.yaml``, as in NVIDIA's documentation, unless its host differs."""
    return f"{node.cluster.host.cdi_dirs[-1]}/nvidia.yaml"


def write_cdi(node: Node) -> str:
    """Let NVIDIA's toolkit describe what is installed, add the fake driver's file; returns the toolkit's stderr."""
    hook = f"{node.cluster.bin}/nvidia-cdi-hook"
    made = node.run("nvidia-ctk", "cdi", "generate", "--format=json", f"--nvidia-cdi-hook-path={hook}")
    text = json.dumps(with_description(json.loads(made.stdout)), indent=1)
    file = cdi_file(node)
    command = f"mkdir -p {Path(file).parent} && cat >{file}.new && mv {file}.new {file}"
    node.run("sh", "-c", command, input=text.encode())
    return made.stderr


def with_description(spec: dict[str, Any]) -> dict[str, Any]:
    """The CDI specification ``spec`` with the stand-in's description and state mounted into every container."""
    edits = spec.get("containerEdits", {})
    mounts = [
        {"hostPath": path, "containerPath": path, "options": [access, "nosuid", "nodev", "rbind"]}
        for path, access in ((DESCRIPTION, "ro"), (STATE, "rw"))
    ]
    return {**spec, "containerEdits": {**edits, "mounts": [*edits.get("mounts", []), *mounts]}}


def _put(node: Node, source: Path, target: str, mode: int) -> None:
    # By rename, for programs that have the one before open.
    command = f"cat >{target}.new && chmod {mode:o} {target}.new && mv -f {target}.new {target}"
    node.run("sh", "-c", command, input=source.read_bytes())
