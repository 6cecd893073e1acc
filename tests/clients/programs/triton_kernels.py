"""Triton: kernels that it compiles here, with its own ptxas and a launcher by the machine's compiler."""

import torch
import triton
import triton.language as tl
from reporting import main


@triton.jit
def _double(numbers, doubled, BLOCK: tl.constexpr):  # noqa: N803  # Triton's own language
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(doubled + at, tl.load(numbers + at) * 2)


def kernels(_limit: int) -> str:
    """A kernel is compiled, loaded and launched."""
    numbers = torch.ones(1 << 20, device="cuda")
    doubled = torch.empty_like(numbers)
    for _ in range(100):
        _double[(1024,)](numbers, doubled, BLOCK=1024)
    torch.cuda.synchronize()
    return "100 launches"


if __name__ == "__main__":
    main({"kernels": kernels})
