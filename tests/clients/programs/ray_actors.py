"""Ray: a worker finds the GPU of its share, and ``num_gpus`` divides that share among actors in Ray's own bookkeeping only."""

import ctypes
import os
import threading
import time

import ray
from reporting import MIB, holds, main

_OUT_OF_MEMORY = 2
"""The driver's status."""


@ray.remote
class _Actor:
    """Uses the GPU through the driver's interface."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        for status in (
            self._cuda.cuInit(0),
            self._cuda.cuDeviceGet(ctypes.byref(device), 0),
            self._cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
        ):
            holds(status == 0, f"the driver answers {status}")

    def visible(self) -> tuple[list[int], str]:
        """The GPUs that Ray assigned to it, as Ray reports them and as CUDA's variable has them."""
        return ray.get_gpu_ids(), os.environ["CUDA_VISIBLE_DEVICES"]

    def total(self) -> int:
        """Memory of the GPU as the driver reports it, in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        status = self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        holds(status == 0, f"the driver answers {status}")
        return total.value

    def allocate(self, size: int) -> int:
        """The driver's status for that many bytes."""
        address = ctypes.c_uint64()
        status: int = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        return status


def fractions(limit: int) -> str:
    """Three actors of 0.3 run, and leave Ray too little for a fourth. Each may use the whole share, and all together no more."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        found = ray.cluster_resources().get("GPU")
        holds(found == 1, f"Ray finds {found} GPUs")
        actors = [_Actor.options(num_cpus=0, num_gpus=0.3).remote() for _ in range(3)]
        visible = ray.get([actor.visible.remote() for actor in actors])
        holds(visible == [([0], "0")] * 3, f"actors of 0.3 have {visible}")
        until_s, look = time.monotonic() + 60, threading.Event()
        while ray.available_resources().get("GPU", 0) >= 0.3:  # reported a moment later
            holds(time.monotonic() < until_s, "Ray still offers GPUs that its actors have")
            look.wait(0.1)
        totals = ray.get([actor.total.remote() for actor in actors])
        holds(len(set(totals)) == 1 and (not limit or totals[0] == limit), f"actors see {totals} bytes")
        got = f"three actors of num_gpus=0.3 see {totals[0] // MIB} MiB each"
        if not limit:
            return got
        statuses = [ray.get(actor.allocate.remote(limit * 6 // 10)) for actor in actors[:2]]
        holds(statuses == [0, _OUT_OF_MEMORY], f"two that take 60 % of the share get {statuses}")
        return f"{got}; one takes 60 % of that, and another is refused the same"
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main({"fractions": fractions})
