"""The file with what a container may take of each of its GPUs at this moment: see isolation/files/limits.h.

Processes of the container have it mapped, so it is changed in place, one aligned word at a time.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare.nodeagent.isolation.storage.files import ALLOWANCE, MOST_GPUS

_WORDS: Final = struct.Struct(f"<{MOST_GPUS}Q")
#: The size of the file.
ALLOWANCE_BYTES: Final = _WORDS.size
_MIB: Final = 1 << 20


def read_allowance(folder: Path, gpus: int) -> list[int]:
    """MiB of the first ``gpus`` GPUs in the order of ``limits``; raises ``OSError``."""
    content = (folder / ALLOWANCE).read_bytes()
    if len(content) < ALLOWANCE_BYTES:
        raise OSError(f"{folder / ALLOWANCE} has {len(content)} bytes instead of {ALLOWANCE_BYTES}")
    return [word // _MIB for word in _WORDS.unpack_from(content)[:gpus]]


def write_allowance(folder: Path, allowed_mib: Sequence[int]) -> None:
    """Change what the container may take, from this moment on; raises ``OSError``."""
    handle = os.open(folder / ALLOWANCE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # A word of a mapping is stored at once: no reader sees half of it.
        with mmap.mmap(handle, ALLOWANCE_BYTES) as mapped, memoryview(mapped).cast("Q") as words:
            for number, mib in enumerate(allowed_mib):
                words[number] = mib * _MIB
    except ValueError as error:
        raise OSError(f"{folder / ALLOWANCE} cannot be mapped: {error}") from None
    finally:
        os.close(handle)
