"""NVIDIA's nvidia-smi in a container; and the shipped libraries at the paths of a node."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_check.building import ROOT
from benchmarks.gpu_check.lab import ISOLATION, TENANT, Lab, Share
from benchmarks.gpu_check.report import Row, measured, not_run, promise

TITLE = "nvidia-smi, and the libraries as shipped"

#: In a mount namespace of its own, which ends with the program: the container's files where a node agent mounts them.
#: $1: the container's folder, $2, $3: the driver's libraries, $4: the folder of ours.
PLACES = """
set -e
mount -t tmpfs gpu-check /run
mkdir -p /run/gpushare/driver
for name in limits usage; do touch /run/gpushare/$name; mount --bind "$1/$name" /run/gpushare/$name; done
mount -o remount,ro,bind /run/gpushare/limits
touch /run/gpushare/driver/libcuda.so /run/gpushare/driver/libnvidia-ml.so
mount --bind "$2" /run/gpushare/driver/libcuda.so
mount --bind "$3" /run/gpushare/driver/libnvidia-ml.so
export LD_LIBRARY_PATH="$4:$LD_LIBRARY_PATH"
shift 4
exec "$@"
"""
#: Allocates within its limit, fails above it, and cannot change the limit.
SHIPPED = f"""
import sys
sys.path.insert(0, {str(TENANT.parent)!r})
from tenant import *
context()
assert info()[1] == LIMIT, info()
assert take("plain", 512 * MIB)[0] == 0
assert take("plain", 700 * MIB)[0] == OUT_OF_MEMORY
try:
    open("/run/gpushare/limits", "a")
except OSError:
    print("held")
"""


def program(name: str) -> Path | None:
    """A program of this machine; nvidia-smi may be in a folder with unpacked packages."""
    unpacked = ROOT / "build" / "system" / "usr" / "bin" / name
    found = shutil.which(name)
    return Path(found) if found else unpacked if unpacked.exists() else None


def of_smi(lab: Lab, limit_mib: int) -> Iterator[Row]:
    """The output of nvidia-smi in a container."""
    smi = program("nvidia-smi")
    if smi is None:
        yield not_run("nvidia-smi", "not found")
        return
    container = lab.container(Share(limit_mib))
    with lab.staying(container, "context()\nprint(used(), flush=True)\nsys.stdin.read()\n") as started:
        used_mib = int(started.answer())
        table = lab.run(container, smi, timeout_s=60)
        queried = lab.run(
            container,
            smi,
            "--query-gpu=memory.total,memory.used",
            "--format=csv,noheader,nounits",
            f"--id={lab.uuid}",
            timeout_s=60,
        )
        listed = lab.run(container, smi, "-q", "-d", "MEMORY", f"--id={lab.uuid}", timeout_s=60)
    found = re.findall(r"\d+MiB\s*/\s*\d+MiB", table.out)
    got = ", ".join(found) if found else table.trouble()
    holds = any(re.fullmatch(rf"{used_mib}MiB\s*/\s*{limit_mib}MiB", one) for one in found)
    yield promise("nvidia-smi", f"{used_mib}MiB / {limit_mib}MiB", got, holds)
    got = queried.out.strip() if queried.good else queried.trouble()
    yield promise(
        "nvidia-smi --query-gpu=memory.total,memory.used",
        f"{limit_mib}, {used_mib}",
        got,
        got == f"{limit_mib}, {used_mib}",
    )
    total = re.search(r"FB Memory Usage\s+Total\s*:\s*(\d+) MiB", listed.out)
    got = f"{total[1]} MiB" if total else listed.trouble()
    yield promise("nvidia-smi -q -d MEMORY, total", f"{limit_mib} MiB", got, got == f"{limit_mib} MiB")
    yield measured("its own entry", lab.run(container, smi, "-h", timeout_s=30).out.partition("\n\n")[0])


def of_the_shipped(lab: Lab) -> Row:
    """The libraries with fixed paths, whatever the environment contains."""
    name = "the shipped libraries, in a mount namespace of their own"
    if os.geteuid() != 0:
        return not_run(name, "only root can mount")
    if shutil.which("unshare") is None:
        return not_run(name, "unshare not found")
    if Path("/run") in lab.driver.cuda.parents:
        return not_run(name, f"the driver lies below /run ({lab.driver.cuda}), which is hidden there")
    limit_mib = lab.room_mib(1024)
    container = lab.container(Share(limit_mib))
    outcome = lab.run(
        None, "unshare", "-m", "bash", "-c", PLACES, "bash", container, lab.driver.cuda, lab.driver.management,
        ISOLATION, sys.executable, "-c", f"LIMIT = {limit_mib}\n" + SHIPPED, timeout_s=60, GPUSHARE_RUN="/nowhere",
    )  # fmt: skip
    refused = ("permission denied", "operation not permitted")
    if (
        not outcome.good
        and any(word in outcome.err.lower() for word in refused)
        and "mount" in outcome.err + outcome.out
    ):
        return not_run(name, f"this machine's root may not mount: {outcome.trouble()}")
    if not outcome.good and "unshare" in outcome.err:
        return not_run(name, outcome.trouble())
    promised = "the limit holds, and its file cannot be written"
    return promise(
        name,
        promised,
        "held" if outcome.out.strip() == "held" else outcome.trouble(),
        outcome.out.strip() == "held",
    )


def rows(lab: Lab) -> Iterator[Row]:
    """nvidia-smi first."""
    yield from of_smi(lab, lab.room_mib(1026))
    yield of_the_shipped(lab)
