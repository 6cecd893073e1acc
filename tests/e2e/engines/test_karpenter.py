"""Karpenter creates nodes from zero for every way of requesting a share, from the page's NodePool and our NodeOverlay."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from tests.docs.assigned import commands_typed_by
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.kwok import node_object
from tests.e2e.engines import karpenter
from tests.e2e.engines.ways import MIB, POOLS, WAYS, Pool, Way, pods
from tests.e2e.product.product import CHECKOUT, INSTALLER, Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
PAGE = "docs/guide/autoscaling.md"
POOL = "karpenter.sh/nodepool"


@pytest.fixture(scope="module")
def log(
    engines_cluster: Cluster, engines_product: Product, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Karpenter's log; it runs with all pools."""
    product = engines_product
    product.upgrade(INSTALLER, "--set", f"admission.referenceGpuMemoryMiB={MIB}")
    # Simulated nodes have no node agent, so the test writes what is otherwise an agent's; the last upgrade recreates the rule.
    product.kubectl("delete", "validatingadmissionpolicybinding", "gpushare-records-nodes")
    with karpenter.running(engines_cluster, product, tmp_path_factory.mktemp("karpenter")) as written:
        for pool in POOLS:
            product.apply(node_pool(pool))
            for command in commands_typed_by(__file__, "docs/guide/autoscaling.md"):
                product.typed("bash", "-c", of_pool(command.text, pool))
        for pool in POOLS:
            ready = ("wait", "--for=condition=Ready", "--timeout=60s")
            product.kubectl(*ready, f"nodepools/{pool.name}", f"nodeoverlays/{pool.name}")
        yield written
    product.upgrade(INSTALLER, "--reset-values")


@pytest.fixture
def product(engines_product: Product, log: Path) -> Iterator[Product]:
    yield engines_product
    engines_product.delete_all()
    engines_product.kubectl("delete", "nodeclaims", "--all", "--timeout=90s")


def node_pool(pool: Pool) -> Json:
    """The page's NodePool, with the node class and the instance type that exist here."""
    (text,) = re.findall(
        r"```yaml\n(apiVersion: karpenter.sh/v1\n.*?)```", (CHECKOUT / PAGE).read_text(), re.DOTALL
    )
    found: Json = yaml.safe_load(text)
    found["metadata"]["name"] = pool.name
    template = found["spec"]["template"]
    template["metadata"]["labels"][names.LABEL_MODE] = pool.mode
    template["spec"]["nodeClassRef"] = karpenter.NODE_CLASS
    (instance_types,) = template["spec"]["requirements"]
    instance_types["values"] = [karpenter.INSTANCE_TYPE]
    return found


def of_pool(command: str, pool: Pool) -> str:
    """The page's command for another pool."""
    for option, value in (("gpus", pool.gpus), ("mode", pool.mode), ("group", pool.name)):
        command, count = re.subn(rf"(--{option}) \S+", rf"\1 {value}", command)
        assert count == 1, f"{PAGE}: {command}: no --{option}"
    return command


def nodes(product: Product, pool: Pool) -> list[str]:
    """The names of the nodes that Karpenter has created for a pool."""
    items = product.get(f"/api/v1/nodes?labelSelector={POOL}%3D{pool.name}")["items"]
    return [item["metadata"]["name"] for item in items]


def claims(product: Product, pool: Pool) -> list[Json]:
    """Its NodeClaims."""
    items: list[Json] = product.get(f"/apis/karpenter.sh/v1/nodeclaims?labelSelector={POOL}%3D{pool.name}")[
        "items"
    ]
    return items


def created(product: Product, pool: Pool, count: int) -> list[str]:
    """Wait until a pool has ``count`` nodes."""

    def reached() -> list[str]:
        found = nodes(product, pool)
        return found if len(found) == count else []

    return wait_for(f"{count} nodes of {pool.name}", reached, timeout=90, every=0.3)


def described(product: Product, node: str, pool: Pool) -> None:
    """Describe a simulated node as its node agent and its kubelet would."""
    made = node_object(node, gpus=pool.gpus, mib=MIB, mode=pool.mode)
    annotations = {names.ANN_DEVICES: made["metadata"]["annotations"][names.ANN_DEVICES]}
    patch = {"metadata": {"annotations": annotations, "labels": {names.LABEL_DESCRIBED: "true"}}}
    product.kubectl("patch", "node", node, "-p", json.dumps(patch))
    ours = {name: amount for name, amount in made["status"]["capacity"].items() if "aliyun.com/" in name}
    status = {"status": {"capacity": ours, "allocatable": ours}}
    product.kubectl("patch", "node", node, "--subresource=status", "-p", json.dumps(status))


def initialized(product: Product, pool: Pool) -> None:
    """Wait until Karpenter counts with what the nodes themselves offer."""

    def reached() -> bool:
        return all(
            any(
                one["type"] == "Initialized" and one["status"] == "True"
                for one in claim["status"]["conditions"]
            )
            for claim in claims(product, pool)
        )

    wait_for(f"the nodes of {pool.name} are initialized", reached, timeout=60, every=0.3)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.id)
def test_nodes_are_created_from_zero_for(product: Product, way: Way) -> None:
    assert not nodes(product, way.pool)
    wanted = 3 if way.alone else 2
    product.apply(*pods(way, 3, POOL))

    for node in created(product, way.pool, wanted):
        described(product, node, way.pool)
    running = product.running(f"app={way.id}", 3)
    initialized(product, way.pool)
    assert {pod["spec"]["nodeName"] for pod in running} == set(nodes(product, way.pool))
    assert len(claims(product, way.pool)) == wanted
