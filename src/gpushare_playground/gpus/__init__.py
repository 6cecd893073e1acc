"""Description files of the fake driver: the GPUs of a node of the playground.

``docs/developer/fakegpu.md`` describes the format; the driver (``fakegpu/description/``) reads it.
"""

from gpushare_playground.gpus.description import Gpu, GpuNode, Instance, Process, UnknownPreset
from gpushare_playground.gpus.presets import PRESETS, preset
from gpushare_playground.gpus.writing import render, write

__all__ = [
    "PRESETS",
    "Gpu",
    "GpuNode",
    "Instance",
    "Process",
    "UnknownPreset",
    "preset",
    "render",
    "write",
]
