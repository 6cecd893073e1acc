"""Faults of a node or its labels are reported once and clearly, and cleared by themselves when their cause
is gone.
"""

import json

import pytest

from gpushare.api import names
from gpushare_playground import gpus
from tests.e2e.cluster import Cluster, Node, driver, wait_for
from tests.e2e.product.product import AGENT, HELM_WAIT, INSTALLER, NAMESPACE, Product, gpu_pod
from tests.e2e.product.test_restarts import kill

CGPU, CORE_MEM = "cgpu-t4", "core-mem-v100x4"


@pytest.fixture
def node(cluster: Cluster, product: Product) -> Node:
    product.offers(CGPU, gpu_mem=15)
    return cluster.node(CGPU)


def test_a_driver_that_disappears_is_reported_and_used_again_once_it_is_back(
    product: Product, node: Node
) -> None:
    for _ in range(2):
        driver.remove(node)
        try:
            # Known devices stay in the kubelet's capacity; none can be allocated.
            product.offers(CGPU, parts=["allocatable"], gpu_mem=0)
            wait_for("an event that says so", lambda: has_event(product, CGPU, "driver"), timeout=120)
            ready = product.run("kubectl", "-n", NAMESPACE, "rollout", "status", AGENT, "--timeout=150s")
            assert ready.code == 0, "the agent's pod must not fall over for want of a driver"
        finally:
            driver.install(node)
        product.offers(CGPU, gpu_mem=15)
    product.apply(gpu_pod("after", 3, labels={"app": "after"}, node=CGPU))
    product.running("app=after")


def test_a_gpu_off_the_bus_gets_no_new_pods_and_a_pending_pod_runs_when_it_is_back(
    cluster: Cluster, product: Product, node: Node
) -> None:
    product.apply(gpu_pod("holds", 3, labels={"app": "holds"}, node=CGPU))
    product.running("app=holds")
    whole, broken = (gpus.preset(str(node.preset), node.name) for _ in range(2))
    (gpu,) = broken.gpus
    object.__setattr__(gpu, "fault", "lost")
    gpus.write(node.gpu_file, broken)
    try:
        wait_for("the GPU is reported as unhealthy", lambda: not described(product)["healthy"], timeout=120)
        wait_for("an event that says so", lambda: has_event(product, CGPU, "GPUUnhealthy"), timeout=120)
        wait_for("its pod hears of it", lambda: has_event(product, "holds", "PodGPUUnhealthy"), timeout=60)
        product.apply(gpu_pod("waits", 3, labels={"app": "waits"}, node=CGPU))
        wait_for("a reason", lambda: product.events("waits"), timeout=20)
        assert not product.node_of("waits")
        events, restarts = unhealthy_events(product), restarted(product)
        kill(cluster, CGPU, "node-agent")
        wait_for("another agent is ready", lambda: restarted(product) > restarts, timeout=90)
    finally:
        gpus.write(node.gpu_file, whole)
    product.running("app=waits", timeout_s=90)
    wait_for("its pod hears of that too", lambda: has_event(product, "holds", "PodGPURecovered"), timeout=60)
    assert unhealthy_events(product) == events, "the next agent repeated an event"


def test_an_unknown_label_value_is_reported_each_time_and_changes_nothing(product: Product) -> None:
    label = names.LABEL_PLACEMENT
    for times in (1, 2):
        product.kubectl("label", "node", CGPU, f"{label}=sideways", "--overwrite")
        wait_for(
            f"an event that names the value {times} times",
            lambda times=times: event_count(product, CGPU, "sideways") >= times,
            timeout=60,
        )
        product.kubectl("label", "node", CGPU, f"{label}-")
    product.apply(gpu_pod("still", 2, labels={"app": "still"}, node=CGPU))
    product.running("app=still")


def test_cdi_that_is_required_and_missing_is_reported_and_used_once_it_appears(
    product: Product, node: Node
) -> None:
    product.upgrade(INSTALLER, "--set", "nodeAgent.containerRuntime=cdi")
    before = event_count(product, CGPU, "CDI")
    try:
        node.run("mv", driver.cdi_file(node), "/root/nvidia.yaml")
        try:
            wait_for("an event that says so", lambda: event_count(product, CGPU, "CDI") > before, timeout=120)
            wait_for("no GPU is offered", lambda: not described(product)["healthy"], timeout=120)
            product.apply(gpu_pod("waits", 2, labels={"app": "waits"}, node=CGPU))
            wait_for("the pod says why it waits", lambda: product.events("waits"), timeout=120)
            assert not product.node_of("waits")
        finally:
            node.run("mv", "/root/nvidia.yaml", driver.cdi_file(node))
        product.running("app=waits", timeout_s=90)
        assert "GPU-" in product.environment("waits")[names.ENV_VISIBLE_DEVICES]
    finally:
        product.typed("helm", "rollback", INSTALLER, "-n", NAMESPACE, *HELM_WAIT)
        product.rolled_out()


def test_a_container_sees_its_own_gpu_alone(product: Product) -> None:
    product.offers(CORE_MEM, gpu_mem=60, gpu_core=400)
    # 12 of 15 each: two do not fit on one GPU.
    product.apply(*(gpu_pod(f"own-{n}", 12, 5, labels={"app": "own"}, node=CORE_MEM) for n in range(2)))
    pods = product.running("app=own", 2)
    devices = []
    for pod in pods:
        listed = product.kubectl("exec", pod["metadata"]["name"], "--", "ls", "/dev")
        devices.append([word for word in listed.split() if word.startswith("nvidia") and word[6:].isdigit()])
    assert sorted(map(len, devices)) == [1, 1]
    assert devices[0] != devices[1]


def has_event(product: Product, about: str, word: str) -> bool:
    """Whether an event about the node or pod, ours, contains the word."""
    return any(word in text for text in product.events(about, "default"))


def event_count(product: Product, node: str, word: str) -> int:
    """How often events about the node with that word occurred, by their series."""
    events = product.json("get", "events.v1.events.k8s.io", "-A")["items"]
    return sum(
        (event.get("series") or {}).get("count", 1)
        for event in events
        if event["regarding"].get("name") == node and word in event.get("note", "")
    )


def unhealthy_events(product: Product) -> list[str]:
    """Events about a GPU of the node, on it and on pods: name → how often it occurred."""
    events = product.json("get", "events.v1.events.k8s.io", "-A")["items"]
    return sorted(
        f"{event['metadata']['name']} {(event.get('series') or {}).get('count', 1)}"
        for event in events
        if event["reason"] in ("GPUUnhealthy", "PodGPUUnhealthy")
    )


def restarted(product: Product) -> int:
    """How often the agent on the node was restarted; -1 while it is not ready."""
    agents = product.pods("app.kubernetes.io/name=gpushare-device-plugin", NAMESPACE)
    (agent,) = [pod for pod in agents if pod["spec"]["nodeName"] == CGPU]
    (container,) = agent["status"]["containerStatuses"]
    return int(container["restartCount"]) if container["ready"] else -1


def described(product: Product) -> dict[str, bool]:
    """The first GPU of the node as its agent describes it."""
    text = product.json("get", "node", CGPU)["metadata"]["annotations"][names.ANN_DEVICES]
    gpu: dict[str, bool] = {"healthy": True, **json.loads(text)["gpus"][0]}
    return gpu
