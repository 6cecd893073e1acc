"""Kubeflow Trainer creates JobSets, gpushare places their pods: each TrainJob of a runtime is a gang of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.engines import trainer
from tests.e2e.engines.engine import JOBSET
from tests.e2e.engines.examples import example, load_stand_in
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import CHECKOUT, Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
PAGE = CHECKOUT / "docs" / "guide" / "kubeflow-trainer.md"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"


@pytest.fixture(scope="module")
def with_trainer(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    JOBSET.install(engines_cluster, engines_product)
    trainer.install(engines_cluster, engines_product)
    yield engines_product
    trainer.uninstall(engines_product)
    JOBSET.uninstall(engines_product)


@pytest.fixture
def product(with_trainer: Product) -> Iterator[Product]:
    yield with_trainer
    with_trainer.kubectl("delete", "trainjobs,trainingruntimes", "--all", "--timeout=60s")
    with_trainer.delete_all()


def of_the_page() -> tuple[Json, Json]:
    """The runtime and the TrainJob of the page."""
    _, _, text = PAGE.read_text().partition("```yaml\n")
    runtime, trainjob = yaml.safe_load_all(text.partition("```")[0])
    return runtime, trainjob


def test_what_the_page_shows(product: Product, engines_cluster: Cluster, tmp_path: Path) -> None:
    pages = Pages(product, tmp_path, engines_cluster.state, "core-mem-v100x4")
    pages.type("trainer")


def test_trainjobs_of_one_runtime_are_gangs_of_their_own(product: Product) -> None:
    runtime, trainjob = of_the_page()
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    node["template"]["spec"]["template"]["metadata"]["labels"][names.LABEL_GANG_LEAST] = "4"
    trainjob["spec"]["trainer"]["numNodes"] = 4
    product.apply(runtime, trainjob | {"metadata": {"name": "first"}})
    product.running(f"{JOBSET_NAME}=first", 4)
    # The six GPUs have room for one pod of 9 units each.
    product.apply(trainjob | {"metadata": {"name": "second"}})

    product.wait_for_event(
        _some(product, "second"),
        "gang default/torch/second needs capacity for 4 pods at once, and there is capacity for 2",
    )


def test_a_job_of_its_own_runtime_runs_on_shares(product: Product, engines_cluster: Cluster) -> None:
    (runtime,) = example(trainer.MANAGER, trainer.MODULE, "manifests/base/runtimes/torch_distributed.yaml")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    load_stand_in(engines_cluster, f"docker.io/{container['image']}", torchrun="exec sleep 100000")
    trainjob = of_the_page()[1]
    trainjob["spec"]["runtimeRef"] = {"name": runtime["metadata"]["name"]}
    trainjob["spec"]["trainer"]["command"] = ["torchrun", "train.py"]
    product.apply(runtime, trainjob)
    try:
        for pod in product.running(f"{JOBSET_NAME}=train", 2):
            visible = product.environment(pod["metadata"]["name"])[names.ENV_VISIBLE_DEVICES]
            assert visible.startswith("GPU-")
    finally:
        product.kubectl("delete", "trainjobs", "--all", "--timeout=60s")
        product.kubectl("delete", "clustertrainingruntimes", "--all", "--timeout=60s")


def test_pods_get_several_gpus_by_the_label(product: Product) -> None:
    runtime, trainjob = of_the_page()
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    node["template"]["spec"]["template"]["metadata"] = {"labels": {names.LABEL_POD_GPU_COUNT: "2"}}
    resources = {"limits": {names.GPU_MEM: 8}}
    trainjob["spec"]["trainer"] |= {"numNodes": 1, "numProcPerNode": 2, "resourcesPerNode": resources}
    product.apply(runtime, trainjob)

    (pod,) = product.running(f"{JOBSET_NAME}=train")
    environment = product.environment(pod["metadata"]["name"])
    assert len(set(environment[names.ENV_VISIBLE_DEVICES].split(","))) == 2
    assert environment["PET_NPROC_PER_NODE"] == "2"


def _some(product: Product, name: str) -> str:
    pod, *_ = wait_for("it has pods", lambda: product.pods(f"{JOBSET_NAME}={name}"), timeout=60)
    found: str = pod["metadata"]["name"]
    return found
