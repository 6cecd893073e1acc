"""The content of a container's usage file: ``struct region`` of isolation/files/region.h, read from the host's side.

A tenant may write anything into that file and truncate it: its values are only displayed, never trusted. It is read and not
mapped, so that a truncated file is a short read and no signal.
"""

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.nodeagent.isolation.storage.files import USAGE

_MAGIC: Final = 0x3167656572617567
_VERSION: Final = 1
_PAGE: Final = 4096
_GPUS_MAX: Final = 16
_GPUS_AT: Final = _PAGE * (1 + _GPUS_MAX)
#: ``magic`` and ``version`` of ``struct region_header``.
_HEADER: Final = struct.Struct("<QI")
#: ``used_ns``, ``alone_ns`` and ``waited_ns`` of ``struct turn_page``.
_TURN: Final = struct.Struct("<QQQ")
_TURN_AT: Final = 72
#: ``total``, ``context_bytes`` and ``refused`` of ``struct region_gpu``.
_GPU: Final = struct.Struct("<QQQ")
_GPU_BYTES: Final = 64
#: Below the units in ``total`` are the slot and the number of the last change (isolation/files/account.h).
_UNITS_SHIFT: Final = 28
_UNIT_BYTES: Final = 256


class GpuUse(NamedTuple):
    """What a container reports of one of its GPUs.

    ``memory_bytes``: charged by its library; ``context_bytes``: size of one context, 0 before the first; ``refused``: failed allocations;
    ``busy_ns``: GPU time of its work; ``waited_ns``: how long its threads waited for their share of that time.
    """

    memory_bytes: int
    context_bytes: int
    refused: int
    busy_ns: int
    waited_ns: int


def read_usage(folder: Path, gpus: int) -> list[GpuUse]:
    """Of the first ``gpus`` GPUs in the order of ``limits``; empty if no process has started, or nothing can be read."""
    try:
        handle = os.open(f"{folder}/{USAGE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        if _at(handle, _HEADER, 0) != (_MAGIC, _VERSION):
            return []
        return [_use(handle, number) for number in range(min(gpus, _GPUS_MAX))]
    except (OSError, struct.error):
        return []
    finally:
        os.close(handle)


def _use(handle: int, number: int) -> GpuUse:
    busy_ns, _, waited_ns = _at(handle, _TURN, _PAGE * (1 + number) + _TURN_AT)
    total, context_bytes, refused = _at(handle, _GPU, _GPUS_AT + _GPU_BYTES * number)
    return GpuUse((total >> _UNITS_SHIFT) * _UNIT_BYTES, context_bytes, refused, busy_ns, waited_ns)


def _at(handle: int, form: struct.Struct, offset: int) -> tuple[int, ...]:
    return form.unpack(os.pread(handle, form.size, offset))
