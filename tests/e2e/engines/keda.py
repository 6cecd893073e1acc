"""KEDA as its manifests install it, with its three programs built from their module."""

import json
from ipaddress import ip_network
from typing import Any, Final

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.programs import Program
from tests.e2e.engines.engine import kustomized, load, rolled_out, source
from tests.e2e.product.product import Product

NAMESPACE: Final = "keda"
_MODULE: Final = "github.com/kedacore/keda/v2"
_TAG: Final = "2.21.0"
OPERATOR: Final = Program("keda", "keda", f"{_MODULE}/cmd/operator")
ADAPTER: Final = Program("keda-adapter", "keda", f"{_MODULE}/cmd/adapter")
WEBHOOKS: Final = Program("keda-admission-webhooks", "keda", f"{_MODULE}/cmd/webhooks")
_IMAGES: Final = {
    OPERATOR: "ghcr.io/kedacore/keda",
    ADAPTER: "ghcr.io/kedacore/keda-metrics-apiserver",
    WEBHOOKS: "ghcr.io/kedacore/keda-admission-webhooks",
}


def install(cluster: Cluster, product: Product) -> None:
    """Build the programs, load their images and apply the manifests; returns once the API server has KEDA's metrics."""
    built(list(_IMAGES), print)
    for program, image in _IMAGES.items():
        load(program, f"{image}:{_TAG}", cluster, f"/{program.name}")
    # The annotation in which kubectl would record a client-side apply is larger than the API server allows.
    product.kubectl("apply", "--server-side", "-f", "-", stdin=_manifests(cluster, product))
    for deployment in ("keda-operator", "keda-metrics-apiserver", "keda-admission"):
        rolled_out(product, NAMESPACE, deployment)

    def available() -> bool:
        service = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
        conditions = product.get(service)["status"]["conditions"]
        return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)

    wait_for("the API server has KEDA's metrics", available, timeout=300)


def uninstall(cluster: Cluster, product: Product) -> None:
    """Delete what ``install`` has created."""
    manifests = _manifests(cluster, product)
    product.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=manifests)


def _manifests(cluster: Cluster, product: Product) -> str:
    """Those of the overlay ``default``, with the images that were loaded; no registry has to be asked for them.

    The cluster has no name server: the adapter is told where the operator is.
    """
    address = str(ip_network(cluster.plan.services)[20])
    found = [
        f"--metrics-service-address={address}:9666",
        f"--metrics-service-grpc-authority=keda-operator.{NAMESPACE}.svc",
    ]
    container = "/spec/template/spec/containers/0"
    patches = [
        _patch("Deployment", "", "replace", f"{container}/imagePullPolicy", "IfNotPresent"),
        *(_patch("Deployment", "keda-metrics-apiserver", "add", f"{container}/args/-", one) for one in found),
        _patch("Service", "keda-operator", "add", "/spec/clusterIP", address),
    ]
    images = [{"name": image, "newTag": _TAG} for image in _IMAGES.values()]
    folder = source(OPERATOR, _MODULE) / "config"
    # Without a namespace: each object names its own.
    return kustomized(product, folder, ["default"], "", images=images, patches=patches)


def _patch(kind: str, name: str, op: str, path: str, value: str) -> dict[str, Any]:
    target = {"kind": kind, "name": name} if name else {"kind": kind}
    return {"target": target, "patch": json.dumps([{"op": op, "path": path, "value": value}])}
