"""``take-memory``: takes memory of the GPU piece by piece, until that is refused or enough, and says how it went."""

import argparse
import sys
import time

from gpushare_playground.images.programs.gpu import OUT_OF_MEMORY, Gpu, GpuError


def main(arguments: list[str] | None = None) -> int:
    """0 if enough was allocated or the memory was used up, 1 if something else failed."""
    parser = argparse.ArgumentParser(prog="take-memory", description=__doc__)
    parser.add_argument("--piece_mib", type=int, default=256, help="size of a piece (%(default)s)")
    parser.add_argument("--most_mib", type=int, default=1 << 20, help="enough (%(default)s)")
    parser.add_argument("--hold_s", type=float, default=0.0, help="keep it for so long (%(default)s)")
    options = parser.parse_args(arguments)
    taken_mib, refusal = 0, None
    try:
        gpu = Gpu()
        free_mib, total_mib = gpu.memory_mib()
        print(f"CUDA reports {total_mib} MiB, {free_mib} MiB of them free")
        while taken_mib < options.most_mib and refusal is None:
            try:
                gpu.take(options.piece_mib)
                taken_mib += options.piece_mib
            except GpuError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                refusal = error
        print(f"taken: {taken_mib} MiB in pieces of {options.piece_mib} MiB")
        print(f"the next piece: {refusal}" if refusal else "nothing was refused", flush=True)
    except GpuError as error:
        print(f"take-memory: {error}", file=sys.stderr)
        return 1
    time.sleep(options.hold_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
