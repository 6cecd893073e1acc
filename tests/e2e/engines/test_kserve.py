"""KServe makes Deployments of InferenceServices, gpushare places their pods: on shares, also where a GPU is full."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from gpushare.api import names
from images.oci import file
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.sample_images import busybox
from tests.e2e.engines import kserve
from tests.e2e.engines.examples import example
from tests.e2e.product.product import CHECKOUT, Product

pytestmark = pytest.mark.nightly

PAGE = CHECKOUT / "docs" / "guide" / "model-servers.md"
OF_SERVICE = "serving.kserve.io/inferenceservice"


@pytest.fixture(scope="module")
def with_kserve(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    kserve.install(engines_cluster, engines_product)
    yield engines_product
    kserve.uninstall(engines_product)


@pytest.fixture
def product(with_kserve: Product) -> Iterator[Product]:
    yield with_kserve
    with_kserve.kubectl("delete", "inferenceservices", "--all", "--timeout=60s")
    with_kserve.delete_all()


def test_the_guides_service_runs_on_a_share_and_is_updated_on_a_full_gpu(product: Product) -> None:
    (text,) = re.findall(r"```yaml\n(apiVersion: serving.kserve.io.*?)```", PAGE.read_text(), re.DOTALL)
    service = yaml.safe_load(text)
    name, predictor = service["metadata"]["name"], service["spec"]["predictor"]
    predictor["nodeSelector"] = {names.LABEL_MODE: "cgpu"}
    (container,) = predictor["containers"]
    container |= {"image": "busybox:1.36", "command": ["httpd", "-f", "-p", "8080"]}
    container["resources"]["requests"] = {"cpu": "100m", "memory": "64Mi"}
    product.apply(service)
    (before,) = product.running(f"{OF_SERVICE}={name}")
    assert before["spec"]["schedulerName"] == names.SCHEDULER_NAME
    assert product.row("cgpu-t4")[2] == "10/15"

    container["env"] = [{"name": "VERSION", "value": "2"}]
    product.kubectl("patch", "inferenceservice", name, "--type=merge", "-p", json.dumps(service))
    product.kubectl("rollout", "status", f"deployment/{name}-predictor", "--timeout=120s")
    (after,) = product.running(f"{OF_SERVICE}={name}")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


def test_its_own_example_runs_with_the_resource_renamed(product: Product, engines_cluster: Cluster) -> None:
    server = file("/usr/bin/tensorflow_model_server", b"#!/bin/sh\nexec httpd -f -p 8080\n", 0o755)
    engines_cluster.load_image(busybox(["docker.io/tensorflow/serving:1.11.0-gpu"], [server]))
    (service,) = example(kserve.MANAGER, kserve.MODULE, "docs/samples/accelerators/tensorflow-gpu.yaml")
    product.apply(service)

    (pod,) = product.running(f"{OF_SERVICE}=tensorflow-gpu")
    visible = product.environment(pod["metadata"]["name"])[names.ENV_VISIBLE_DEVICES]
    assert visible.startswith("GPU-")
    product.kubectl("wait", "--for=condition=Ready", "inferenceservice/tensorflow-gpu", "--timeout=90s")
