"""Description files of the stand-in driver: what GPUs a node of the playground has.

The format is told in ``docs/developer/fakegpu.md``. The library (``fakegpu/description*.c``) reads the same files by the
same rules and with the same messages, word for word, so that a slip is told before a node starts as clearly as
after; a test holds the two together.
"""

from gpushare_playground.gpus.description import DescriptionError, Gpu, GpuNode, Process, UnknownPreset
from gpushare_playground.gpus.presets import PRESETS, preset
from gpushare_playground.gpus.reading import parse, read
from gpushare_playground.gpus.writing import render, write

__all__ = [
    "PRESETS",
    "DescriptionError",
    "Gpu",
    "GpuNode",
    "Process",
    "UnknownPreset",
    "parse",
    "preset",
    "read",
    "render",
    "write",
]
