"""Every component of a node and of the control plane is restarted under a stream of pods."""

import signal
from collections.abc import Callable, Sequence

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster, Node, wait_for
from tests.e2e.product.product import NAMESPACE, SCHEDULER, Product, gpu_pod
from tests.e2e.product.stream import APP, REPLICAS, settle, stream


def the_kubelet(cluster: Cluster, product: Product) -> None:
    cluster.restart("kubelet", "share-v100", signal=signal.SIGKILL)
    wait_for("the kubelet is back", lambda: _ready(cluster, "share-v100"), timeout=60)


def containerd(cluster: Cluster, product: Product) -> None:
    cluster.restart("containerd", "share-v100")
    wait_for("the node is Ready", lambda: _ready(cluster, "share-v100"), timeout=60)


def the_node_agent(cluster: Cluster, product: Product) -> None:
    for node in ("share-v100", "cgpu-t4"):
        kill(cluster, node, "node-agent")
    product.rolled_out()


def the_extender(cluster: Cluster, product: Product) -> None:
    kill(cluster, _node_of_leader(product), "scheduler", "--health-listen=0.0.0.0:9452")
    product.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{SCHEDULER}", "--timeout=60s")


def the_leading_scheduler_pod(cluster: Cluster, product: Product) -> None:
    leader = _leader(product)
    product.kubectl("-n", NAMESPACE, "delete", "pod", leader, "--wait=false")
    wait_for("another one leads", lambda: _leader(product) not in ("", leader), timeout=60, every=0.3)
    product.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{SCHEDULER}", "--timeout=60s")


def the_leader_without_a_word(cluster: Cluster, product: Product) -> None:
    """kube-scheduler and extender of the leader are killed at the same moment, during the stream's Bindings:
    the lease runs out.
    """
    held = _holder(product)
    node = _node_of_leader(product)
    kill(cluster, node, "kube-scheduler", "--secure-port=10259")
    kill(cluster, node, "scheduler", "--health-listen=0.0.0.0:9452")
    wait_for("another one leads", lambda: _holder(product) not in ("", held), timeout=60, every=0.3)
    product.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{SCHEDULER}", "--timeout=60s")


def the_api_server(cluster: Cluster, product: Product) -> None:
    cluster.restart("kube-apiserver", signal=signal.SIGKILL)
    cluster.wait_ready(timeout=60)


@pytest.mark.parametrize(
    "restart",
    [
        the_kubelet,
        containerd,
        the_node_agent,
        the_extender,
        the_leading_scheduler_pod,
        the_leader_without_a_word,
        the_api_server,
    ],
    ids=lambda function: function.__name__,
)
def test_no_share_is_allocated_twice_or_lost_over_a_restart(
    cluster: Cluster, churn: Product, restart: Callable[[Cluster, Product], None]
) -> None:
    with stream(cluster, APP) as account:
        wait_for("the stream runs", lambda: account.deleted >= 2, timeout=30)
        restart(cluster, churn)
        deleted = account.deleted
        wait_for("the stream goes on", lambda: account.deleted >= deleted + 4, timeout=90)
    settle(cluster, churn, APP, REPLICAS)


def test_a_drained_node_is_empty_and_gets_pods_again_when_it_is_back(
    cluster: Cluster, churn: Product
) -> None:
    node = "cgpu-t4"
    churn.kubectl(
        "drain",
        node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--force",
        "--grace-period=1",
        "--timeout=90s",
    )
    try:
        churn.running(f"app={APP}", 8)
        wait_for("no unit of it is held", lambda: churn.row(node)[2] == "0/15", timeout=20)

        def waiting() -> list[str]:
            pods = churn.pods(f"app={APP}")
            return [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]

        # 12 pods of 2 units do not fit into the other node's 16; a controller recreates the evicted ones.
        wait_for("the others are pending", lambda: len(waiting()) == REPLICAS - 8, timeout=30)
    finally:
        churn.kubectl("uncordon", node)
    settle(cluster, churn, APP, REPLICAS)
    assert churn.row(node)[2] != "0/15"


def test_a_pending_pod_is_retried_when_the_scheduler_missed_freed_memory(
    cluster: Cluster, product: Product
) -> None:
    node = "core-mem-v100x4"
    product.offers(node, gpu_mem=60, gpu_core=400)
    # The sum suffices for one more, so the extender refuses, not kube-scheduler itself.
    product.apply(*(gpu_pod(f"holds-{n}", 11, 5, labels={"app": "holds"}, node=node) for n in range(4)))
    product.running("app=holds", 4)
    leader = cluster.node(_node_of_leader(product))
    schedulers = found(leader, "kube-scheduler", "--secure-port=10259")
    product.apply(gpu_pod("waits", 11, 5, labels={"app": "waits"}, node=node))
    # Memory freed within five seconds of the refusal counts as missed: from here on no slow program is called.
    events_path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dwaits"
    wait_for("the refusal", lambda: cluster.get(events_path)["items"], timeout=20)
    # Stopped, it neither notices the freed memory nor retries; the extender does, and writes on the pending pod.
    leader.run("kill", "-STOP", *schedulers)
    try:
        cluster.delete("/api/v1/namespaces/default/pods/holds-1?gracePeriodSeconds=0")
        wait_for(
            "the extender asks for another try",
            lambda: names.ANN_RETRY in product.json("get", "pod", "waits")["metadata"].get("annotations", {}),
            timeout=15,
            every=0.2,
        )
    finally:
        leader.run("kill", "-CONT", *schedulers)
    product.running("app=waits", timeout_s=60)


def kill(cluster: Cluster, node: str, *words: str) -> None:
    """Kill the product's process on the node whose command line has all ``words``."""
    killed = _each(cluster.node(node), words, "kill -KILL ${p#/proc/} && echo killed")
    assert "killed" in killed, f"no process {' '.join(words)} on {node}"


def found(node: Node, *words: str) -> list[str]:
    """The product's processes on the node whose command line has all ``words``."""
    pids = _each(node, words, "echo ${p#/proc/}").split()
    assert pids, f"no process {' '.join(words)} on {node.name}"
    return pids


def _each(node: Node, words: Sequence[str], command: str) -> str:
    test = " && ".join(f"tr '\\0' '\\n' <$p/cmdline 2>/dev/null | grep -qxF -- '{word}'" for word in words)
    return node.run("sh", "-c", f"for p in /proc/[0-9]*; do if {test}; then {command}; fi; done").stdout


def _ready(cluster: Cluster, node: str) -> bool:
    return cluster.node_ready(node)


def _leader(product: Product) -> str:
    return _holder(product).partition("_")[0]


def _holder(product: Product) -> str:
    """The lease's holder: the pod's name and the random part of its process."""
    return product.json("-n", NAMESPACE, "get", "lease", SCHEDULER)["spec"].get("holderIdentity") or ""


def _node_of_leader(product: Product) -> str:
    node: str = product.json("-n", NAMESPACE, "get", "pod", _leader(product))["spec"]["nodeName"]
    return node
