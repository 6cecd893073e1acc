"""Stands in for CUDA's ``bandwidthTest``: copies memory to the GPU, checks each copy, prints the rate, until stopped."""

import argparse
import itertools
import sys
import time

from gpushare_playground.images.programs.gpu import Gpu, GpuError
from gpushare_playground.images.programs.sight import introduce


def main(arguments: list[str] | None = None) -> int:
    """Print what is visible, then copy ``--size_mib`` MiB repeatedly, ``--rounds`` times, 0 means without end."""
    parser = argparse.ArgumentParser(prog="bandwidthTest")
    parser.add_argument("--size_mib", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--round_s", type=float, default=1.0, help="interval of reports")
    parser.add_argument(
        "--look_s", type=float, default=0.005, help="how long a kernel looks at what was copied"
    )
    options, _ = parser.parse_known_args(arguments)
    size_mib = max(1, options.size_mib)
    introduce("bandwidthTest")
    try:
        loop = CopyLoop(size_mib, options.look_s)
    except GpuError as error:
        print(f"nothing is copied to a GPU: {error}", flush=True)
        loop = None
    for number in itertools.count(1):
        if loop is None:
            _copy_here(number, size_mib, options.round_s)
        else:
            copies = loop.run(options.round_s)
            rate = f"{copies:.1f} copies/s of {size_mib} MiB to the GPU"
            print(f"round {number}: {rate}, each looked at for {options.look_s * 1000:g} ms", flush=True)
        if number == options.rounds:
            break
    return 0


class CopyLoop:
    """Copies followed by kernels, with several always queued, so that the GPU has no pauses except those requested."""

    def __init__(self, size_mib: int, look_s: float) -> None:
        self._gpu = Gpu()
        self._size_mib = size_mib
        self._look_s = look_s
        self._target = self._gpu.take(size_mib)
        self._source = self._gpu.host_memory(size_mib)

    def run(self, seconds: float) -> float:
        """Continue for this time; returns the copies per second."""
        start_s = time.perf_counter()
        for copies in itertools.count(1):
            self._gpu.copy_in(self._target, self._source, self._size_mib)
            self._gpu.compute(self._look_s)
            self._gpu.keep_ahead()
            passed = time.perf_counter() - start_s
            if passed >= seconds:
                return copies / passed
        raise AssertionError("counting does not end")


def _copy_here(number: int, size_mib: int, pause_s: float) -> None:
    """A copy within this machine's own memory, and a pause that saves CPU time."""
    source = bytes(size_mib << 20)
    start_s = time.perf_counter()
    bytearray(source)
    rate = len(source) / max(time.perf_counter() - start_s, 1e-9) / 1e9
    print(f"round {number}: {rate:.2f} GB/s within this machine's own memory, not a GPU's", flush=True)
    time.sleep(pause_s)


if __name__ == "__main__":
    sys.exit(main())
