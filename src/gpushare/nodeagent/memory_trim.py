"""Keeps this process small: it runs on every GPU node, next to the workloads.

Measured with eight GPUs in 128 MiB units (``benchmarks/allocate.py``): about 1.5 MB less than without.
"""

import ctypes
import gc
import os
from typing import Final

# Parameters of mallopt (malloc.h of glibc).
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def prepare() -> None:
    """Call before the heavy libraries are imported and threads begin.

    One malloc arena suffices, because our threads mostly wait instead of allocating concurrently. gRPC's own log is only useful for
    debugging gRPC.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    libc = _libc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 10)
        libc.mallopt(_M_TOP_PAD, 16 << 10)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 << 10)


def settle() -> None:
    """Call after startup: collect garbage once, and exempt what is left from later collections (gc.freeze)."""
    gc.collect()
    gc.freeze()
    trim()


def trim() -> None:
    """Return free memory to the kernel; takes a millisecond."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL | None:
    """The C library, if it is glibc."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
