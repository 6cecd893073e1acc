"""Kubernetes' own views: a condition on each node, an event on each pending pod."""

from typing import Any

from gpushare.api import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod

CGPU, CORE_MEM = "cgpu-t4", "core-mem-v100x4"


def condition(product: Product, node: str) -> dict[str, Any]:
    found = product.json("get", "node", node)["status"]["conditions"]
    return next((one for one in found if one["type"] == names.CONDITION_READY), {})


def test_each_sharing_node_has_a_condition_that_the_kubelet_preserves(product: Product) -> None:
    for node, mode, gpus in ((CGPU, "cgpu", 1), (CORE_MEM, "core_mem", 4)):
        found = wait_for("the condition", lambda node=node: condition(product, node), timeout=30)  # type: ignore[misc]
        assert (found["status"], found["lastTransitionTime"] != "") == ("True", True), found
        assert found["message"].startswith(
            f"mode {mode}, unit 1GiB, {gpus} of {gpus} GPUs in service, isolation "
        )
        # The kubelet keeps its own conditions next to it.
        kinds = {one["type"] for one in product.json("get", "node", node)["status"]["conditions"]}
        assert {"Ready", "MemoryPressure", names.CONDITION_READY} <= kinds
    assert names.CONDITION_READY in product.kubectl("describe", "node", CGPU)


def event_of(product: Product, pod: str) -> str:
    """The event on the pod, as people read it; empty if there is none."""
    lines = product.kubectl("describe", "pod", pod).splitlines()
    return next((line for line in lines if "GPUSchedulingPending" in line), "")


def test_a_pending_pod_has_its_reason_and_suggestion_in_one_line(product: Product) -> None:
    product.offers(CORE_MEM, gpu_mem=60, gpu_core=400)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}
    product.apply(
        gpu_pod("wide", 20, 5, labels={"app": "wide"}, node=CORE_MEM),
        gpu_pod("selects", 3, nodeSelector={"disk": "fast"}),
        gpu_pod("gated", 3, schedulingGates=[{"name": "example.com/later"}]),
        gpu_pod("lost", 3, schedulerName="absent"),
        gpu_pod("claims", 3, volumes=[claim]),
    )
    text = wait_for("the event", lambda: event_of(product, "wide"), timeout=60)
    assert "pending, requests aliyun.com/gpu-mem: 20" in text
    assert "the largest GPU has 15 GiB" in text
    assert "What would help: " in text

    # Pods that kube-scheduler never sends: by its own rules, by gates, for lack of a claim or of a scheduler.
    for pod, why, helps in (
        (
            "selects",
            "didn't match Pod's node affinity/selector",
            "a node that matches its nodeSelector, disk=fast: ",
        ),
        ("gated", "scheduling gates block it: example.com/later", "must remove them"),
        ("lost", "none seems to run for schedulerName absent", "schedulerName ack-co-scheduler"),
        (
            "claims",
            'persistentvolumeclaim "missing" not found',
            "a PersistentVolumeClaim missing in its namespace",
        ),
    ):
        text = wait_for(f"the event of {pod}", lambda pod=pod: event_of(product, pod), timeout=60)  # type: ignore[misc]
        assert "pending, requests aliyun.com/gpu-mem: 3" in text, text
        assert why in text, text
        assert helps in text.partition("What would help: ")[2], text
    product.delete_all()
