"""Karpenter with its provider for simulated nodes, built from its module and run beside the cluster: nodes come from it, kwok plays their kubelets."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.kwok import start_kwok
from tests.e2e.cluster.programs import Program
from tests.e2e.engines.engine import source
from tests.e2e.product.product import Product

_MODULE: Final = "sigs.k8s.io/karpenter"
CONTROLLER: Final = Program("karpenter", "karpenter", f"{_MODULE}/kwok")
NODE_CLASS: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
INSTANCE_TYPE: Final = "large"
_KINDS: Final = "nodepools.karpenter.sh,nodeoverlays.karpenter.sh"


@contextmanager
def running(cluster: Cluster, product: Product, folder: Path) -> Iterator[Path]:
    """Run the controller with NodeOverlays and one instance type, which has no GPU of its own; yields its log."""
    program = built([CONTROLLER], print)[CONTROLLER.name]
    for crds in ("pkg/apis/crds", "kwok/apis/crds"):
        product.kubectl("apply", "--server-side", "-f", str(source(CONTROLLER, _MODULE) / crds))
    group, kind, name = NODE_CLASS.values()
    wait_for("its kinds are served", lambda: _served(product), timeout=60)
    product.apply({"apiVersion": f"{group}/v1alpha1", "kind": kind, "metadata": {"name": name}})
    start_kwok(cluster)
    types = folder / "instance-types.json"
    types.write_text(json.dumps([_instance_type()]))
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "FEATURE_GATES": "NodeOverlay=true",
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": "0",
        "HEALTH_PROBE_PORT": "0",
        "BATCH_IDLE_DURATION": "500ms",
        "LOG_LEVEL": "debug",
    }
    log = folder / "karpenter.log"
    with log.open("w") as output:
        process = subprocess.Popen([program], env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield log
            assert process.poll() is None, log.read_text()[-4000:]
            product.kubectl("delete", _KINDS, "--all", "--timeout=60s")
        finally:
            process.terminate()
            process.wait(30)


def _served(product: Product) -> bool:
    return product.run("kubectl", "get", f"{_KINDS},kwoknodeclasses.karpenter.kwok.sh").code == 0


def _instance_type() -> Mapping[str, Any]:
    where = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone-a"}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in where.items()]
    return {
        "name": INSTANCE_TYPE,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"},
        "offerings": [{"Price": 1.0, "Available": True, "Requirements": requirements}],
    }
