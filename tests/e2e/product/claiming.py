"""A node in mode ``dra`` on the real cluster: its slice, claims and pods, claims' files on it, and its agent
killed.
"""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from gpushare.api import names
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import NAMESPACE, Product
from tests.patience import SLOWNESS

NODE = "core-mem-v100x4"
PAGE = "docs/guide/dra.md"
TYPED_BY = "tests/e2e/product/test_dra.py"
CUDA_SAMPLE = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
#: Timeout for a state, in seconds.
WITHIN_S = 120.0
Json = dict[str, Any]


def slices(product: Product) -> list[Json]:
    """The node's ResourceSlices of our driver."""
    found: list[Json] = product.get(
        f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3D{NODE}"
    )["items"]
    return [one for one in found if one["spec"]["driver"] == names.DRA_DRIVER]


def offered(product: Product) -> int:
    """How many GPUs the node's slice has."""
    return sum(len(one["spec"]["devices"]) for one in slices(product))


def until(what: str, reached: Any) -> None:
    wait_for(what, reached, timeout=WITHIN_S, every=0.5)


def typed(product: Product, command: str, folder: Path) -> str:
    """A command of the guide, in a folder with its manifest."""
    done = subprocess.run(
        ["bash", "-c", re.sub(r"\bNODE\b", NODE, command)],
        cwd=folder,
        env=dict(product.environment_of_commands),
        capture_output=True,
        text=True,
        timeout=300 * SLOWNESS,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def pod(name: str, claim: str) -> Json:
    """A pod that uses a claim."""
    container = {
        "name": "main",
        "image": CUDA_SAMPLE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "100000"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": [container],
        },
    }


def claim(name: str, memory: str, compute: int, count: int = 1) -> Json:
    """A claim for that much of each of ``count`` GPUs."""
    request = {
        "deviceClassName": names.DRA_DRIVER,
        "count": count,
        "capacity": {"requests": {"memory": memory, "compute": str(compute)}},
    }
    devices: Json = {"requests": [{"name": "gpu", "exactly": request}]}
    if count > 1:
        devices["constraints"] = [{"distinctAttribute": f"{names.DRA_DRIVER}/uuid"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": devices},
    }


def held_by_tables(product: Product) -> dict[tuple[str, str], int]:
    """MiB by claim and device, as ``kubectl inspect cgpu`` has them."""
    (node,) = json.loads(product.inspect(NODE, "-o", "json"))["nodes"]
    held = [
        (one["claim"], share["uuid"].lower(), share["MiB"]) for one in node["pods"] for share in one["shares"]
    ]
    assert len({(claim, uuid) for claim, uuid, _ in held}) == len(held), held
    return {(claim, uuid): mib for claim, uuid, mib in held}


def files(cluster: Cluster) -> list[str]:
    """The node's files for claims: CDI files and directories."""
    node = cluster.node(NODE)
    found = node.run("sh", "-c", "ls /var/run/cdi; ls /var/lib/gpushare/containers").stdout.split()
    uids = {one["metadata"]["uid"] for one in cluster.get(CLAIMS)["items"]}
    return [one for one in found if one.startswith("gpushare.dev-claim-") or one in uids]


def agent_process(product: Product, cluster: Cluster) -> str:
    """The ID, on its node, of the process of the node's agent."""
    (agent,) = (
        one
        for one in product.pods("app.kubernetes.io/name=gpushare-device-plugin", NAMESPACE)
        if one["spec"]["nodeName"] == NODE
    )
    identifier = agent["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    tasks = cluster.node(NODE).run("ctr", "-n", "k8s.io", "tasks", "ls").stdout
    return next(line.split()[1] for line in tasks.splitlines() if line.startswith(identifier))


def agent_sockets(cluster: Cluster) -> list[str]:
    """The sockets at which agents serve the node's kubelet."""
    found = cluster.node(NODE).run("ls", "/var/lib/kubelet/plugins_registry").stdout.split()
    return [one for one in found if one.startswith(names.DRA_DRIVER)]


def kill_agent(product: Product, cluster: Cluster) -> None:
    """``kill -9`` of the node's agent; returns once its successor alone serves the kubelet."""
    before = agent_sockets(cluster)
    cluster.node(NODE).run("kill", f"-{signal.SIGKILL.value}", agent_process(product, cluster))
    wait_for_successor(cluster, before)


def wait_for_successor(cluster: Cluster, before: list[str]) -> None:
    """Wait until an agent alone serves the kubelet, at none of the sockets ``before``."""

    def reached() -> bool:
        now = agent_sockets(cluster)
        return len(now) == 1 and now[0] not in before

    until("another agent's socket alone", reached)
