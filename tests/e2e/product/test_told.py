"""What people are told by Kubernetes' own means: a condition on each node, an event on each pod that waits."""

from typing import Any

from gpushare.model import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod

CGPU, CORE_MEM = "cgpu-t4", "core-mem-v100x4"


def condition(product: Product, node: str) -> dict[str, Any]:
    found = product.json("get", "node", node)["status"]["conditions"]
    return next((one for one in found if one["type"] == names.CONDITION_READY), {})


def test_each_node_that_shares_says_how_and_the_kubelet_leaves_that_alone(product: Product) -> None:
    for node, mode, gpus in ((CGPU, "cgpu", 1), (CORE_MEM, "core_mem", 4)):
        said = wait_for("the condition", lambda node=node: condition(product, node), timeout=30)  # type: ignore[misc]
        assert (said["status"], said["lastTransitionTime"] != "") == ("True", True), said
        assert said["message"].startswith(
            f"mode {mode}, unit 1GiB, {gpus} of {gpus} GPUs in service, isolation "
        )
        # The kubelet keeps its own conditions beside it.
        kinds = {one["type"] for one in product.json("get", "node", node)["status"]["conditions"]}
        assert {"Ready", "MemoryPressure", names.CONDITION_READY} <= kinds
    assert names.CONDITION_READY in product.kubectl("describe", "node", CGPU)


def test_a_pod_that_waits_says_why_and_what_would_help_in_one_line(product: Product) -> None:
    product.offers(CORE_MEM, gpu_mem=60, gpu_core=400)
    product.apply(gpu_pod("wide", 20, 5, labels={"app": "wide"}, node=CORE_MEM))
    text = wait_for(
        "the event",
        lambda: next(
            (
                line
                for line in product.kubectl("describe", "pod", "wide").splitlines()
                if "GPUShareWaiting" in line
            ),
            "",
        ),
        timeout=60,
    )
    assert "waits for aliyun.com/gpu-mem: 20" in text
    assert "the largest GPU has 15 GiB" in text
    assert "What would help: " in text
