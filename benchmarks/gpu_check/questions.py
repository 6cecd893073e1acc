"""NVML's answers as one line of JSON: a program for inside and outside of containers.

Usage: ``python questions.py [UUID]``; without it: the first GPU. Never changes anything. Queries that a driver does not know
or fails are left out of the answer.
"""

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any


class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class MemoryOfVersion2(ctypes.Structure):
    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("bytes", c_ulonglong), ("instance", c_uint), ("compute_instance", c_uint)]


NOT_AVAILABLE = (1 << 64) - 1


def main() -> None:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    device = c_void_p()

    def call(name: str, *arguments: Any) -> int:
        function = getattr(library, name, None)
        return int(function(*arguments)) if function else -1

    def must(name: str, *arguments: Any) -> None:
        result = call(name, *arguments)
        if result:
            sys.exit(f"{name}: NVML error {result}")

    def text(name: str, *before: Any) -> str | None:
        room = ctypes.create_string_buffer(96)
        return room.value.decode(errors="replace") if call(name, *before, room, c_uint(96)) == 0 else None

    def numbers(name: str, count: int = 1) -> list[int] | None:
        room = [c_uint() for _ in range(count)]
        return [one.value for one in room] if call(name, device, *map(byref, room)) == 0 else None

    def processes() -> dict[str, int | None] | None:
        count = c_uint(256)
        room = (Process * 256)()
        for version in ("_v3", "_v2"):
            if call(f"nvmlDeviceGetComputeRunningProcesses{version}", device, byref(count), room) == 0:
                return {
                    str(one.pid): None if one.bytes == NOT_AVAILABLE else one.bytes
                    for one in room[: count.value]
                }
        return None

    must("nvmlInit_v2")
    if len(sys.argv) > 1:
        must("nvmlDeviceGetHandleByUUID", c_char_p(sys.argv[1].encode()), byref(device))
    else:
        must("nvmlDeviceGetHandleByIndex_v2", c_uint(0), byref(device))
    memory, second = Memory(), MemoryOfVersion2(version=ctypes.sizeof(MemoryOfVersion2) | 2 << 24)
    gpus, cuda = c_uint(), c_int()
    answers: dict[str, Any] = {
        "driver": text("nvmlSystemGetDriverVersion"),
        "name": text("nvmlDeviceGetName", device),
        "uuid": text("nvmlDeviceGetUUID", device),
        "vbios": text("nvmlDeviceGetVbiosVersion", device),
        "gpus": gpus.value if call("nvmlDeviceGetCount_v2", byref(gpus)) == 0 else None,
        "cuda": cuda.value if call("nvmlSystemGetCudaDriverVersion_v2", byref(cuda)) == 0 else None,
        "mig": numbers("nvmlDeviceGetMigMode", 2),
        "ecc": numbers("nvmlDeviceGetEccMode", 2),
        "persistence": numbers("nvmlDeviceGetPersistenceMode"),
        "compute_mode": numbers("nvmlDeviceGetComputeMode"),
        "utilization": numbers("nvmlDeviceGetUtilizationRates", 2),
        "processes": processes(),
    }
    if call("nvmlDeviceGetMemoryInfo", device, byref(memory)) == 0:
        answers["memory"] = {"total": memory.total, "free": memory.free, "used": memory.used}
    if call("nvmlDeviceGetMemoryInfo_v2", device, byref(second)) == 0:
        answers["memory_2"] = {"total": second.total, "free": second.free, "used": second.used}
    print(json.dumps({name: value for name, value in answers.items() if value is not None}))


if __name__ == "__main__":
    main()
