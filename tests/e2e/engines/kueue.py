"""The configuration of Kueue's manager."""

import json
from typing import Any

import yaml

from tests.e2e.engines.engine import KUEUE
from tests.e2e.product.product import Product


def configure(product: Product, more: dict[str, Any]) -> None:
    """Add to the configuration of the manager, as its chart has it by default; returns once its webhooks answer."""
    values = yaml.safe_load((KUEUE.chart / "values.yaml").read_text())
    configuration = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"]) | more
    text = json.dumps({"managerConfig": {"controllerManagerConfigYaml": json.dumps(configuration)}})
    KUEUE.helm(product, "upgrade", "--values", "-", stdin=text)
    product.kubectl("rollout", "restart", "-n", KUEUE.namespace, f"deployment/{KUEUE.deployment}")
    KUEUE.ready(product)
