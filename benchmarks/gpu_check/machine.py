"""The machine: everything that figures depend on. Only read; no setting of the GPU is changed."""

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.building import ROOT
from benchmarks.gpu_check.lab import MIB, Lab
from benchmarks.gpu_check.report import Row, measured, not_run
from benchmarks.processes import machine as processor

TITLE = "The machine"

#: Facts of CUDA's first device; in a separate program, since a failing driver may crash it.
DEVICE = """
must("cuInit", 0)
version, uuid, total = c_int(), ctypes.create_string_buffer(16), c_size_t()
name = ctypes.create_string_buffer(96)
must("cuDriverGetVersion", byref(version))
must("cuDeviceGetUuid", uuid, 0)
must("cuDeviceGetName", name, 96, 0)
must("cuDeviceTotalMem_v2", byref(total), 0)
def attribute(number):
    value = c_int()
    return value.value if call("cuDeviceGetAttribute", byref(value), number, 0) == 0 else None
print(json.dumps({
    "cuda": version.value, "uuid": uuid.raw.hex(), "name": name.value.decode(), "total": total.value,
    "compute": [attribute(75), attribute(76)], "multiprocessors": attribute(16), "threads": attribute(39),
    "clock_khz": attribute(13), "pools": attribute(115), "concurrent_managed": attribute(89),
}))
"""
MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def uuid_of(digits: str) -> str:
    """As NVML and the limits name a GPU."""
    return "GPU-" + "-".join(
        digits[begin:end] for begin, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    )


def first_word(*program: str) -> str:
    """The first line of a program's version output."""
    try:
        ran = subprocess.run(program, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "not here"
    return (ran.stdout or ran.stderr).partition("\n")[0].strip() or "says nothing"


def commit() -> str:
    """The checked-out commit, if git and its folder exist."""
    text = first_word("git", "-C", str(ROOT), "log", "-1", "--format=%h of %cs")
    return text if text[:1].isalnum() and " of " in text else "not known here"


def mps() -> str:
    """Whether programs of this machine share contexts by NVIDIA's MPS."""
    names = []
    for process in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.append(process.read_text().strip())
        except OSError:
            continue
    there = sorted({name for name in names if name.startswith("nvidia-cuda-mps")})
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    return (", ".join(there) or "no daemon seen") + (f", CUDA_MPS_PIPE_DIRECTORY={pipe}" if pipe else "")


def cgroups() -> str:
    """The version of control groups."""
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "2"
    return "1" if Path("/sys/fs/cgroup/memory").is_dir() else "none mounted"


def of_the_gpu(device: dict[str, Any], answers: dict[str, Any]) -> Iterator[Row]:
    """The answers of driver and NVML."""
    yield measured("GPU", f"{device['name']}, {device['uuid']}")
    yield measured(
        "compute capability, multiprocessors, threads of one",
        f"{'.'.join(map(str, device['compute']))}, {device['multiprocessors']}, {device['threads']}",
    )
    memory = answers.get("memory", {})
    yield measured(
        "memory, MiB: CUDA's total, NVML's total, NVML's used",
        f"{device['total'] / MIB:.1f}, {memory.get('total', 0) / MIB:.1f}, {memory.get('used', 0) / MIB:.1f}",
    )
    yield measured("driver", answers.get("driver", "unknown"))
    yield measured("CUDA version of the driver", f"{device['cuda'] // 1000}.{device['cuda'] % 1000 // 10}")
    switched = {0: "off", 1: "on"}
    for name, key in (("MIG", "mig"), ("ECC", "ecc"), ("persistence mode", "persistence")):
        value = answers.get(key)
        yield measured(name, switched.get(value[0], str(value)) if value else "not supported")
    mode = answers.get("compute_mode")
    yield measured("compute mode", MODES.get(mode[0], str(mode)) if mode else "not supported")
    yield measured("MPS", mps())
    others = answers.get("processes")
    if others is None:
        yield measured("other processes on the GPU", "NVML does not list them")
    else:
        seen = f"{len(others)}: their work and memory are in every figure" if others else "none"
        yield measured("other processes on the GPU", seen)


def identify(lab: Lab) -> dict[str, Any]:
    """Sets the lab's GPU, and returns its description by CUDA's driver."""
    device: dict[str, Any] = lab.result(None, DEVICE)
    device["uuid"] = uuid_of(device["uuid"])
    lab.uuid, lab.total_mib = device["uuid"], device["total"] // MIB
    return device


def rows(lab: Lab) -> Iterator[Row]:
    """All facts of the machine."""
    yield from of_the_gpu(identify(lab), lab.answers(None))
    yield measured("libcuda, libnvidia-ml", f"{lab.driver.cuda}, {lab.driver.management}")
    yield measured("processor", processor())
    yield measured("load at the beginning", f"{os.getloadavg()[0]:.1f}")
    yield measured("control groups, version", cgroups())
    yield measured("libc, gcc", f"{' '.join(platform.libc_ver())}, {first_word('gcc', '--version')}")
    yield measured("user", f"uid {os.geteuid()}")
    yield measured("commit", commit())
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        yield not_run("other GPUs", f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}")
