"""cluster-autoscaler creates nodes from zero for every way of requesting a share, and removes them afterwards."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.kwok import node_object
from tests.e2e.engines import cluster_autoscaler
from tests.e2e.engines.cluster_autoscaler import GROUP
from tests.e2e.engines.ways import MIB, POOLS, WAYS, Pool, Way, pods
from tests.e2e.product.product import INSTALLER, Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]


@pytest.fixture(scope="module")
def program() -> Path:
    named = os.environ.get(cluster_autoscaler.VARIABLE)
    if not named:
        pytest.skip(f"${cluster_autoscaler.VARIABLE} names no program: {cluster_autoscaler.__doc__}")
    return Path(named)


@pytest.fixture(scope="module")
def product(
    program: Path,
    engines_cluster: Cluster,
    engines_product: Product,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Product]:
    """The product beside cluster-autoscaler, which has a group for each pool."""
    product = engines_product
    product.upgrade(INSTALLER, "--set", f"admission.referenceGpuMemoryMiB={MIB}")
    # Simulated nodes have no node agent, so their descriptions come with them; the last upgrade recreates the rule.
    product.kubectl("delete", "validatingadmissionpolicybinding", "gpushare-records-nodes")
    templates = [template(product, pool) for pool in POOLS]
    folder = tmp_path_factory.mktemp("cluster-autoscaler")
    with cluster_autoscaler.running(program, engines_cluster, product, templates, folder):
        yield product
    product.upgrade(INSTALLER, "--reset-values")


def template(product: Product, pool: Pool) -> Json:
    """A node of the pool's group, with what ``gpushare node-template`` declares."""
    options = ("--gpus", str(pool.gpus), "--gpu-memory-mib", str(MIB), "--mode", pool.mode, "-o", "capacity")
    declared = json.loads(product.typed("gpushare", "node-template", *options))
    node = node_object(f"template-{pool.name}", gpus=pool.gpus, mib=MIB, mode=pool.mode)
    node["metadata"]["labels"] |= {GROUP: pool.name, **declared["labels"]}
    capacity = {name: amount for name, amount in node["status"]["capacity"].items() if "aliyun.com/" in name}
    assert declared["capacity"] == capacity
    return node


def nodes(product: Product, pool: Pool) -> list[str]:
    """The names of the nodes of the pool's group."""
    items = product.get(f"/api/v1/nodes?labelSelector={GROUP}%3D{pool.name}")["items"]
    return [item["metadata"]["name"] for item in items]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.id)
def test_nodes_are_created_from_zero_and_removed_for(product: Product, way: Way) -> None:
    assert not nodes(product, way.pool)
    wanted = 3 if way.alone else 2
    try:
        product.apply(*pods(way, 3, GROUP))
        running = product.running(f"app={way.id}", 3)
        used = {pod["spec"]["nodeName"] for pod in running}
        assert used == set(nodes(product, way.pool))
        assert len(used) == wanted
    finally:
        product.delete_all()
    wait_for(f"the nodes of {way.pool.name} are removed", lambda: not nodes(product, way.pool), timeout=120)
