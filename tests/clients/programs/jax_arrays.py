"""JAX: programs that XLA compiles here, with NVIDIA's ptxas."""

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import hardware_utils
from reporting import MIB, UNLIMITED, holds, main

# JAX checks for a GPU's device file before it calls the driver; a machine without a GPU has none.
hardware_utils._NVIDIA_GPU_DEVICES.append("/dev/null")


def memory(limit: int) -> str:
    """JAX reserves its usual three quarters, is refused more, and continues."""
    reserved = jax.devices()[0].memory_stats()["bytes_limit"]
    got = f"{jax.devices()[0].platform}, {reserved // MIB} MiB reserved"
    holds(not limit or abs(reserved - limit * 3 // 4) < 64 * MIB, got)
    requested = limit or UNLIMITED
    try:
        got_bytes = jnp.zeros(requested, dtype=jnp.uint8).block_until_ready().size
    except jax.errors.JaxRuntimeError as refusal:
        holds(bool(limit) and "RESOURCE_EXHAUSTED" in str(refusal), f"{got}: {refusal}")
        got_bytes = 0
    holds(got_bytes == (0 if limit else requested), f"{got_bytes} bytes were allocated, {got}")
    kernels()
    return f"{got}; {'more is refused, and it goes on' if limit else 'it gets what it requests'}"


def kernels() -> None:
    """Kernels are compiled, loaded and launched; copied data comes back."""
    numbers = np.arange(100_000, dtype=np.float32)
    there = jax.device_put(numbers)
    holds(bool((np.asarray(there) == numbers).all()), "other bytes came back")
    wave = jax.jit(lambda angles: jnp.sin(angles) * 2 + 1)
    for _ in range(100):
        there = wave(there)
    there.block_until_ready()


if __name__ == "__main__":
    main({"memory": memory})
