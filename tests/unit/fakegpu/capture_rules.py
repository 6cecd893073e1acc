"""Calls during a global capture in another thread: prints, as JSON, the result of each and of the capture.

    python capture_rules.py

First from a thread in its usual mode, then from one whose mode is relaxed. Run with the driver, or the library in front of it, in LD_LIBRARY_PATH.
"""

import ctypes
import json
import threading
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

cuda = ctypes.CDLL("libcuda.so.1")
GLOBAL, RELAXED = 0, 2
RESERVED, GRAPH_RESERVED = 5, 2
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n\0"


def must(name: str, *arguments: Any) -> None:
    result = getattr(cuda, name)(*arguments)
    assert result == 0, f"{name}: {result}"


def made(name: str, *arguments: Any) -> c_void_p:
    handle = c_void_p()
    must(name, byref(handle), *arguments)
    return handle


must("cuInit", 0)
context = made("cuCtxCreate_v2", 0, 0)
pool = made("cuDeviceGetDefaultMemPool", 0)
other = made("cuStreamCreate", 1)
event = made("cuEventCreate", 0)
must("cuEventRecord", event, other)
address, allocated = c_uint64(), c_uint64()
must("cuMemAlloc_v2", byref(allocated), c_size_t(1 << 20))
plain = [c_uint64(), c_uint64()]
for each in plain:
    must("cuMemAlloc_v2", byref(each), c_size_t(1 << 20))
must("cuStreamSynchronize", other)
CALLS: dict[str, Callable[[], int]] = {
    "cuEventQuery": lambda: cuda.cuEventQuery(event),
    "cuStreamQuery": lambda: cuda.cuStreamQuery(other),
    "cuStreamSynchronize": lambda: cuda.cuStreamSynchronize(other),
    "cuCtxSynchronize": lambda: cuda.cuCtxSynchronize(),
    "cuMemAlloc": lambda: cuda.cuMemAlloc_v2(byref(address), c_size_t(1 << 20)),
    "cuMemPoolGetAttribute": lambda: cuda.cuMemPoolGetAttribute(pool, RESERVED, byref(c_uint64())),
    "cuMemPoolTrimTo": lambda: cuda.cuMemPoolTrimTo(pool, c_size_t(0)),
    "cuMemAllocAsync": lambda: cuda.cuMemAllocAsync(byref(address), c_size_t(1 << 20), other),
    # Of plain memory, which is freed when the stream gets there.
    "cuMemFreeAsync": lambda: cuda.cuMemFreeAsync(plain.pop(), other),
    "cuMemFree": lambda: cuda.cuMemFree_v2(allocated),
    "cuEventCreate": lambda: cuda.cuEventCreate(byref(c_void_p()), 0),
    "cuEventRecord": lambda: cuda.cuEventRecord(event, other),
    "cuEventDestroy": lambda: cuda.cuEventDestroy_v2(made("cuEventCreate", 0)),
    "cuEventElapsedTime": lambda: cuda.cuEventElapsedTime(byref(c_float()), event, event),
    "cuMemGetInfo": lambda: cuda.cuMemGetInfo_v2(byref(c_size_t()), byref(c_size_t())),
    "cuDeviceGetGraphMemAttribute": lambda: cuda.cuDeviceGetGraphMemAttribute(
        0, GRAPH_RESERVED, byref(c_uint64())
    ),
    "cuDeviceGraphMemTrim": lambda: cuda.cuDeviceGraphMemTrim(0),
    "cuStreamIsCapturing": lambda: cuda.cuStreamIsCapturing(other, byref(c_int())),
    "cuModuleLoadData": lambda: cuda.cuModuleLoadData(byref(c_void_p()), PTX),
}


def during_a_capture(call: Callable[[], int], mode: int) -> tuple[int, int]:
    """Results of the call in a thread of that mode, and of the capture."""
    answers = []

    def run() -> None:
        must("cuCtxSetCurrent", context)
        must("cuThreadExchangeStreamCaptureMode", byref(c_int(mode)))
        answers.append(call())

    # What was freed before is noticed when free memory is queried.
    piece = c_uint64()
    must("cuMemAllocAsync", byref(piece), c_size_t(1 << 20), other)
    must("cuMemFreeAsync", piece, other)
    stream = made("cuStreamCreate", 1)
    must("cuStreamBeginCapture_v2", stream, GLOBAL)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0], cuda.cuStreamEndCapture(stream, byref(c_void_p()))


print(
    json.dumps(
        {
            mode: {name: during_a_capture(call, number) for name, call in CALLS.items()}
            for mode, number in (("global", GLOBAL), ("relaxed", RELAXED))
        }
    )
)
