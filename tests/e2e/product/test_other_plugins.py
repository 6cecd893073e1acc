"""NVIDIA's device plugin next to ours, on the fake driver: its nodes are left alone, and a node that both
serve is reported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.programs import Program
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import MODES, Product

PLUGIN = Program(
    "nvidia-device-plugin",
    "nvidia-device-plugin",
    "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin",
    cgo=True,
)
#: Each GPU four times.
TIME_SLICING = b"""
version: v1
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
"""
GPU = "nvidia.com/gpu"
CONFIG = "/run/nvidia-device-plugin.yaml"
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def plugin() -> str:
    """The path of NVIDIA's program, which nodes see as well."""
    return str(built([PLUGIN], lambda line: print(line, flush=True))[PLUGIN.name])


@contextmanager
def serving(cluster: Cluster, name: str, *command: str, log: Path) -> Iterator[None]:
    """NVIDIA's plugin on a node; in the end its kubelet forgets it."""
    process = cluster.node(name).machine.spawn(list(command), log)
    try:
        until("its kubelet offers GPUs for it", lambda: capacity(cluster, name) > 0)
        yield
    finally:
        process.end(15, timeout=10.0)
        cluster.restart("kubelet", name)
        until("its kubelet has forgotten the plugin", lambda: capacity(cluster, name) == 0)


def log_of(cluster: Cluster, name: str) -> Path:
    """Where the plugin's output goes, next to that of the node's other programs: a path that the node sees, too."""
    return cluster.layout.log("nvidia-device-plugin", name)


def capacity(cluster: Cluster, name: str) -> int:
    return int(cluster.get(f"/api/v1/nodes/{name}")["status"]["capacity"].get(GPU, "0"))


def until(what: str, reached: object) -> None:
    assert callable(reached)
    wait_for(what, reached, timeout=WITHIN_S, every=0.5)


def test_nodes_of_nvidias_plugin_are_left_alone_and_shown_apart(
    product: Product, cluster: Cluster, plugin: str
) -> None:
    name = "cgpu-t4"
    product.label(name, None)
    try:
        product.offers(name, gpu_mem=0)
        cluster.node(name).run("sh", "-c", f"cat > {CONFIG}", input=TIME_SLICING)
        with serving(cluster, name, plugin, f"--config-file={CONFIG}", log=log_of(cluster, name)):
            until("each time slice is offered", lambda: capacity(cluster, name) == 4)
            table = product.inspect("--all")
            (row,) = (line.split() for line in table.splitlines() if line.startswith(name))
            assert row[2:4] == [f"{GPU}:", "4"], "it is in one table, and not in that of shares"
            assert names.ANN_DEVICES not in cluster.get(f"/api/v1/nodes/{name}")["metadata"]["annotations"]
    finally:
        product.label(name, MODES[name])
        product.offers(name, gpu_mem=15)


def test_a_node_that_both_serve_is_reported_and_no_gpu_is_allocated_twice(
    product: Product, cluster: Cluster, plugin: str
) -> None:
    name = "share-v100"
    with serving(cluster, name, plugin, log=log_of(cluster, name)):
        product.wait_for_event(name, "Another device plugin also offers this node's GPUs (nvidia.com/gpu: 1)")
        doctor = product.run("gpushare", "doctor").text
        assert f"node {name}: another device plugin also offers its GPUs ({GPU}: 1)" in doctor
        container = {
            "name": "main",
            "image": "e2e.local/busybox:1",
            "command": ["sleep", "100000"],
            "resources": {"limits": {GPU: "1"}},
        }
        product.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "whole", "namespace": "default", "labels": {"app": "whole"}},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
            }
        )
        product.running("app=whole")
        product.offers(name, gpu_mem=0, parts=("allocatable",))
        why = "allocated as nvidia.com/gpu to pod default/whole until it ends"
        # The agent describes the node concurrently with what the kubelet reports.
        until("the node says why", lambda: why in product.kubectl("get", "node", name, "-o", "yaml"))
        product.delete_all()
        product.offers(name, gpu_mem=16)
