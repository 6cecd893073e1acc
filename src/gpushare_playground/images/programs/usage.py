"""``gpu-usage``: what NVML says here of how GPUs are used: memory, the last second's utilisation, and processes."""

import argparse
import sys
import time
from contextlib import suppress
from typing import Any, Final

import pynvml

_MIB: Final = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Report ``--times`` times; 1 without a driver."""
    parser = argparse.ArgumentParser(prog="gpu-usage", description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="how often to look (%(default)s)")
    parser.add_argument("--every_s", type=float, default=1.0, help="the wait between two looks (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        pynvml.nvmlInit()
        for number in range(options.times):
            if number:
                time.sleep(options.every_s)
            for index in range(pynvml.nvmlDeviceGetCount()):
                print(*report(index), sep="\n", flush=True)
    except pynvml.NVMLError as error:
        print(f"gpu-usage: NVML says: {error}", file=sys.stderr)
        return 1
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return 0


def report(index: int) -> list[str]:
    """A line for the GPU, and one for each process on it."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    busy = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    used_mib, total_mib = int(memory.used) // _MIB, int(memory.total) // _MIB
    lines = [f"GPU {index}: {used_mib:5} MiB of {total_mib} MiB, busy {busy:3}%"]
    shares = _busy_processes(handle)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        held_mib = int(process.usedGpuMemory or 0) // _MIB
        lines.append(f"  process {process.pid}: {held_mib:5} MiB, busy {shares.get(process.pid, 0):3}%")
    return lines


def _busy_processes(handle: Any) -> dict[int, int]:
    since_us = int((time.time() - 1.0) * 1e6)
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError:
        # "Not found" if none has computed.
        return {}
    return {int(sample.pid): int(sample.smUtil) for sample in samples}


if __name__ == "__main__":
    sys.exit(main())
