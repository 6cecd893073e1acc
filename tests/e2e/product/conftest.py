"""The product on the cluster, installed once; and the order in which it is tried."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.cluster import THREE_NODES, Cluster, down, up
from tests.e2e.product.left_on_nodes import Traces
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import INSTALLER, MODES, NAMESPACE, SCHEDULER, Product
from tests.e2e.product.stream import APP, ON_TWO_NODES, REPLICAS, deployment

IMAGES = Path(__file__).parents[3] / "build" / "images"

#: What is left behind is looked at long after it was removed; what tests the rights needs all others to have run.
ORDER = {"test_departure.py": 0, "test_rights.py": 2, "test_removal.py": 3}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort modules by ``ORDER``, wherever they are; the others between."""
    items.sort(key=lambda item: ORDER.get(item.path.name, 1))


@dataclass(frozen=True, slots=True)
class Departure:
    """A cluster of one node on which the product comes and goes; ``before`` is what it held before."""

    cluster: Cluster
    product: Product
    node: str
    before: Traces
    pages: Pages


@pytest.fixture(scope="session")
def departure(
    states: Path, binaries: Path, k8s: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Departure]:
    """A cluster of its own, with images, where nothing was ever installed."""
    (node,) = [node for node in THREE_NODES if node.name == "cgpu-t4"]
    cluster = up(states / "departure", binaries, k8s=k8s, nodes=[replace(node, index=0)])
    try:
        load_images(cluster)
        product = Product(cluster.kubeconfig, cluster.bin)
        pages = Pages(product, tmp_path_factory.mktemp("pages"), cluster.state, node.name)
        yield Departure(cluster, product, node.name, Traces.of(cluster), pages)
    finally:
        down(cluster.state)


def load_images(cluster: Cluster) -> None:
    """Import what ``make images`` has written."""
    # Each has a note of what it is beside it; other files of the folder are not for clusters.
    notes = sorted(path for path in IMAGES.glob("*.json") if ".spdx" not in path.name)
    archives = [note.with_suffix(".tar") for note in notes if note.with_suffix(".tar").exists()]
    assert archives, "no images in build/images; run: make images"
    for archive in archives:
        cluster.load_image(archive)


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Product:
    """Both charts from the checkout, every node labelled with its mode, and images on every node."""
    product = Product(cluster.kubeconfig, cluster.bin)
    load_images(cluster)
    for node, mode in MODES.items():
        product.label(node, mode)
    there = json.loads(product.typed("helm", "list", "-n", NAMESPACE, "-o", "json"))
    for chart in (INSTALLER, SCHEDULER):
        # A cluster that is reused between runs has them already.
        if chart not in [release["name"] for release in there]:
            print(product.install(chart))
    return product


@pytest.fixture
def product(installed: Product) -> Iterator[Product]:
    """The product, with no pods of other tests; those of this test are removed after it."""
    yield installed
    installed.delete_all()


@pytest.fixture
def churn(product: Product) -> Product:
    """The product, with pods that a stream can delete one by one."""
    product.apply(deployment(APP, REPLICAS, 2, affinity=ON_TWO_NODES))
    product.running(f"app={APP}", REPLICAS)
    return product
