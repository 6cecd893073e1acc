"""A program in a container, over ctypes: runs the lines that it gets on stdin with the names below."""

import ctypes
import os
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

MIB = 1 << 20
OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801
NOT_READY = 802

cuda = ctypes.CDLL(os.environ.get("TENANT_CUDA", "libcuda.so.1"))


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("most", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class Array3D(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


def call(name: str, *arguments: Any) -> int:
    return int(getattr(cuda, name)(*arguments))


def must(name: str, *arguments: Any) -> None:
    result = call(name, *arguments)
    assert result == 0, f"{name}: {result}"


def context(device: int = 0) -> c_void_p:
    must("cuInit", 0)
    made = c_void_p()
    must("cuCtxCreate_v2", byref(made), 0, device)
    return made


def info() -> tuple[int, int]:
    """Free and total MiB."""
    free, total = c_size_t(), c_size_t()
    must("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value // MIB, total.value // MIB


def used() -> int:
    free, total = info()
    return total - free


def take(kind: str, size: int) -> tuple[int, Any]:
    """Allocates ``size`` bytes in one of the ways; returns the result and the arguments for ``give``."""
    address, handle = c_uint64(), c_void_p()
    if kind == "pitch":
        pitch = c_size_t()
        return call(
            "cuMemAllocPitch_v2", byref(address), byref(pitch), c_size_t(1 << 16), c_size_t(size >> 16), 4
        ), address
    if kind == "managed":
        return call("cuMemAllocManaged", byref(address), c_size_t(size), 1), address
    if kind in ("async", "async_ptsz"):
        name = "cuMemAllocAsync" + kind[5:]
        return call(name, byref(address), c_size_t(size), None), address
    if kind == "from_pool":
        pool = c_void_p()
        properties = PoolProperties(type=1, location=Location(1, 0))
        must("cuMemPoolCreate", byref(pool), byref(properties))
        return call("cuMemAllocFromPoolAsync", byref(address), c_size_t(size), pool, None), (address, pool)
    if kind == "physical":
        properties = AllocationProperties(type=1, location=Location(1, 0))
        return call("cuMemCreate", byref(address), c_size_t(size), byref(properties), c_uint64(0)), address
    if kind in ("array", "mipmap"):
        shape = Array3D(1 << 14, size >> 16, 0, 0x20, 1, 0)
        if kind == "array":
            return call("cuArray3DCreate_v2", byref(handle), byref(shape)), handle
        return call("cuMipmappedArrayCreate", byref(handle), byref(shape), 1), handle
    assert kind == "plain"
    return call("cuMemAlloc_v2", byref(address), c_size_t(size)), address


def give(kind: str, held: Any) -> None:
    if kind in ("async", "async_ptsz", "from_pool"):
        address, pool = held if kind == "from_pool" else (held, None)
        must("cuMemFreeAsync" + kind[5:] if kind == "async_ptsz" else "cuMemFreeAsync", address, None)
        must("cuCtxSynchronize")
        if pool:
            must("cuMemPoolDestroy", pool)
    elif kind == "physical":
        must("cuMemRelease", held)
    elif kind in ("array", "mipmap"):
        must({"array": "cuArrayDestroy", "mipmap": "cuMipmappedArrayDestroy"}[kind], held)
    else:
        must("cuMemFree_v2", held)


def graph_that_takes(size: int) -> tuple[c_void_p, c_void_p]:
    """A stream, and a graph captured from it that allocates ``size`` bytes and frees them."""
    stream, graph, address = c_void_p(), c_void_p(), c_uint64()
    must("cuStreamCreate", byref(stream), 1)
    must("cuStreamBeginCapture_v2", stream, 2)
    must("cuMemAllocAsync", byref(address), c_size_t(size), stream)
    must("cuMemFreeAsync", address, stream)
    must("cuStreamEndCapture", stream, byref(graph))
    return stream, graph


def look_up(name: str, version: int, flags: int = 0) -> int:
    """Address of a function by cuGetProcAddress_v2; 0: none."""
    found, status = c_void_p(), c_int()
    result = call(
        "cuGetProcAddress_v2", c_char_p(name.encode()), byref(found), version, c_uint64(flags), byref(status)
    )
    return int(found.value or 0) if result == 0 else 0


def exported(name: str) -> int:
    return int(ctypes.cast(getattr(cuda, name), c_void_p).value or 0)


if __name__ == "__main__":
    exec(compile(sys.stdin.read(), "tenant", "exec"))
