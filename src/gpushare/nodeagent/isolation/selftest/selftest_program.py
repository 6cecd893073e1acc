"""Run by ``selftest`` as a separate program: what the driver, alone or behind our libraries, reports on this node.

    selftest_program.py bare LIBCUDA LIBNVML          the driver's own libraries, by path
        selftest_program.py ours LIBCUDA LIBNVML FOLDER   ours, with FOLDER in place of /run/gpushare

It prints one line of JSON, an ``Answers``. It creates no context, which would take memory of a GPU that may be fully allocated.
It imports only the standard library, because it is started without any other packages.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

RUN: Final = "/run/gpushare"
#: What is not permitted here: to mount files in another place for this process.
NO_RIGHT: Final = "no right to mount"
#: Longer than the caller waits.
LONGEST_S: Final = 120

_NEW_MOUNTS: Final = 0x00020000
_NEW_USERS: Final = 0x10000000
_BIND: Final = 0x1000
_RECURSIVE: Final = 0x4000
_SLAVE: Final = 1 << 19
#: The function requested of ``cuGetProcAddress``: ours must be returned, as by the dynamic linker.
_LIMITED: Final = "cuMemAlloc"
_LIMITED_SYMBOL: Final = "cuMemAlloc_v2"
_CUDA_OF_LIMITED: Final = 3020
_PROC_ADDRESS_SINCE: Final = 11030


class NvmlMemory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def main(argv: Sequence[str]) -> int:
    """Query and print; 0 whatever the results are, 1 if the libraries cannot be loaded."""
    # The parent process may be killed meanwhile.
    signal.alarm(LONGEST_S)
    mode, cuda_path, nvml_path = argv[:3]
    denied = _enter(argv[3]) if mode == "ours" else ""
    try:
        cuda = ctypes.CDLL(cuda_path)
        nvml = ctypes.CDLL(nvml_path)
    except OSError as error:
        print(json.dumps({"denied": denied, "unloadable": str(error)}), flush=True)
        return 1
    answers = {"denied": denied, **_query_cuda(cuda)}
    answers["nvml"] = _query_nvml(nvml, list(answers["totals"]))
    print(json.dumps(answers), flush=True)
    return 0


def _query_cuda(cuda: Any) -> dict[str, Any]:
    """The result of ``cuInit``, the version, and the memory of each GPU (UUID) in bytes."""
    count, version, totals = ctypes.c_int(), ctypes.c_int(), {}
    init = cuda.cuInit(0)
    # Our libraries do not have this function: it is found in the driver's, behind them.
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if init == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for index in range(count.value):
            device, total = ctypes.c_int(), ctypes.c_size_t()
            if cuda.cuDeviceGet(ctypes.byref(device), index):
                continue
            uuid = _uuid_of(cuda, device)
            if uuid and cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0:
                totals[uuid] = total.value
    reached = version.value < _PROC_ADDRESS_SINCE or _same_function(cuda)
    return {"init": init, "version": version.value, "totals": totals, "reached": reached}


def _same_function(cuda: Any) -> bool:
    """Whether ``cuGetProcAddress`` and the dynamic linker return the same function."""
    returned = ctypes.c_void_p()
    result = cuda.cuGetProcAddress(
        _LIMITED.encode(), ctypes.byref(returned), _CUDA_OF_LIMITED, ctypes.c_ulonglong(0)
    )
    linked = ctypes.cast(getattr(cuda, _LIMITED_SYMBOL), ctypes.c_void_p)
    return result == 0 and returned.value == linked.value


def _query_nvml(nvml: Any, uuids: Sequence[str]) -> dict[str, int]:
    """The memory of each GPU in bytes; -1 if NVML refuses."""
    if nvml.nvmlInit_v2() != 0:
        return {}
    totals = {}
    for uuid in uuids:
        handle, memory = ctypes.c_void_p(), NvmlMemory()
        refused = nvml.nvmlDeviceGetHandleByUUID(
            uuid.encode(), ctypes.byref(handle)
        ) or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        totals[uuid] = -1 if refused else memory.total
    nvml.nvmlShutdown()
    return totals


def _uuid_of(cuda: Any, device: Any) -> str:
    """The device's UUID as NVML writes it; empty if CUDA refuses. The first form of CUDA's query has the GPU's for a MIG device."""
    whole, own = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
    if cuda.cuDeviceGetUuid(whole, device):
        return ""
    if not hasattr(cuda, "cuDeviceGetUuid_v2") or cuda.cuDeviceGetUuid_v2(own, device):
        own = whole
    text = bytes(own).hex()
    prefix = "GPU" if bytes(own) == bytes(whole) else "MIG"
    return f"{prefix}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _enter(folder: str) -> str:
    """Mount ``folder`` at ``RUN`` for this process only; returns why that failed, empty on success."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) and libc.unshare(_NEW_USERS | _NEW_MOUNTS):
        return f"{NO_RIGHT} ({os.strerror(ctypes.get_errno())})"
    try:
        _mount(libc, "none", "/", "", _SLAVE | _RECURSIVE)
        try:
            os.makedirs(RUN, exist_ok=True)
        except OSError:
            # The container's root is read-only. The contents of its /run are not needed here.
            _mount(libc, "tmpfs", "/run", "tmpfs", 0)
            os.makedirs(RUN)
        _mount(libc, folder, RUN, "", _BIND)
    except OSError as error:
        return f"{NO_RIGHT} ({error.strerror})"
    return ""


def _mount(libc: Any, source: str, target: str, kind: str, flags: int) -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
