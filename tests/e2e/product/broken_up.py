"""A cluster whose GPUs have enough memory in total but not for a pod of 14: the case for defragmentation and
autoscaling.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod
from tests.e2e.product.stream import deployment

FOUR: Final = "core-mem-v100x4"
ROOMY: Final = "share-v100"
APPS: Final = [f"app-{number}" for number in range(4)]
WIDE: Final = 14


@contextmanager
def broken_up(product: Product, *, roomy: bool) -> Iterator[set[str]]:
    """A pod of 8 of a Deployment on each of four GPUs, 7 units free next to each; another node has 11 free
    if it is ``roomy``, else 7.

    Yields the UIDs of these pods.
    """
    product.offers(FOUR, gpu_mem=60)
    product.apply(
        gpu_pod("one", 4, labels={"app": "one"}, node=ROOMY),
        gpu_pod("two", 8, labels={"app": "two"}, node="cgpu-t4"),
    )
    product.running("app=one")
    product.running("app=two")
    product.kubectl("cordon", ROOMY)
    try:
        product.apply(*(deployment(name, 1, 8) for name in APPS))
        for name in APPS:
            product.running(f"app={name}")
        before = {
            pod["metadata"]["uid"]: pod["spec"]["nodeName"]
            for name in APPS
            for pod in product.pods(f"app={name}")
        }
        assert set(before.values()) == {FOUR}
        if roomy:
            product.kubectl("uncordon", ROOMY)
        product.apply(gpu_pod("wide", WIDE, labels={"app": "wide"}))
        wait_for(
            "no GPU holds it",
            lambda: any("no single GPU has 14 GiB free" in one for one in product.events("wide")),
            timeout=60,
        )
        yield set(before)
    finally:
        product.kubectl("uncordon", ROOMY)
