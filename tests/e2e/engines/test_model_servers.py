"""A Deployment that serves a model: its updates where no GPU has room for a second replica, and its way to zero and back."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster import wait_for
from tests.e2e.product.product import CHECKOUT, Product

pytestmark = pytest.mark.nightly

PAGE = CHECKOUT / "docs" / "guide" / "model-servers.md"


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


def test_a_deployment_as_kserve_renders_it_runs_on_a_share_and_is_updated(product: Product) -> None:
    # What KServe 0.20 makes of the guide's InferenceService, with the defaults that it writes: its scheduler, probe and strategy.
    (text,) = re.findall(r"```yaml\n(apiVersion: serving.kserve.io.*?)```", PAGE.read_text(), re.DOTALL)
    service = yaml.safe_load(text)
    name, predictor = service["metadata"]["name"], service["spec"]["predictor"]
    labels = {
        "app": f"isvc.{name}-predictor",
        "component": "predictor",
        "serving.kserve.io/inferenceservice": name,
    }
    probe = {
        "tcpSocket": {"port": 8080},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    (container,) = predictor["containers"]
    container |= {
        "image": "busybox:1.36",
        "command": ["httpd", "-f", "-p", "8080"],
        "imagePullPolicy": "IfNotPresent",
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    container["resources"]["requests"] = {"cpu": "100m", "memory": "64Mi", **container["resources"]["limits"]}
    pod = {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {names.LABEL_MODE: "cgpu"},
        "containers": [container],
    }
    spec = {
        "replicas": predictor["minReplicas"],
        "selector": {"matchLabels": {"app": labels["app"]}},
        "strategy": predictor["deploymentStrategy"],
        "template": {
            "metadata": {"labels": labels, "annotations": service["metadata"]["annotations"]},
            "spec": pod,
        },
    }
    metadata = {"name": f"{name}-predictor", "namespace": "default", "labels": labels}
    product.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    (before,) = product.running(f"app={labels['app']}")
    assert before["spec"]["schedulerName"] == names.SCHEDULER_NAME
    assert product.row("cgpu-t4")[2] == "10/15"

    product.kubectl("set", "env", f"deployment/{name}-predictor", "VERSION=2")
    product.kubectl("rollout", "status", f"deployment/{name}-predictor", "--timeout=120s")
    (after,) = product.running(f"app={labels['app']}")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
