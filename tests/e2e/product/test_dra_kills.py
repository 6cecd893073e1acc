"""``kill -9`` of the node agent or the kubelet while pods with claims start: nothing is lost, nothing exists
twice.

The moments: a stopped agent (SIGSTOP) leaves claims allocated and not prepared; a container that waits
before the one with the claim leaves them prepared and not in use.
"""

import signal

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster
from tests.e2e.product.claiming import (
    CLAIMS,
    NODE,
    Json,
    agent_process,
    agent_sockets,
    claim,
    files,
    held_by_tables,
    pod,
    until,
    wait_for_successor,
)
from tests.e2e.product.product import Product
from tests.e2e.product.test_isolation import ALLOCATES

PODS = ("one", "two", "three")
WAITS: Json = {
    "name": "waits",
    "image": "e2e.local/busybox:1",
    "imagePullPolicy": "IfNotPresent",
    "command": ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done"],
}
KILL = f"-{signal.SIGKILL.value}"


@pytest.mark.parametrize("victim", ["agent", "kubelet"])
def test_killed_between_allocation_and_prepare(claiming: Product, cluster: Cluster, victim: str) -> None:
    product, node = claiming, cluster.node(NODE)
    agent, sockets = agent_process(product, cluster), agent_sockets(cluster)
    node.run("kill", "-STOP", agent)
    try:
        start_pods(product)
        until("every claim is allocated", lambda: len(allocated(cluster)) == 4)
        until(
            "every pod has its node", lambda: all(product.node_of(name) == NODE for name in (*PODS, "pair"))
        )
        assert not files(cluster), "no claim is prepared"
        if victim == "agent":
            node.run("kill", KILL, agent)
        else:
            cluster.stop("kubelet", NODE, signal=signal.SIGKILL)
    finally:
        if victim == "kubelet":
            node.run("kill", "-CONT", agent)
            cluster.start("kubelet", NODE)
    if victim == "agent":
        wait_for_successor(cluster, sockets)
    all_is_there_once(product, cluster)


@pytest.mark.parametrize("victim", ["agent", "kubelet", "both"])
def test_killed_between_prepare_and_start(claiming: Product, cluster: Cluster, victim: str) -> None:
    product, node = claiming, cluster.node(NODE)
    agent, sockets = agent_process(product, cluster), agent_sockets(cluster)
    start_pods(product, WAITS)
    until("every pod waits", lambda: len(waiting(product)) == 4)
    assert len(prepared(cluster)) == 4, "its claim is prepared"
    if victim != "kubelet":
        node.run("kill", KILL, agent)
    if victim != "agent":
        cluster.restart("kubelet", NODE, signal=signal.SIGKILL)
    if victim != "kubelet":
        wait_for_successor(cluster, sockets)
    assert len(waiting(product)) == 4, "none has started"
    for name in (*PODS, "pair"):
        go = ("kubectl", "exec", name, "-c", "waits", "--", "touch", "/tmp/go")
        until(f"a kubelet that was killed knows pod {name} again", lambda go=go: product.run(*go).code == 0)
    all_is_there_once(product, cluster)


def start_pods(product: Product, *before: Json) -> None:
    """Three pods with shares of one GPU, and one with shares of two; ``before``: containers that finish
    before theirs start.
    """
    pods = [pod(name, name) for name in (*PODS, "pair")]
    for one in pods:
        one["spec"]["initContainers"] = list(before)
    product.apply(*(claim(name, "3Gi", 30) for name in PODS), claim("pair", "1Gi", 0, count=2), *pods)


def waiting(product: Product) -> list[Json]:
    """The pods that run the container before the one with the claim."""
    return [
        one
        for one in product.pods()
        for status in one["status"].get("initContainerStatuses", ())
        if "running" in status["state"]
    ]


def allocated(cluster: Cluster) -> dict[str, list[Json]]:
    """The allocation of each claim, by name."""
    return {
        one["metadata"]["name"]: one["status"]["allocation"]["devices"]["results"]
        for one in cluster.get(CLAIMS)["items"]
        if one.get("status", {}).get("allocation")
    }


def prepared(cluster: Cluster) -> list[str]:
    """The CDI files of claims."""
    return [one for one in files(cluster) if one.startswith("gpushare.dev-claim-")]


def all_is_there_once(product: Product, cluster: Cluster) -> None:
    """Every pod runs in its first container, with its claim's allocation and no more, and all tables agree;
    in the end everything is free.
    """
    before = allocated(cluster)
    for name in (*PODS, "pair"):
        product.running(f"app={name}")
    assert allocated(cluster) == before, "no claim is allocated again"
    uids = {one["metadata"]["uid"] for one in cluster.get(CLAIMS)["items"]}
    assert sorted(files(cluster)) == sorted([*uids, *(f"gpushare.dev-claim-{uid}.json" for uid in uids)])
    for name, results in before.items():
        environment = product.environment(name)
        gpus = environment[names.ENV_VISIBLE_DEVICES].split(",")
        assert sorted(gpu.lower() for gpu in gpus) == sorted(one["device"] for one in results)
        (status,) = product.get(f"/api/v1/namespaces/default/pods/{name}")["status"]["containerStatuses"]
        assert status["restartCount"] == 0
    # The limit holds: four times 512 MiB, not a fifth of 2 GiB.
    assert product.kubectl("exec", "two", "--", "python3", "-c", ALLOCATES).split()[0] == "3072"
    limits = product.kubectl("exec", "two", "--", "cat", "/run/gpushare/limits")
    assert "memory_bytes=3221225472 core_percent=30" in limits
    assert held_by_tables(product) == {
        (name, one["device"]): int(one["consumedCapacity"]["memory"].removesuffix("Gi")) * 1024
        for name, results in before.items()
        for one in results
    }
    product.delete_all()
    until("nothing is left of claims", lambda: not files(cluster))
    product.kubectl("delete", "resourceclaims", "--all", "--timeout=60s")
