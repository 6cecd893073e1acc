"""What a container sees of its GPUs: NVML's view, and its share from the environment."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Final, TextIO

import pynvml

_MIB: Final = 1 << 20
_PREFIX: Final = "ALIYUN_COM_GPU_MEM_"


def visible_gpus() -> list[str]:
    """A line for each GPU that NVML lists here; empty without a driver or GPU."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_describe(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return [f"NVML fails: {error}"]
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def share(environment: Mapping[str, str]) -> Fraction | None:
    """The fraction of one GPU that this container may use, or ``None`` if the environment does not contain it.

    ``ALIYUN_COM_GPU_MEM_CONTAINER / ALIYUN_COM_GPU_MEM_DEV``: 4 of 16 is a quarter.
    """
    try:
        container, device = (int(environment[_PREFIX + name]) for name in ("CONTAINER", "DEV"))
    except (KeyError, ValueError):
        return None
    return Fraction(container, device) if 0 < container <= device else None


def introduce(program: str, out: TextIO = sys.stdout, environment: Mapping[str, str] = os.environ) -> None:
    """Print what this program is, the GPUs that it sees, and its share of one."""
    print(
        f"{program}: a stand-in program on a simulated GPU; what it computes, it computes on the CPU, "
        "and its kernels only take a GPU's time",
        file=out,
    )
    gpus = visible_gpus()
    for line in gpus or ["no GPU is visible in this container"]:
        print(line, file=out)
    for name in ("NVIDIA_VISIBLE_DEVICES", *sorted(key for key in environment if key.startswith(_PREFIX))):
        if name in environment:
            print(f"{name}={environment[name]}", file=out)
    part = share(environment)
    if part is not None:
        container, device = environment[_PREFIX + "CONTAINER"], environment[_PREFIX + "DEV"]
        print(f"share of one GPU's memory: {container} / {device} = {float(part):.4g}", file=out)
    out.flush()


def _describe(index: int) -> str:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = (
        text.decode() if isinstance(text, bytes) else text
        for text in (pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle))
    )
    return f"GPU {index}: {name}, {uuid}, {int(memory.total) // _MIB} MiB in all, {int(memory.used) // _MIB} MiB used"
