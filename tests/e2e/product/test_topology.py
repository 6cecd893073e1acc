"""Whole GPUs by count on the real cluster: kube-scheduler counts, the extender decides, the kubelet follows."""

import json
from collections.abc import Iterator

import pytest

from gpushare.api import names
from gpushare_playground import gpus
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import MODES, Product, gpu_pod

NODE = "core-mem-v100x4"
UUIDS = [gpu.uuid for gpu in gpus.preset("core-mem-4", NODE).gpus]


@pytest.fixture
def whole(product: Product) -> Iterator[Product]:
    """The product with a ``topology`` node of four GPUs, of which 0 and 3 have two NVLinks, as have 1 and 2."""
    product.label(NODE, "topology")
    try:
        wait_for(
            "the node gives whole GPUs",
            lambda: product.json("get", "node", NODE)["status"]["allocatable"].get(names.GPU_WHOLE) == "4",
            timeout=60.0,
        )
        yield product
    finally:
        product.delete_all()
        product.label(NODE, MODES[NODE])
        product.offers(NODE, gpu_mem=60, gpu_core=400)


def near(name: str, count: int) -> dict[str, object]:
    pod = gpu_pod(name, 1, labels={"app": name}, node=NODE)
    pod["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_WHOLE: count}}
    return pod


def test_pods_get_the_whole_gpus_nearest_to_each_other(whole: Product) -> None:
    for name, expected in (("first", {0, 3}), ("second", {1, 2})):
        whole.apply(near(name, 2))
        (pod,) = whole.running(f"app={name}")
        assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
        record = json.loads(pod["metadata"]["annotations"][names.ANN_SHARE])
        assert {share["index"] for share in record["gpus"]} == expected
        visible = whole.environment(name)[names.ENV_VISIBLE_DEVICES].split(",")
        assert {UUIDS.index(one) for one in visible} == expected
    whole.apply(near("waits", 1))
    wait_for(
        "a reason",
        lambda: any("needs a GPU completely free" in one for one in whole.events("waits")),
        timeout=20,
    )
    whole.kubectl("delete", "pod", "first", "--grace-period=1")
    whole.running("app=waits")
