"""Run by ``trial`` as a program of its own: what the driver, and our libraries before it, answer on this node.

    trial_program.py bare LIBCUDA LIBNVML          the driver's own libraries, by path
    trial_program.py ours LIBCUDA LIBNVML FOLDER   ours, with FOLDER in place of /run/gpushare

It prints one line of JSON, an ``Answers``. It makes no context: that would take memory of a GPU that pods may have in
full. It imports nothing but Python's own modules, as it is started without any other.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

RUN: Final = "/run/gpushare"
#: What may not be done here: to have files in another place than everybody else.
NO_RIGHT: Final = "no right to mount"
#: Longer than anybody waits for it.
LONGEST_S: Final = 120

_NEW_MOUNTS: Final = 0x00020000
_NEW_USERS: Final = 0x10000000
_BIND: Final = 0x1000
_RECURSIVE: Final = 0x4000
_SLAVE: Final = 1 << 19
#: What ``cuGetProcAddress`` is asked for: ours must come, as from the dynamic linker.
_LIMITED: Final = "cuMemAlloc"
_LIMITED_SYMBOL: Final = "cuMemAlloc_v2"
_CUDA_OF_LIMITED: Final = 3020
_PROC_ADDRESS_SINCE: Final = 11030


class NvmlMemory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def main(argv: Sequence[str]) -> int:
    """Ask and print; 0 whatever was answered, 1 when the libraries cannot be loaded."""
    # Whoever started it may be killed meanwhile.
    signal.alarm(LONGEST_S)
    way, cuda_path, nvml_path = argv[:3]
    denied = _enter(argv[3]) if way == "ours" else ""
    try:
        cuda = ctypes.CDLL(cuda_path)
        nvml = ctypes.CDLL(nvml_path)
    except OSError as error:
        print(json.dumps({"denied": denied, "unloadable": str(error)}), flush=True)
        return 1
    answers = {"denied": denied, **_asked_cuda(cuda)}
    answers["nvml"] = _asked_nvml(nvml, list(answers["totals"]))
    print(json.dumps(answers), flush=True)
    return 0


def _asked_cuda(cuda: Any) -> dict[str, Any]:
    """What ``cuInit`` says, the version, and the memory of each GPU (UUID) in bytes."""
    count, version, totals = ctypes.c_int(), ctypes.c_int(), {}
    init = cuda.cuInit(0)
    # Known to no library of ours: it is found in the driver's, behind them.
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if init == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for index in range(count.value):
            device, total, uuid = ctypes.c_int(), ctypes.c_size_t(), (ctypes.c_ubyte * 16)()
            if cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetUuid(uuid, device):
                continue
            if cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0:
                totals[_spelled(bytes(uuid))] = total.value
    reached = version.value < _PROC_ADDRESS_SINCE or _reached(cuda)
    return {"init": init, "version": version.value, "totals": totals, "reached": reached}


def _reached(cuda: Any) -> bool:
    """Whether both ways of asking for a function lead to the same one."""
    found = ctypes.c_void_p()
    asked = cuda.cuGetProcAddress(
        _LIMITED.encode(), ctypes.byref(found), _CUDA_OF_LIMITED, ctypes.c_ulonglong(0)
    )
    linked = ctypes.cast(getattr(cuda, _LIMITED_SYMBOL), ctypes.c_void_p)
    return asked == 0 and found.value == linked.value


def _asked_nvml(nvml: Any, uuids: Sequence[str]) -> dict[str, int]:
    """The memory of each GPU in bytes; -1 where NVML refuses to tell."""
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


def _spelled(uuid: bytes) -> str:
    text = uuid.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _enter(folder: str) -> str:
    """Have ``folder`` at ``RUN``, for this process alone; why not, empty when it is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) and libc.unshare(_NEW_USERS | _NEW_MOUNTS):
        return f"{NO_RIGHT} ({os.strerror(ctypes.get_errno())})"
    try:
        _mount(libc, "none", "/", "", _SLAVE | _RECURSIVE)
        try:
            os.makedirs(RUN, exist_ok=True)
        except OSError:
            # The container's root is read-only. What lies in its /run is not needed here.
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
