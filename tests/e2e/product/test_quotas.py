"""An elastic quota on the real cluster: held to its max, told in its status, and gone with its tree."""

from typing import Any

from gpushare.model import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod

TREE = "elasticquotatree"


def tree(most: int) -> dict[str, Any]:
    amounts = {names.GPU_MEM: most}
    root = {"name": "root", "namespaces": ["default"], "min": amounts, "max": amounts}
    return {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": TREE, "namespace": names.QUOTA_NAMESPACE},
        "spec": {"root": root},
    }


def status(product: Product) -> dict[str, Any]:
    found = product.json("-n", names.QUOTA_NAMESPACE, "get", names.QUOTA_PLURAL, TREE)
    return dict(found.get("status") or {})


def used(product: Product) -> str:
    quotas = status(product).get("quotas") or [{}]
    return str((quotas[0].get("used") or {}).get(names.GPU_MEM))


def test_a_namespace_stops_at_its_max_and_the_status_says_what_it_holds(product: Product) -> None:
    product.apply(tree(8))
    try:
        wait_for("the tree is in force", lambda: status(product).get("state") == "InForce", timeout=60)
        product.apply(gpu_pod("first", 6, labels={"app": "first"}))
        product.running("app=first")
        wait_for("its status counts the pod", lambda: used(product) == "6", timeout=60)
        product.apply(gpu_pod("second", 6, labels={"app": "second"}))
        why = f"elastic quota root: 6 of 8 {names.GPU_MEM} used (max), 6 asked for"
        wait_for(
            "the second is refused", lambda: any(why in one for one in product.events("second")), timeout=60
        )
    finally:
        product.kubectl("-n", names.QUOTA_NAMESPACE, "delete", names.QUOTA_PLURAL, TREE)
    product.running("app=second")
    product.delete_all()
