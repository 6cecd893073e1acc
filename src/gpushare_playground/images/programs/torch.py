"""``torch`` if PyTorch is not installed: only memory of a GPU, allocated by the driver's own calls.

Names, units (bytes) and errors are PyTorch's, so that a program that only allocates memory runs on both.
"""

from typing import Any, Final

from gpushare_playground.images.programs.gpu import MIB, OUT_OF_MEMORY, Gpu, GpuError

uint8: Final = "torch.uint8"


class OutOfMemoryError(RuntimeError):
    """The GPU, or the container's share of it, has not enough free memory."""


class Tensor:
    """Memory of the GPU that is held until the process ends."""

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size

    def data_ptr(self) -> int:
        """Its address on the GPU."""
        return self._address

    def numel(self) -> int:
        """The number of its elements, of a byte each."""
        return self._size


class _Cuda:
    """``torch.cuda``: the context is created at the first call, as by PyTorch."""

    OutOfMemoryError = OutOfMemoryError

    def __init__(self) -> None:
        self._gpu: Gpu | None = None

    def gpu(self) -> Gpu:
        """The first GPU that this process sees."""
        try:
            self._gpu = self._gpu or Gpu()
        except GpuError as error:
            raise RuntimeError(f"No CUDA GPUs are available: {error}") from None
        return self._gpu

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total memory in bytes."""
        free_mib, total_mib = self.gpu().memory_mib()
        return free_mib * MIB, total_mib * MIB


cuda: Final = _Cuda()


def empty(size: int, *, dtype: str, device: str) -> Tensor:
    """``size`` bytes of the GPU; raises ``OutOfMemoryError`` if it is full, ``NotImplementedError`` for anything but bytes on a GPU."""
    if dtype != uint8 or device != "cuda":
        raise NotImplementedError(
            f"{dtype} on {device}: this stand-in for PyTorch has torch.uint8 on cuda alone"
        )
    gpu = cuda.gpu()
    mib = -(-size // MIB)
    try:
        return Tensor(gpu.take(mib), size)
    except GpuError as error:
        if error.code != OUT_OF_MEMORY:
            raise RuntimeError(f"CUDA error: {error}") from None
        free_mib, total_mib = gpu.memory_mib()
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {mib} MiB. GPU 0 has a total capacity of {total_mib} MiB of which {free_mib} MiB is free."
        ) from None


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"torch.{name}: this is a stand-in for PyTorch that takes memory of a GPU; of PyTorch it has empty, uint8, cuda.mem_get_info and cuda.OutOfMemoryError"
    )
