"""The product on the cluster, installed once; and which tests share a cluster."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from documentation.blocks import read_page
from tests.docs.assigned import commands_typed_by
from tests.e2e.cluster import THREE_NODES, Cluster, down, up
from tests.e2e.product.claiming import NODE, PAGE, TYPED_BY, offered, typed, until
from tests.e2e.product.left_on_nodes import Traces
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import CHECKOUT, INSTALLER, MODES, NAMESPACE, SCHEDULER, Product
from tests.e2e.product.stream import APP, ON_TWO_NODES, REPLICAS, deployment

IMAGES = Path(__file__).parents[3] / "build" / "images"

#: Files that need their own cluster, or one on which they install the product with other settings: run
#: concurrently with the others.
CLUSTERS = {
    "departure": {"test_departure.py", "test_removal.py"},
    "upgrades": {"test_upgrades.py"},
    "hosts": {"test_hosts.py"},
    "kernel": {"test_kernel.py"},
    "mig": {"test_mig.py"},
    "unsuitable": {"test_unsuitable_nodes.py"},
    "changed": {
        f"test_{name}.py"
        for name in ("autoscaling", "clocks", "dashboard", "defragmentation", "isolation", "rollouts")
    },
}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each file's tests to the worker that has its cluster; the test of permissions must run after all
    others.
    """
    items.sort(key=lambda item: item.path.name == "test_rights.py")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            cluster = next((one for one, files in CLUSTERS.items() if item.path.name in files), "product")
            item.add_marker(pytest.mark.xdist_group(cluster))


@dataclass(frozen=True, slots=True)
class Departure:
    """A cluster of one node on which the product is installed and removed; ``before`` is its state before."""

    cluster: Cluster
    product: Product
    node: str
    before: Traces
    pages: Pages
    serves_claims: bool
    """Whether its Kubernetes has what mode ``dra`` needs."""


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
        yield Departure(cluster, product, node.name, Traces.of(cluster), pages, serves_claims(k8s))
    finally:
        down(cluster.state)


def load_images(cluster: Cluster, names: Collection[str] = ()) -> None:
    """Import what ``make images`` has written; if there are ``names``, only these."""
    # Each has a metadata file next to it; other files of the folder are not for clusters.
    notes = sorted(path for path in IMAGES.glob("*.json") if ".spdx" not in path.name)
    archives = [note.with_suffix(".tar") for note in notes if note.with_suffix(".tar").exists()]
    archives = [archive for archive in archives if not names or archive.stem in names]
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
    """The product, without pods of other tests; those of this test are removed after it."""
    yield installed
    installed.delete_all()


def serves_claims(k8s: str) -> bool:
    """Whether a version of Kubernetes shares devices by capacity."""
    return tuple(map(int, k8s.split(".")[:2])) >= (1, 36)


@pytest.fixture
def claiming(product: Product, tmp_path: Path, k8s: str) -> Iterator[Product]:
    """The product with a ``dra`` node, labelled as in the guide."""
    if not serves_claims(k8s):
        pytest.skip("devices are shared by capacity from Kubernetes 1.36 on")
    for block in read_page(PAGE, (CHECKOUT / PAGE).read_text()).blocks:
        if block.file:
            (tmp_path / block.file).write_text("\n".join(block.content) + "\n")
    label, *_ = commands_typed_by(str(CHECKOUT / TYPED_BY), PAGE)
    typed(product, label.text, tmp_path)
    try:
        until("the node's slice", lambda: offered(product) == 4)
        yield product
    finally:
        product.delete_all()
        product.kubectl("delete", "resourceclaimtemplates,resourceclaims", "--all", "--timeout=60s")
        product.label(NODE, MODES[NODE])
        product.offers(NODE, gpu_mem=60, gpu_core=400)


@pytest.fixture(scope="module")
def churn(installed: Product) -> Iterator[Product]:
    """The product, with pods that a stream can delete one by one."""
    installed.apply(deployment(APP, REPLICAS, 2, affinity=ON_TWO_NODES))
    installed.running(f"app={APP}", REPLICAS)
    yield installed
    installed.delete_all()
