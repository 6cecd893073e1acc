"""KEDA starts the first replica of a service on a share, adds more as the share is used, and ends the last one."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.engines import keda
from tests.e2e.product.product import CHECKOUT, NAMESPACE, Product
from tests.integration.whole.prometheus import program

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
DOCS = CHECKOUT / "docs"
PAGE = DOCS / "guide" / "model-servers.md"
#: Its trigger is the second of the page's.
HOW_TO = DOCS / "how-to" / "scale-on-gpu-use.md"
SAMPLE = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"
#: While the file is there, it computes as much as it may.
SERVES: Final = """
until [ -e /tmp/busy ]; do sleep 1; done
bandwidthTest &
while [ -e /tmp/busy ]; do sleep 1; done
kill $!
sleep 100000
"""
#: Stands in for a gateway that counts the requests for which it has no server yet.
GATEWAY: Final = (
    "mkdir /www && echo gateway_waiting_requests 0 >/www/metrics && exec httpd -f -p 8080 -h /www"
)


@pytest.fixture(scope="module")
def with_keda(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    keda.install(engines_cluster, engines_product)
    yield engines_product
    keda.uninstall(engines_cluster, engines_product)


@pytest.fixture
def product(with_keda: Product) -> Iterator[Product]:
    yield with_keda
    with_keda.kubectl("delete", "scaledobjects", "--all", "--timeout=60s")
    with_keda.delete_all()


@pytest.fixture
def prometheus(engines_cluster: Cluster, product: Product) -> Iterator[str]:
    """The address of a Prometheus on the control machine that scrapes the node agents, as the pods see it."""
    folder = engines_cluster.state / "prometheus"
    folder.mkdir()
    agents = product.pods("app.kubernetes.io/name=gpushare-device-plugin", NAMESPACE)
    targets = [f"{pod['status']['podIP']}:9452" for pod in agents]
    scrape = {"job_name": "gpushare", "honor_labels": True, "static_configs": [{"targets": targets}]}
    configuration = {"global": {"scrape_interval": "2s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=0.0.0.0:9090",
    ]
    process = engines_cluster.control.spawn(command, folder / "log")
    yield f"{engines_cluster.plan.control}:9090"
    process.end()


def deployment(name: str, image: str, script: str, **limits: int) -> Json:
    container = {
        "name": "main",
        "image": image,
        "command": ["sh", "-c", script],
        "resources": {"limits": limits},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 0 if limits else 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    }


def scaled_object(**addresses: str) -> str:
    """That of the page, with those addresses in the place of its own: there is no name server."""
    block = re.compile(r"```yaml\n(apiVersion: keda.*?)```", re.DOTALL)
    text, how_to = (found for page in (PAGE, HOW_TO) for found in block.findall(page.read_text()))
    assert yaml.safe_load(how_to)["spec"]["triggers"] == yaml.safe_load(text)["spec"]["triggers"][1:]
    for name, address in addresses.items():
        text, replaced = re.subn(rf"http://{name}\.[a-z]+:\d+", f"http://{address}", text)
        assert replaced == 1, f"the page names no {name}"
    return str(text)


def test_a_service_on_shares_is_scaled_from_zero_by_use_and_to_zero(
    product: Product, prometheus: str
) -> None:
    product.apply(
        deployment("gateway", "busybox:1.36", GATEWAY),
        deployment("serve", SAMPLE, SERVES, **{names.GPU_MEM: 2, names.GPU_CORE: 30}),
    )
    (gateway,) = product.running("app=gateway")

    def waiting(requests: int) -> None:
        script = f"echo gateway_waiting_requests {requests} >/www/metrics"
        product.kubectl("exec", gateway["metadata"]["name"], "--", "sh", "-c", script)

    manifest = scaled_object(gateway=f"{gateway['status']['podIP']}:8080", prometheus=prometheus)
    product.kubectl("apply", "-f", "-", stdin=manifest)
    product.kubectl("wait", "--for=condition=Ready", "scaledobject/serve", "--timeout=90s")
    assert not product.pods("app=serve")

    waiting(3)
    (first,) = product.running("app=serve")
    waiting(0)
    product.kubectl("exec", first["metadata"]["name"], "--", "touch", "/tmp/busy")
    # With two, of which one computes, half of what they were allocated is used.
    product.running("app=serve", 2, timeout_s=240)
    assert product.row("core-mem-v100x4")[-2:] == ["4/60", "60/400"]

    product.kubectl("exec", first["metadata"]["name"], "--", "rm", "/tmp/busy")
    wait_for("it is scaled to zero", lambda: not product.pods("app=serve"), timeout=240)
    wait_for("nothing is held", lambda: product.row("core-mem-v100x4")[-2:] == ["0/60", "0/400"], timeout=60)
