"""Stands in for the sample image's MNIST training: ``main.py --max_steps=N --data_dir=DIR``."""

import argparse
import sys
import time

from gpushare_playground.images.programs.descent import Neuron
from gpushare_playground.images.programs.gpu import place_to_work
from gpushare_playground.images.programs.sight import introduce


def main(arguments: list[str] | None = None) -> int:
    """Print what is visible, then train for ``--max_steps`` steps; options of the real program are accepted."""
    parser = argparse.ArgumentParser(prog="main.py")
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--data_dir", default="")
    parser.add_argument("--log_dir", default="")
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--dropout", type=float, default=0.9)
    parser.add_argument("--pause_s", type=float, default=0.02, help="rest after each step, to spare the CPU")
    options, _ = parser.parse_known_args(arguments)
    introduce("mnist")
    gpu = place_to_work(holds_mib=64)
    neuron = Neuron(seed=1)
    for step in range(options.max_steps):
        neuron.step()
        if gpu is not None:
            gpu.compute(0.002)
            gpu.keep_ahead()
        if step % 50 == 0:
            print(f"Accuracy at step {step}: {neuron.accuracy():.4f}", flush=True)
        time.sleep(options.pause_s)
    print(f"Accuracy at step {options.max_steps}: {neuron.accuracy():.4f}; done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
