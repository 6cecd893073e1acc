"""``ResourcePolicy`` on the real cluster: the example of the guide, grown to 6 replicas and back to 2."""

from collections.abc import Iterator

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import EXAMPLES, Product

FIRST, SECOND, OTHER = "share-v100", "cgpu-t4", "core-mem-v100x4"
EXAMPLE = EXAMPLES / "12-resource-policy.yaml"
CHANGES = (f"{FIRST} paidtype=subscription", f"{SECOND} paidtype=pay-as-you-go")


@pytest.fixture
def labelled(product: Product) -> Iterator[Product]:
    """Two nodes with the labels of the example."""
    for change in CHANGES:
        product.kubectl("label", "node", *change.split(), "--overwrite")
    yield product
    product.kubectl("delete", "resourcepolicy", "--all")
    product.delete_all()
    for change in CHANGES:
        product.kubectl("label", "node", change.split()[0], "paidtype-")


def scaled(product: Product, replicas: int) -> dict[str, int]:
    """How many pods run on each node once there are that many."""
    product.kubectl("scale", "deployment/nginx", f"--replicas={replicas}")
    wait_for("others are gone", lambda: len(product.pods("app=nginx")) == replicas, timeout=90, every=0.2)
    found: dict[str, int] = {}
    for pod in product.running("app=nginx", replicas):
        node = pod["spec"]["nodeName"]
        found[node] = found.get(node, 0) + 1
    return found


def counted(product: Product) -> str:
    """The policy as people see it: how many pods each unit holds."""
    return product.kubectl("get", "resourcepolicy", "nginx")


def test_the_example_grows_over_its_units_in_order_and_shrinks_in_reverse(labelled: Product) -> None:
    policy = next(yaml.safe_load_all(EXAMPLE.read_text()))
    labelled.apply(policy)
    # The first pods would be bound without a policy that the scheduler has not read.
    wait_for("the policy is read", lambda: "0/2, 0/2, 0" in counted(labelled), timeout=60, every=0.2)
    labelled.kubectl("apply", "-f", str(EXAMPLE))
    assert scaled(labelled, 2) == {FIRST: 2}
    assert scaled(labelled, 4) == {FIRST: 2, SECOND: 2}
    assert scaled(labelled, 6) == {FIRST: 2, SECOND: 2, OTHER: 2}
    wait_for("the status counts", lambda: "2/2, 2/2, 2" in counted(labelled), timeout=30, every=0.2)
    costs = {pod["metadata"]["annotations"][names.ANN_DELETION_COST] for pod in labelled.pods("app=nginx")}
    assert costs == {"300", "200", "100"}
    assert scaled(labelled, 4) == {FIRST: 2, SECOND: 2}
    assert scaled(labelled, 2) == {FIRST: 2}
