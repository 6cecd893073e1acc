"""A container as the node agent and a runtime make it: the shipped libraries at their places, in
its own namespaces.

Needs root, for its own mounts; they end with the process.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.storage.libraries import deliver
from gpushare_playground import gpus
from tests.integration.isolation.containers import TENANT
from tests.unit.fakegpu import building as fakegpu
from tests.unit.isolation.building import BUILT, Container, build

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")

#: The container's folder at its place, and the driver's libraries in it. $1: the container's directory, $2: the driver's,
#: $3: our libraries as the node agent delivers them, $4 and $5: for an overlay.
MOUNTS: Final = """
set -e
fixed() { touch "$2"; mount --bind "$1" "$2"; mount -o remount,ro,bind "$2"; }
mount -t tmpfs -o mode=755 gpushare /run
mkdir -p /run/gpushare/driver /run/gpushare/lib
for library in "$3"/libgpushare-optional-*.so.1; do fixed "$library" "/run/gpushare/lib/${library##*/}"; done
fixed "$1/limits" /run/gpushare/limits
touch /run/gpushare/usage
mount --bind "$1/usage" /run/gpushare/usage
fixed "$2/libcuda.so.1" /run/gpushare/driver/libcuda.so
fixed "$2/libnvidia-ml.so.1" /run/gpushare/driver/libnvidia-ml.so
mkdir /run/system
for library in libcuda.so libnvidia-ml.so; do ln -s $library.1 /run/system/$library; done
"""
#: As a CDI specification would: ours in the place of the driver's, whatever path they are opened by.
IN_PLACE: Final = """
for library in libcuda.so.1 libnvidia-ml.so.1; do fixed "$3/$library" /run/system/$library; done
export LD_LIBRARY_PATH=/run/system
"""
#: As with NVIDIA's older runtime, which mounts the driver's own libraries itself.
PRELOADED: Final = """
cp "$2"/lib*.so.1 /run/system/
for library in $(cat "$3/ld.so.preload"); do fixed "$3/${library##*/}" "$library"; done
[ -e /etc/ld.so.preload ] || mount -t overlay overlay -o lowerdir=/etc,upperdir="$4",workdir="$5" /etc
fixed "$3/ld.so.preload" /etc/ld.so.preload
export LD_LIBRARY_PATH=/run/system
"""
WAYS: Final = {"in place": IN_PLACE, "preloaded": PRELOADED}
#: Capabilities that containerd, CRI-O and Docker leave by default to a container's root.
RUNTIMES_CAPABILITIES: Final = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service"),
    *("net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"),
)
#: The example's slice, and a program that checks it.
SLICE_MIB: Final = 2154
AS_TENANT: Final = f"import sys\nsys.path.insert(0, {str(TENANT.parent)!r})\nfrom tenant import *\n"
OVER: Final = (
    AS_TENANT
    + f"""
context()
assert info()[1] == {SLICE_MIB}, info()
assert take("plain", 1500 * MIB)[0] == 0
assert take("plain", 500 * MIB)[0] == OUT_OF_MEMORY
"""
)


def allocated_container(
    folder: Path, node: gpus.GpuNode, memory_mib: int = SLICE_MIB, core_percent: int = 0
) -> Container:
    """A container's directory as the node agent makes it, with its owners and modes, next to the
    node's description.
    """
    build("libraries")
    fakegpu.build("library")
    containers = Directories(folder / "containers")
    containers.prepare()
    claimed = Claimed(
        pod="default/job",
        uid="8c0f",
        container="main",
        gpu=node.gpus[0].uuid,
        mib=memory_mib,
        ids="0",
        core_percent=core_percent,
    )
    return Container(containers.make(claimed, "hard"), folder / "node.gpus")


@dataclass(frozen=True)
class Way:
    """How a program gets into a container. ``as_tenant``: with the rights that runtimes leave, not
    those of the node's root.
    """

    name: str = "in place"
    namespaces: str = "-m"
    before: str = ""
    as_tenant: bool = False

    def command(self, here: Container, folder: Path, *program: str | Path) -> list[str | Path]:
        """To be run with ``environment``; ``before`` is a piece of shell that runs last, as the node's root."""
        upper, work = folder / "upper", folder / "work"
        upper.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        capabilities = ",".join(f"+{one}" for one in RUNTIMES_CAPABILITIES)
        rights = f"setpriv --bounding-set=-all,{capabilities} --inh-caps=-all" if self.as_tenant else ""
        script = f'{MOUNTS}{WAYS[self.name]}driver=$2\nshift 5\n{self.before}\nexec {rights} "$@"'
        ours = deliver(BUILT, folder / "libraries").folder
        places = (here.run, fakegpu.BUILT, ours, upper, work)
        return ["unshare", *self.namespaces.split(), "bash", "-c", script, "bash", *places, *program]


def environment(here: Container, **more: str) -> dict[str, str]:
    """With a directory that the shipped libraries must not trust."""
    return fakegpu.environment(here.node) | {"GPUSHARE_RUN": "/nowhere", **more}


def run(
    here: Container, way: Way, folder: Path, *program: str | Path, **more: str
) -> subprocess.CompletedProcess[str]:
    build("libraries")
    return subprocess.run(
        way.command(here, folder, *program),
        env=environment(here, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def running(
    here: Container, way: Way, folder: Path, *program: str | Path, **more: str
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A program that runs during the block, and its output; its stdin ends with the block. The
    process id is that of the program itself.
    """
    build("libraries")
    started = subprocess.Popen(
        way.command(here, folder, *program),
        env=environment(here, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdin
    assert started.stdout
    try:
        yield started, started.stdout
    finally:
        started.stdin.close()
        started.kill()
        started.wait(timeout=10)
        started.stdout.close()


def must(result: subprocess.CompletedProcess[str]) -> str:
    if "mount" in result.stderr and "permission denied" in result.stderr:
        pytest.skip("this machine's root may not mount")
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def compiled(folder: Path, source: str | Path, *flags: str) -> Path:
    """A C program (or, by its flags, a library), compiled by the machine's own compiler."""
    folder.mkdir(exist_ok=True)
    text = source.read_text() if isinstance(source, Path) else source
    made = folder / f"program-{abs(hash((text, flags))):x}"
    subprocess.run(
        ["gcc", "-std=gnu11", "-Wall", "-Wextra", *flags, "-x", "c", "-", "-o", made, "-ldl"],
        input=text,
        text=True,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return made
