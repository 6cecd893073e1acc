"""Kubeflow Trainer as its manifests install it, with its manager built from its module. It needs JobSet."""

import json
from typing import Final

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.programs import Program
from tests.e2e.engines.engine import kustomized, load, rolled_out, source
from tests.e2e.product.product import Product

NAMESPACE: Final = "kubeflow-system"
MODULE: Final = "github.com/kubeflow/trainer/v2"
MANAGER: Final = Program("trainer-controller-manager", "trainer", f"{MODULE}/cmd/trainer-controller-manager")
_IMAGE: Final = "e2e.local/trainer"
_TAG: Final = "2.2"


def install(cluster: Cluster, product: Product) -> None:
    """Build the manager, load its image and apply the manifests; returns once its webhooks answer."""
    load(MANAGER, f"{_IMAGE}:{_TAG}", cluster)
    product.kubectl("create", "namespace", NAMESPACE)
    # The annotation in which kubectl would record a client-side apply is larger than the API server allows.
    product.kubectl("apply", "--server-side", "-f", "-", stdin=_manifests(product))
    rolled_out(product, NAMESPACE, "kubeflow-trainer-controller-manager")
    probe = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "probe"},
        "spec": {"template": {"spec": {"replicatedJobs": []}}},
    }

    def answers() -> bool:
        create = ("kubectl", "create", "--dry-run=server", "-f", "-")
        return "failed calling webhook" not in product.run(*create, stdin=json.dumps(probe)).text

    wait_for("the webhooks of Kubeflow Trainer answer", answers, timeout=300)


def uninstall(product: Product) -> None:
    """Delete what ``install`` has created."""
    product.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=_manifests(product))
    product.kubectl("delete", "namespace", NAMESPACE)


def _manifests(product: Product) -> str:
    """Those of the overlay ``manager``, without JobSet and with the image that was loaded."""
    image = {
        "name": "ghcr.io/kubeflow/trainer/trainer-controller-manager",
        "newName": _IMAGE,
        "newTag": _TAG,
    }
    # Its manager writes its certificates into this Secret.
    secret = {"name": "kubeflow-trainer-webhook-cert", "options": {"disableNameSuffixHash": True}}
    folder = source(MANAGER, MODULE) / "manifests" / "base"
    parts = ["crds", "manager", "rbac", "webhook"]
    return kustomized(product, folder, parts, NAMESPACE, images=[image], secretGenerator=[secret])
