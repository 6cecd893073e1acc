"""Argo Workflows runs steps, gpushare places their pods: a step gives its share back when it ends, and each run is a gang."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.engines import argo
from tests.e2e.engines.examples import example, load_stand_in
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import CHECKOUT, Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
PAGE = CHECKOUT / "docs" / "guide" / "argo.md"
WORKFLOW = "workflows.argoproj.io/workflow"


@pytest.fixture(scope="module")
def with_argo(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    argo.install(engines_cluster, engines_product)
    yield engines_product
    argo.uninstall(engines_product)


@pytest.fixture
def product(with_argo: Product) -> Iterator[Product]:
    yield with_argo
    with_argo.kubectl("delete", "workflows", "--all", "--timeout=60s")
    with_argo.delete_all()


def parallel(run: str, units: int) -> Json:
    """A run of the page's workflow of parallel steps, which hold their shares until they are deleted."""
    _, _, text = PAGE.read_text().partition("<!-- file: parallel.yaml -->\n```yaml\n")
    workflow: Json = yaml.safe_load(text.partition("```")[0])
    workflow["metadata"] = {"name": run, "namespace": "default"}
    (container,) = [one["container"] for one in workflow["spec"]["templates"] if "container" in one]
    container["command"] = ["sleep", "100000"]
    container["resources"]["limits"][names.GPU_MEM] = units
    return workflow


def test_a_step_runs_with_its_share_and_gives_it_back(
    product: Product, engines_cluster: Cluster, tmp_path: Path
) -> None:
    pages = Pages(product, tmp_path, engines_cluster.state, "core-mem-v100x4")
    pages.type("argo")

    # Argo keeps the pods of steps that have ended.
    assert product.pods(WORKFLOW)
    assert product.row("cgpu-t4")[2] == "0/15"


def test_the_steps_own_container_has_the_gpu(product: Product) -> None:
    product.apply(parallel("run", 3))
    for pod in product.running(f"{WORKFLOW}=run", 4):
        name = pod["metadata"]["name"]
        assert product.environment(name, "main")[names.ENV_VISIBLE_DEVICES].startswith("GPU-")
        (wait,) = [one for one in pod["spec"]["containers"] if one["name"] == "wait"]
        assert names.GPU_MEM not in wait.get("resources", {}).get("limits", {})


def test_its_own_example_runs_with_the_resource_renamed(product: Product, engines_cluster: Cluster) -> None:
    """One that sets a resource by a patch, from a parameter."""
    load_stand_in(engines_cluster, "docker.io/library/busybox:latest")
    (workflow,) = example(argo.CONTROLLER, argo.MODULE, "examples/pod-spec-yaml-patch.yaml")
    workflow["spec"]["podSpecPatch"] = workflow["spec"]["podSpecPatch"].replace("memory", names.GPU_MEM)
    workflow["spec"]["arguments"]["parameters"] = [{"name": "mem-limit", "value": "3"}]
    product.apply(workflow)

    product.kubectl(
        *("wait", "--for=jsonpath={.status.phase}=Succeeded", "workflow/pod-spec-patch", "--timeout=90s")
    )
    (pod,) = product.pods(f"{WORKFLOW}=pod-spec-patch")
    (main,) = [one for one in pod["spec"]["containers"] if one["name"] == "main"]
    assert main["resources"]["limits"][names.GPU_MEM] == "3"
    assert names.ANN_SHARE in pod["metadata"]["annotations"]


def test_runs_of_one_workflow_are_gangs_of_their_own(product: Product) -> None:
    product.apply(parallel("first", 9))
    # The six GPUs have room for one of 9 units each.
    product.running(f"{WORKFLOW}=first", 4)
    product.apply(parallel("second", 9))

    pod, *_ = wait_for("it has pods", lambda: product.pods(f"{WORKFLOW}=second"), timeout=60)
    product.wait_for_event(
        pod["metadata"]["name"],
        "gang default/train/second needs capacity for 4 pods at once, and there is capacity for 2",
    )
    assert not any(pod["spec"].get("nodeName") for pod in product.pods(f"{WORKFLOW}=second"))
