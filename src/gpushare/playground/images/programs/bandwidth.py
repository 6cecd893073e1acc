"""Stands in for CUDA's ``bandwidthTest``: copies memory of this machine and tells the rate, until stopped."""

import argparse
import itertools
import sys
import time

from gpushare.playground.images.programs.sight import introduce


def main(arguments: list[str] | None = None) -> int:
    """Say what is seen, then copy ``--size_mib`` MiB a round; ``--rounds`` ends it, 0 means never."""
    parser = argparse.ArgumentParser(prog="bandwidthTest")
    parser.add_argument("--size_mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--pause_s", type=float, default=1.0, help="rest after each round, to spare the CPU")
    options, _ = parser.parse_known_args(arguments)
    introduce("bandwidthTest")
    source = bytes(max(1, options.size_mib) << 20)
    for number in itertools.count(1):
        begun = time.perf_counter()
        bytearray(source)
        rate = len(source) / max(time.perf_counter() - begun, 1e-9) / 1e9
        print(f"round {number}: {rate:.2f} GB/s within this machine's own memory, not a GPU's", flush=True)
        if number == options.rounds:
            break
        time.sleep(options.pause_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
