"""Pods as Argo Workflows renders them: their own container has the GPU, and each run of a workflow is a gang."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.api import names
from tests.e2e.product.product import Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
WORKFLOW = "workflows.argoproj.io/workflow"


@pytest.fixture
def product(engines_product: Product) -> Iterator[Product]:
    yield engines_product
    engines_product.delete_all()


def step(workflow: str, name: str, mem: int, *, gang: int = 0) -> Json:
    """A pod of a step: Argo adds an init container, and one that waits for ``main``."""
    labels = {WORKFLOW: workflow, "workflows.argoproj.io/completed": "false"}
    annotations = {"workflows.argoproj.io/node-name": f"{workflow}.{name}"}
    if gang:
        labels |= {names.LABEL_GANG_NAME: "train", names.LABEL_GANG_LEAST: str(gang)}
        annotations |= {names.ANN_GANG_BY: WORKFLOW}
    image = {"image": "busybox:1.36"}
    sleep = image | {"command": ["sleep", "100000"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{workflow}-{name}",
            "namespace": "default",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "initContainers": [{"name": "init", **image, "command": ["true"]}],
            "containers": [
                {"name": "wait", **sleep},
                {"name": "main", **sleep, "resources": {"limits": {names.GPU_MEM: mem}}},
            ],
        },
    }


def test_the_steps_own_container_has_the_gpu(product: Product) -> None:
    product.apply(step("run", "a", 3))
    product.running(f"{WORKFLOW}=run")

    assert product.environment("run-a", "main")[names.ENV_VISIBLE_DEVICES].startswith("GPU-")
    assert not product.environment("run-a", "wait").get(names.ENV_VISIBLE_DEVICES, "").startswith("GPU-")


def test_runs_of_one_workflow_are_gangs_of_their_own(product: Product) -> None:
    for run in ("first", "second"):
        product.apply(*(step(run, name, 9, gang=4) for name in "abcd"))
        # The six GPUs have room for one of 9 units each.
        if run == "first":
            product.running(f"{WORKFLOW}=first", 4)

    product.wait_for_event(
        "second-a", "gang default/train/second needs room for 4 pods at once and there is room for 2"
    )
    assert not any(pod["spec"].get("nodeName") for pod in product.pods(f"{WORKFLOW}=second"))
