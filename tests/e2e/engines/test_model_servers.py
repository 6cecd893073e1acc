"""A Deployment that serves a model: its updates where no GPU has room for a second replica, and its way to zero and back."""

import json
from collections.abc import Iterator

import pytest

from gpushare.api import names
from tests.e2e.cluster import wait_for
from tests.e2e.product.product import Product

pytestmark = pytest.mark.nightly


@pytest.fixture
def product(engines_product: Product) -> Iterator[Product]:
    yield engines_product
    engines_product.delete_all()


def test_an_update_on_a_full_gpu_says_what_holds_it_up_and_goes_on_with_that(product: Product) -> None:
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", "touch /tmp/loaded && sleep 100000"],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/loaded"]}, "periodSeconds": 1},
        "resources": {"limits": {names.GPU_MEM: 10}},
    }
    pod = {
        "metadata": {"labels": {"app": "serve"}},
        "spec": {
            "nodeSelector": {names.LABEL_MODE: "cgpu"},
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }
    spec = {"selector": {"matchLabels": {"app": "serve"}}, "template": pod}
    metadata = {"name": "serve", "namespace": "default"}
    product.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    (before,) = product.running("app=serve")
    product.kubectl("set", "env", "deployment", "serve", "VERSION=2")

    advice = "maxSurge: 0 in the strategy of Deployment default/serve"
    wait_for("the pending pod is advised", lambda: advice in product.inspect("--pending"), timeout=60)
    rolling = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    product.kubectl("patch", "deployment", "serve", "-p", json.dumps({"spec": {"strategy": rolling}}))
    product.kubectl("rollout", "status", "deployment", "serve", "--timeout=90s")
    (after,) = product.running("app=serve")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]

    product.kubectl("scale", "deployment", "serve", "--replicas=0")
    wait_for("nothing is held", lambda: product.row("cgpu-t4")[2] == "0/15", timeout=60)
    product.kubectl("scale", "deployment", "serve", "--replicas=1")
    product.running("app=serve")
