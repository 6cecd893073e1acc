"""KServe as its manifests install it, without cert-manager and ingress, with its manager built from its module."""

import base64
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.admission.certs.certificates import make_generation
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.programs import Program
from tests.e2e.cluster.sample_images import image_of
from tests.e2e.engines.engine import kustomized, load, rolled_out, source
from tests.e2e.product.product import Product

NAMESPACE: Final = "kserve"
MODULE: Final = "github.com/kserve/kserve"
MANAGER: Final = Program("kserve", "kserve", f"{MODULE}/cmd/manager")
_IMAGE: Final = "e2e.local/kserve"
_TAG: Final = "0.20"
_DEPLOYMENT: Final = "kserve-controller-manager"
_SERVICE: Final = f"kserve-webhook-server-service.{NAMESPACE}.svc"
_SECRET: Final = "kserve-webhook-server-cert"
_OF_CERT_MANAGER: Final = ("Certificate", "Issuer")
# The annotation in which kubectl would record a client-side apply is larger than the API server allows.
_APPLY: Final = ("kubectl", "apply", "--server-side", "-f", "-")
_SETTINGS: Final = {
    "deploy": {"defaultDeploymentMode": "Standard"},
    "ingress": {"disableIngressCreation": True},
}


def install(cluster: Cluster, product: Product) -> None:
    """Build the manager, load its image and apply the manifests and runtimes; returns once its webhooks answer.

    Models are not downloaded: what stands in for KServe's program for that ends at once.
    """
    load(MANAGER, f"{_IMAGE}:{_TAG}", cluster)
    busybox = shutil.which("busybox")
    assert busybox, "busybox: missing; run scripts/install-e2e-packages"
    cluster.load_image(
        image_of("docker.io/kserve/storage-initializer:latest", "/bin/true", Path(busybox).resolve())
    )
    manifests = list(_manifests(product))
    own = [one for one in manifests if one["apiVersion"].startswith("serving.kserve.io/")]
    product.typed(*_APPLY, stdin=yaml.safe_dump_all(one for one in manifests if one not in own))
    rolled_out(product, NAMESPACE, _DEPLOYMENT)
    runtimes = kustomized(product, source(MANAGER, MODULE) / "config", ["runtimes"], "")
    of_its_kinds = yaml.safe_dump_all([*own, *yaml.safe_load_all(runtimes)])
    wait_for(
        "the webhooks of KServe answer",
        lambda: product.run(*_APPLY, stdin=of_its_kinds).code == 0,
        timeout=300,
    )


def uninstall(product: Product) -> None:
    """Delete what ``install`` has created; the runtimes go with their kind."""
    manifests = yaml.safe_dump_all(_manifests(product))
    product.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=manifests)


def _manifests(product: Product) -> Iterator[dict[str, Any]]:
    """Those of ``config/default`` with a certificate of ours, the image that was loaded, and without the proxy for metrics."""
    folder = source(MANAGER, MODULE) / "config"
    image = {"name": "kserve/kserve-controller", "newName": _IMAGE, "newTag": _TAG}
    text = kustomized(product, folder, ["base", "default"], NAMESPACE, images=[image])
    certificate = make_generation([_SERVICE], datetime.now(UTC), timedelta(days=1))
    ca = base64.b64encode(certificate.ca_pem).decode()
    for one in yaml.safe_load_all(text):
        match one["kind"]:
            case kind if kind in _OF_CERT_MANAGER:
                continue
            case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration":
                for webhook in one["webhooks"]:
                    webhook["clientConfig"]["caBundle"] = ca
            case "ConfigMap" if one["metadata"]["name"] == "inferenceservice-config":
                for key, changed in _SETTINGS.items():
                    one["data"][key] = json.dumps(json.loads(one["data"][key]) | changed)
            case "Deployment":
                pod = one["spec"]["template"]["spec"]
                manager = next(it for it in pod["containers"] if it["name"] == "manager")
                pod["containers"] = [manager | {"imagePullPolicy": "IfNotPresent", "resources": {}}]
        yield one
    secret = {"tls.crt": certificate.certificate_pem, "tls.key": certificate.key_pem}
    yield {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": _SECRET, "namespace": NAMESPACE},
        "stringData": {key: value.decode() for key, value in secret.items()},
    }
