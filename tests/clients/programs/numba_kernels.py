"""numba-cuda: kernels that it compiles here with NVIDIA's libNVVM, on the driver's interface."""

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
from reporting import UNLIMITED, holds, main, reported


@cuda.jit
def _increment(numbers):  # Numba's own language
    at = cuda.grid(1)
    if at < numbers.size:
        numbers[at] += 1


def memory(limit: int) -> str:
    """Numba sees its share, and more is refused."""
    free, total = cuda.current_context().get_memory_info()
    got = reported(free, total, limit)
    try:
        got_bytes = cuda.device_array(limit or UNLIMITED, dtype=np.uint8).size
    except CudaAPIError as refusal:
        holds(bool(limit) and "OUT_OF_MEMORY" in str(refusal), f"with {got}: {refusal}")
        got_bytes = 0
    holds(got_bytes == (0 if limit else UNLIMITED), f"{got_bytes} bytes were allocated, with {got}")
    kernels()
    return f"{got}; {'more is refused, and it goes on' if limit else 'it gets what it requests'}"


def kernels() -> None:
    """A kernel is compiled, loaded and launched; copied data comes back."""
    numbers = np.arange(100_000)
    there = cuda.to_device(numbers)
    holds(bool((there.copy_to_host() == numbers).all()), "other bytes came back")
    for _ in range(100):
        _increment[1000, 100](there)
    cuda.synchronize()


if __name__ == "__main__":
    main({"memory": memory})
