"""Engines of other projects beside the product: a cluster of their own with both installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import THREE_NODES, Cluster, down, up
from tests.e2e.product.conftest import load_images
from tests.e2e.product.product import INSTALLER, MODES, SCHEDULER, Product


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs them all, on one cluster."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("engines"))


@pytest.fixture(scope="session")
def engines_cluster(states: Path, binaries: Path, k8s: str) -> Iterator[Cluster]:
    """Three nodes, one of each isolation mode, with the product's charts as they are."""
    if k8s == "1.28":
        pytest.skip(
            "these engines need a newer Kubernetes: on 1.28 the webhooks of Kueue 0.17 never answered"
        )
    state = states / "engines"
    cluster = up(state, binaries, k8s=k8s, nodes=THREE_NODES)
    try:
        yield cluster
    finally:
        down(state)


@pytest.fixture(scope="session")
def engines_product(engines_cluster: Cluster) -> Product:
    """The product on that cluster."""
    product = Product(engines_cluster.kubeconfig, engines_cluster.bin)
    load_images(engines_cluster)
    for node, mode in MODES.items():
        product.label(node, mode)
    for chart in (INSTALLER, SCHEDULER):
        product.install(chart)
    return product
