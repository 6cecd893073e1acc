"""KubeRay creates a Ray cluster's pods, gpushare gives its workers their shares; in the place of Ray's image a stand-in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.engines import kuberay
from tests.e2e.engines.examples import example
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import CHECKOUT, Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
PAGE = CHECKOUT / "docs" / "guide" / "kuberay.md"
WORKERS = "ray.io/node-type=worker"


@pytest.fixture(scope="module")
def with_kuberay(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    kuberay.install(engines_cluster, engines_product)
    yield engines_product
    kuberay.uninstall(engines_product)


@pytest.fixture
def product(with_kuberay: Product) -> Iterator[Product]:
    yield with_kuberay
    with_kuberay.kubectl("delete", "rayjobs,rayclusters", "--all", "--timeout=60s")
    with_kuberay.delete_all()


def raycluster() -> Json:
    """That of the page."""
    _, _, text = PAGE.read_text().partition("```yaml\n")
    read: Json = yaml.safe_load(text.partition("```")[0])
    return read


def test_workers_start_ray_with_the_share_as_a_gpu(
    product: Product, engines_cluster: Cluster, tmp_path: Path
) -> None:
    pages = Pages(product, tmp_path, engines_cluster.state, "core-mem-v100x4")
    pages.type("kuberay")

    for pod in product.running(WORKERS, 2):
        (start,) = pod["spec"]["containers"][0]["args"]
        assert "--num-gpus=1 " in start
        environment = product.environment(pod["metadata"]["name"], "ray-worker")
        assert environment[names.ENV_VISIBLE_DEVICES].startswith("GPU-")
        assert len(environment[names.ENV_VISIBLE_DEVICES].split(",")) == 1
    (head,) = product.running("ray.io/node-type=head")
    assert names.ANN_SHARE not in head["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("path", "image", "units"),
    [
        (
            "pytorch-text-classifier/ray-job.pytorch-distributed-training.yaml",
            "rayproject/ray-ml:2.46.0.0e19ea-py311-gpu",
            1,
        ),
        (
            "ray-cluster.verl.yaml",
            "hiyouga/verl:ngc-th2.6.0-cu126-vllm0.8.4-flashinfer0.2.2-cxx11abi0",
            4,
        ),
    ],
)
def test_its_own_examples_run_with_the_resource_renamed(
    product: Product, engines_cluster: Cluster, path: str, image: str, units: int
) -> None:
    kuberay.load_ray(engines_cluster, f"docker.io/{image}")
    (made,) = example(kuberay.OPERATOR, kuberay.MODULE, f"config/samples/{path}")
    # For older versions of Ray, KubeRay's probes run wget, and busybox' wget crashes in pods.
    made["spec"].get("rayClusterSpec", made["spec"])["rayVersion"] = kuberay.RAY_IMAGE.rpartition(":")[2]
    product.apply(made)

    (pod,) = product.running("ray.io/node-type=head")
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {names.GPU_MEM: str(units)}
    assert product.environment(pod["metadata"]["name"])[names.ENV_VISIBLE_DEVICES].startswith("GPU-")


def test_a_cluster_is_a_gang_if_its_templates_say_so(product: Product) -> None:
    cluster = raycluster()
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    labels = {names.LABEL_GANG_NAME: "ray", names.LABEL_GANG_LEAST: "6"}
    for group in (cluster["spec"]["headGroupSpec"], workers):
        group["template"]["metadata"] = {"labels": labels}
    workers |= {"replicas": 5, "maxReplicas": 5}
    (container,) = workers["template"]["spec"]["containers"]
    container["resources"]["limits"][names.GPU_MEM] = (
        8  # of which each of the four GPUs with compute limits has room for one
    )
    product.apply(cluster)
    pods = wait_for("it has its workers", lambda: _all(product.pods(WORKERS), 5), timeout=60)
    product.wait_for_event(pods[0]["metadata"]["name"], "and there is capacity for 4")
    assert not any(pod["spec"].get("nodeName") for pod in product.pods(WORKERS))

    product.kubectl("delete", "raycluster", "ray", "--timeout=60s")
    wait_for("its pods are gone", lambda: not product.pods("ray.io/cluster=ray"), timeout=90)
    labels[names.LABEL_GANG_LEAST] = "5"
    workers["replicas"] = 4
    product.apply(cluster)
    product.running(WORKERS, 4)


def test_a_worker_gets_several_gpus_by_the_label(product: Product) -> None:
    cluster = raycluster()
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    workers |= {"replicas": 1, "rayStartParams": {"num-gpus": "2"}}
    workers["template"]["metadata"] = {"labels": {names.LABEL_POD_GPU_COUNT: "2"}}
    (container,) = workers["template"]["spec"]["containers"]
    # Several GPUs do not go with a percentage of compute.
    del container["resources"]["limits"][names.GPU_CORE]
    container["resources"]["limits"][names.GPU_MEM] = 4
    product.apply(cluster)

    (pod,) = product.running(WORKERS)
    assert "--num-gpus=2 " in pod["spec"]["containers"][0]["args"][0]
    environment = product.environment(pod["metadata"]["name"], "ray-worker")
    assert len(set(environment[names.ENV_VISIBLE_DEVICES].split(","))) == 2


def _all(pods: list[Json], count: int) -> list[Json]:
    return pods if len(pods) == count else []
