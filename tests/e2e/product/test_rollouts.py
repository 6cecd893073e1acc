"""The product changes under running pods: its DaemonSet, its charts, forward and back."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.product.product import AGENT, HELM_WAIT, INSTALLER, NAMESPACE, SCHEDULER, Product, gpu_pod
from tests.e2e.product.stream import deployment, disagreements, settle, stream

APP = "steady"
#: The kubelet writes a node's status at least this often.
STATUS_UPDATE_S = 10.0


@pytest.fixture
def steady(cluster: Cluster, product: Product) -> Product:
    for node, mem in (("share-v100", 16), ("cgpu-t4", 15), ("core-mem-v100x4", 60)):
        product.offers(node, gpu_mem=mem)
    product.apply(deployment(APP, 8, 2))
    settle(cluster, product, APP, 8)
    return product


@contextmanager
def allocatable_watched(cluster: Cluster) -> Iterator[dict[str, float]]:
    """Node → seconds for which its allocatable GPU memory was 0 during the block."""
    at_zero_s: dict[str, float] = {node.name: 0.0 for node in cluster.nodes}
    stopped = threading.Event()
    every_s = 0.1

    def run() -> None:
        while not stopped.wait(every_s):
            for node in cluster.nodes:
                try:
                    allocatable = cluster.get(f"/api/v1/nodes/{node.name}")["status"]["allocatable"]
                except OSError:
                    continue
                if allocatable.get(names.GPU_MEM, "0") == "0":
                    at_zero_s[node.name] += every_s

    thread = threading.Thread(target=run, name="allocatable")
    thread.start()
    try:
        yield at_zero_s
    finally:
        stopped.set()
        thread.join(timeout=30)


def test_a_new_daemonset_takes_over_while_pods_run_and_start(cluster: Cluster, steady: Product) -> None:
    before = _lives(steady)
    steady.apply(deployment("passing", 3, 1))
    with allocatable_watched(cluster) as at_zero_s, stream(cluster, "passing"):
        steady.kubectl("-n", NAMESPACE, "rollout", "restart", AGENT)
        steady.kubectl("-n", NAMESPACE, "rollout", "status", AGENT, "--timeout=120s")
    settle(cluster, steady, "passing", 3)
    assert _lives(steady) == before
    assert all(seconds <= STATUS_UPDATE_S for seconds in at_zero_s.values()), at_zero_s
    assert not disagreements(cluster)


def test_charts_are_upgraded_and_rolled_back_under_running_pods(cluster: Cluster, steady: Product) -> None:
    before = _lives(steady)
    first = steady.json("-n", NAMESPACE, "get", AGENT)["spec"]["template"]
    steady.upgrade(INSTALLER, "--set", "nodeAgent.logLevel=debug")
    steady.upgrade(SCHEDULER, "--set", "extender.logLevel=debug")
    steady.apply(gpu_pod("between", 2, labels={"app": "between"}))
    steady.running("app=between")
    for chart in (INSTALLER, SCHEDULER):
        steady.typed("helm", "rollback", chart, "-n", NAMESPACE, *HELM_WAIT)
    assert steady.json("-n", NAMESPACE, "get", AGENT)["spec"]["template"] == first
    steady.apply(gpu_pod("after", 2, labels={"app": "after"}))
    steady.running("app=after")
    assert _lives(steady) == before
    wait_for("kubelets and records agree", lambda: not disagreements(cluster), timeout=20)


def test_invalid_values_change_nothing(installed: Product) -> None:
    for value, message in (
        ("gpuMemoryUnit=3GiB", "gpuMemoryUnit"),
        ("gpuMemoryUnits=1GiB", "gpuMemoryUnits"),
        ("nodeAgent.containerRuntime=docker", "containerRuntime"),
    ):
        ran = installed.run(
            "helm",
            "upgrade",
            INSTALLER,
            f"charts/{INSTALLER}",
            "-n",
            NAMESPACE,
            "--reuse-values",
            "--set",
            value,
        )
        assert ran.code == 1
        assert message in ran.text
        print(ran.text)
    history = json.loads(installed.typed("helm", "history", INSTALLER, "-n", NAMESPACE, "-o", "json"))
    assert history[-1]["status"] == "deployed"


def test_a_cluster_that_is_too_old_is_refused(installed: Product) -> None:
    for chart in (INSTALLER, SCHEDULER):
        ran = installed.run("helm", "template", chart, f"charts/{chart}", "--kube-version", "1.27.3")
        assert ran.code == 1
        assert "1.28" in ran.text


def _lives(product: Product) -> dict[str, tuple[str, int, str]]:
    """Pod → its UID, its container's restart count, the GPU of its record."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            pod["status"]["containerStatuses"][0]["restartCount"],
            json.loads(pod["metadata"]["annotations"][names.ANN_SHARE])["gpus"][0]["uuid"],
        )
        for pod in product.pods(f"app={APP}")
    }
