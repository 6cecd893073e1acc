"""Stands in for ``gpu-player``: uses its share and learns until stopped."""

import itertools
import sys
import time

from gpushare_playground.images.programs.descent import Neuron
from gpushare_playground.images.programs.gpu import place_to_work
from gpushare_playground.images.programs.sight import introduce


def main() -> int:
    """Print what is visible, then learn until stopped."""
    introduce("gpu-player")
    gpu = place_to_work(holds_mib=64)
    neuron = Neuron(seed=3)
    for step in itertools.count():
        neuron.step()
        if gpu is not None:
            gpu.compute(0.002)
            gpu.keep_ahead()
        if step % 500 == 0:
            print(f"step {step}: loss {neuron.loss:.3f}", flush=True)
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
