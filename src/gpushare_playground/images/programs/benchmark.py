"""Stands in for the sample image's convolution benchmark: ``run.sh --num_batches=N --batch_size=M``."""

import argparse
import sys
import time

from gpushare_playground.images.programs.descent import Neuron
from gpushare_playground.images.programs.gpu import place_to_work
from gpushare_playground.images.programs.sight import introduce


def main(arguments: list[str] | None = None) -> int:
    """Print what is visible, then learn from ``--num_batches`` batches, printing the rate as the real one does."""
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("--num_batches", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--display_every", type=int, default=50)
    parser.add_argument("--pause_s", type=float, default=0.02, help="rest after each batch, to spare the CPU")
    options, _ = parser.parse_known_args(arguments)
    introduce("benchmark")
    gpu = place_to_work(holds_mib=64)
    neuron = Neuron(seed=2, batch_size=options.batch_size)
    print("Step\tPoints/sec (on the CPU)\ttotal_loss", flush=True)
    start_s = time.monotonic()
    for batch in range(1, options.num_batches + 1):
        neuron.step()
        if gpu is not None:
            gpu.compute(0.002)
            gpu.keep_ahead()
        if batch == 1 or batch % options.display_every == 0:
            rate = batch * options.batch_size / max(time.monotonic() - start_s, 1e-9)
            print(f"{batch}\t{rate:.1f}\t{neuron.loss:.3f}", flush=True)
        time.sleep(options.pause_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
