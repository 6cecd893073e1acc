"""Kueue as its chart installs it, with its manager built from its module."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.programs import Program
from tests.e2e.cluster.sample_images import image_of
from tests.e2e.product.product import Product

NAMESPACE: Final = "kueue-system"
MANAGER: Final = Program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue")
MANAGER_OBJECT: Final = "deployment/kueue-controller-manager"
_IMAGE: Final = "e2e.local/kueue:0.17"
_VALUES: Final = (
    *("--set", "controllerManager.manager.image.repository=e2e.local/kueue"),
    *("--set-string", "controllerManager.manager.image.tag=0.17"),
    *("--set", "controllerManager.manager.image.pullPolicy=IfNotPresent"),
    *("--set", "controllerManager.manager.resources.requests.cpu=100m"),
)


def install(cluster: Cluster, product: Product) -> None:
    """Build the manager, load its image and install the chart; returns once its webhooks answer."""
    program = built([MANAGER], print)[MANAGER.name]
    cluster.load_image(image_of(_IMAGE, "/manager", program))
    product.typed("helm", "install", "kueue", str(_chart()), "-n", NAMESPACE, "--create-namespace", *_VALUES)
    _ready(product)


def configure(product: Product, more: dict[str, Any]) -> None:
    """Add to the configuration of the manager, as its chart has it by default; returns once its webhooks answer."""
    values = yaml.safe_load((_chart() / "values.yaml").read_text())
    configuration = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"]) | more
    text = json.dumps({"managerConfig": {"controllerManagerConfigYaml": json.dumps(configuration)}})
    upgrade = ("helm", "upgrade", "kueue", str(_chart()), "-n", NAMESPACE, "--values", "-", *_VALUES)
    product.typed(*upgrade, stdin=text)
    product.kubectl("rollout", "restart", "-n", NAMESPACE, MANAGER_OBJECT)
    _ready(product)


def _ready(product: Product) -> None:
    # It makes its certificates first, which takes a minute.
    rollout = ("kubectl", "rollout", "status", "-n", NAMESPACE, MANAGER_OBJECT, "--timeout=300s")
    product.typed(*rollout, timeout_s=330)
    flavor = "{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: probe}}"

    def answers() -> bool:
        return product.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=flavor).code == 0

    wait_for("Kueue's webhooks answer", answers, timeout=300)


def _chart() -> Path:
    found = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"],
        cwd=MANAGER.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return Path(found.stdout.strip()) / "charts" / "kueue"
