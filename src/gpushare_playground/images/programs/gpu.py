"""The samples' access to a GPU: the CUDA driver's own interface, over ctypes, for a real driver and the fake one."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any, Final

MIB: Final = 1 << 20
OUT_OF_MEMORY: Final = 2
_LIBRARY: Final = "libcuda.so.1"
#: Pieces of work that are queued on the GPU before the first of them is awaited: it has no pause between two.
_AHEAD: Final = 8
_NON_BLOCKING: Final = 1
_WITHOUT_TIME: Final = 2

#: Spins for the nanoseconds in its parameter; the fake driver reads that from the comment.
_WORK: Final = b"""
.version 6.0
.target sm_50
.address_size 64

// fakegpu: duration param 0 ns
.visible .entry work(.param .u64 work_nanoseconds)
{
    .reg .pred %over;
    .reg .u64 %start, %now, %wanted;
    ld.param.u64 %wanted, [work_nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.ge.u64 %over, %now, %wanted;
    @!%over bra again;
    ret;
}
"""


class GpuError(Exception):
    """The driver's result, with the driver's name for it. ``code`` is 0 without a driver."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Gpu:
    """The first GPU that this process sees, with a context and one stream; released when the process ends."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL(_LIBRARY)
        except OSError:
            raise GpuError(f"this container has no CUDA driver ({_LIBRARY})") from None
        self._call("cuInit", 0)
        device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(device), 0)
        self._call("cuCtxCreate_v2", byref(context), 0, device)
        self._stream, module = c_void_p(), c_void_p()
        self._work = c_void_p()
        self._call("cuStreamCreate", byref(self._stream), _NON_BLOCKING)
        self._call("cuModuleLoadData", byref(module), c_char_p(_WORK))
        self._call("cuModuleGetFunction", byref(self._work), module, b"work")
        self._marks = [c_void_p() for _ in range(_AHEAD)]
        for mark in self._marks:
            self._call("cuEventCreate", byref(mark), _WITHOUT_TIME)
        self._set = 0

    def memory_mib(self) -> tuple[int, int]:
        """Free and total memory, as CUDA reports it."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value // MIB, total.value // MIB

    def take(self, mib: int) -> int:
        """Allocate that much memory, which is kept from now on, and return its address; raises ``GpuError``."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(mib * MIB))
        return address.value

    def host_memory(self, mib: int) -> int:
        """The address of that much page-locked host memory, from which copies are direct."""
        address = c_void_p()
        self._call("cuMemHostAlloc", byref(address), c_size_t(mib * MIB), 0)
        return address.value or 0

    def copy_in(self, target: int, source: int, mib: int) -> None:
        """Copy from host memory, after the work that is queued in the stream."""
        self._call(
            "cuMemcpyHtoDAsync_v2", c_uint64(target), c_void_p(source), c_size_t(mib * MIB), self._stream
        )

    def compute(self, seconds: float) -> None:
        """Launch a kernel that takes this long, after the work that is queued in the stream."""
        nanoseconds = c_uint64(int(seconds * 1e9))
        parameters = (c_void_p * 1)(ctypes.addressof(nanoseconds))
        self._call("cuLaunchKernel", self._work, 1, 1, 1, 1, 1, 1, 0, self._stream, parameters, None)

    def keep_ahead(self) -> None:
        """Called after each piece of work: waits until the GPU is at most some pieces behind."""
        mark = self._marks[self._set % _AHEAD]
        if self._set >= _AHEAD:
            self._call("cuEventSynchronize", mark)
        self._call("cuEventRecord", mark, self._stream)
        self._set += 1

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._cuda, name)(*arguments))
        if code:
            raise GpuError(f"{name}: {self._named(code)}", code)

    def _named(self, code: int) -> str:
        name, meaning = c_char_p(), c_char_p()
        if self._cuda.cuGetErrorName(code, byref(name)) or self._cuda.cuGetErrorString(code, byref(meaning)):
            return f"error {code}"
        return f"{(name.value or b'').decode()} ({(meaning.value or b'').decode()})"


def place_to_work(holds_mib: int) -> Gpu | None:
    """The GPU, with that much of its memory allocated; prints the reason if none is usable."""
    try:
        gpu = Gpu()
        gpu.take(holds_mib)
    except GpuError as error:
        print(f"works without a GPU: {error}", flush=True)
        return None
    print(f"works on the GPU, and holds {holds_mib} MiB of it beside its context", flush=True)
    return gpu
