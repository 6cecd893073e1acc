"""cluster-autoscaler with its provider for simulated nodes, run beside the cluster: nodes come from it, kwok plays their kubelets.

Go's module proxies do not have it, so its program is built by hand, in a checkout of its version 1.36:
``go build -tags kwok -o cluster-autoscaler .``
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.e2e.cluster import Cluster
from tests.e2e.cluster.kwok import start_kwok
from tests.e2e.product.product import Product

#: The variable that names its program.
VARIABLE: Final = "GPUSHARE_CLUSTER_AUTOSCALER"
#: Groups of nodes are told apart by this label.
GROUP: Final = "node-group"
_NAMESPACE: Final = "kube-system"
_TEMPLATES: Final = "kwok-provider-templates"
_OPTIONS: Final = (
    "--cloud-provider=kwok",
    f"--namespace={_NAMESPACE}",
    "--leader-elect=false",
    "--address=127.0.0.1:0",
    "--scan-interval=2s",
    "--scale-down-unneeded-time=5s",
    "--scale-down-delay-after-add=5s",
    "--unremovable-node-recheck-timeout=5s",
    "--v=4",
)


@contextmanager
def running(
    program: Path, cluster: Cluster, product: Product, templates: Sequence[dict[str, Any]], folder: Path
) -> Iterator[Path]:
    """Run it with a group, of no nodes yet, for each node among ``templates``; yields its log."""
    config = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": GROUP},
        "nodes": {"skipTaint": True},
        "configmap": {"name": _TEMPLATES},
    }
    nodes = {"apiVersion": "v1", "kind": "List", "items": list(templates)}
    product.apply(
        _config_map("kwok-provider-config", {"config": json.dumps(config)}),
        _config_map(_TEMPLATES, {"templates": json.dumps(nodes)}),
    )
    start_kwok(cluster)
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "KWOK_PROVIDER_MODE": "local",
        "POD_NAMESPACE": _NAMESPACE,
    }
    log = folder / "cluster-autoscaler.log"
    argv = [program, f"--kubeconfig={cluster.kubeconfig}", *_OPTIONS]
    with log.open("w") as output:
        process = subprocess.Popen(argv, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield log
            assert process.poll() is None, log.read_text()[-4000:]
        finally:
            process.terminate()
            process.wait(30)


def _config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": _NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
