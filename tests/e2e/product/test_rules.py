"""The rules on requests and on sharing, as the real API server and the real kube-scheduler apply them (spec §2)."""

import json

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Json, Product, Ran, gpu_pod
from tests.e2e.product.stream import settle

CGPU, CORE_MEM = "cgpu-t4", "core-mem-v100x4"
#: Far below the five minutes after which kube-scheduler tries every pod by itself.
AT_ONCE_S = 60.0


def test_a_pod_without_a_scheduler_name_goes_to_ours(product: Product) -> None:
    product.apply(gpu_pod("nameless", 2, labels={"app": "nameless"}))
    (pod,) = product.running("app=nameless")
    assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
    assert names.ANN_SHARE in pod["metadata"]["annotations"]


def test_pods_without_gpus_are_left_to_the_default_scheduler(product: Product) -> None:
    pod = gpu_pod("plain", 1, labels={"app": "plain"})
    del pod["spec"]["containers"][0]["resources"]
    product.apply(pod)
    (plain,) = product.running("app=plain")
    assert plain["spec"]["schedulerName"] == "default-scheduler"


def unschedulable(product: Product, pod: str) -> Json:
    """kube-scheduler's message in the pod's condition; empty if there is none."""
    conditions = product.json("get", "pod", pod)["status"].get("conditions") or ()
    return next((one for one in conditions if one.get("reason") == "Unschedulable"), {})


def test_two_gpus_with_4_free_each_do_not_fit_8_and_the_event_reports_it(
    cluster: Cluster, product: Product
) -> None:
    product.offers(CORE_MEM, gpu_mem=60, gpu_core=400)
    # 15 on each GPU: 11 allocated on each of the four leaves four times 4.
    product.apply(*(gpu_pod(f"eleven-{n}", 11, 5, labels={"app": "eleven"}, node=CORE_MEM) for n in range(4)))
    pods = settle(cluster, product, "eleven", 4)
    assert {
        json.loads(pod["metadata"]["annotations"][names.ANN_SHARE])["gpus"][0]["index"] for pod in pods
    } == {
        0,
        1,
        2,
        3,
    }
    product.apply(gpu_pod("eight", 8, 5, labels={"app": "eight"}, node=CORE_MEM))
    wait_for(
        "the event that says why",
        lambda: any("no single GPU has 8 GiB free" in text for text in product.events("eight")),
        timeout=20,
    )
    # The condition is written after the event.
    condition = wait_for("the condition", lambda: unschedulable(product, "eight"), timeout=20)
    assert "largest free: 4 GiB" in condition["message"]
    report = product.inspect("--fragmentation")
    assert "eight" in report
    assert (
        "0 would fit after moves, 0 are blocked by something other than capacity, 1 would not fit" in report
    )
    # As soon as one of them ends, the pending one runs.
    product.kubectl("delete", "pod", "eleven-2", "--grace-period=1")
    (eight,) = product.running("app=eight", timeout_s=AT_ONCE_S)
    assert eight["spec"]["nodeName"] == CORE_MEM
    # A higher-priority one does not wait: by the node's sum it would fit, so kube-scheduler evicts
    # nothing; we do.
    product.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "important"},
            "value": 1000,
        }
    )
    urgent = gpu_pod("urgent", 8, 5, labels={"app": "urgent"}, node=CORE_MEM, priorityClassName="important")
    product.admitted(urgent)
    product.apply(urgent)
    product.running("app=urgent", timeout_s=AT_ONCE_S)
    # Of otherwise equal pods the newest loses least.
    product.wait_for_event("eight", "evicted for pod default/urgent (priority 1000)")
    assert len(product.running("app=eleven", 3)) == 3
    # Its capacity is allocated as soon as its containers have ended, and it is deleted a moment later.
    wait_for("it is gone", lambda: not product.pods("app=eight"), timeout=30)
    product.kubectl("delete", "priorityclass", "important")


def test_a_pod_that_is_resized_in_place_keeps_its_share(product: Product, k8s: str) -> None:
    if k8s == "1.28":
        pytest.skip("Kubernetes 1.28 resizes no pods in place")
    pod = gpu_pod("resized", 2, labels={"app": "resized"})
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "32Mi"
    product.apply(pod)
    (before,) = product.running("app=resized")

    def resize(**limits: object) -> Ran:
        patch = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
        return product.run(
            "kubectl", "patch", "pod", "resized", "--subresource=resize", "-p", json.dumps(patch)
        )

    ran = resize(**{names.GPU_MEM: 4})
    assert ran.code == 1, "Kubernetes resizes processors and memory alone"
    ran = resize(memory="64Mi")
    assert ran.code == 0, ran.text
    (after,) = product.running("app=resized")
    assert after["spec"]["containers"][0]["resources"]["limits"]["memory"] == "64Mi"
    for key in (names.ANN_SHARE, names.ANN_ALLOCATION):
        assert after["metadata"]["annotations"][key] == before["metadata"]["annotations"][key]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_allocation_records_are_written_by_our_components_alone(product: Product) -> None:
    product.apply(gpu_pod("held", 3, labels={"app": "held"}))
    product.running("app=held")
    for key in (names.ANN_SHARE, names.ANN_ALLOCATION, names.ANN_MEM_INDEX):
        ran = product.run("kubectl", "annotate", "pod", "held", f"{key}-")
        assert ran.code == 1, key
        assert "denied" in ran.text
    ran = product.run("kubectl", "annotate", "node", CGPU, f"{names.ANN_DEVICES}=nonsense", "--overwrite")
    assert ran.code == 1
    product.kubectl("annotate", "pod", "held", "note=mine")
