"""Engines as their charts install them, with their managers built from their modules."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.programs import Program
from tests.e2e.cluster.sample_images import NOBODY, image_of
from tests.e2e.product.product import HELM_WAIT, Product


@dataclass(frozen=True, slots=True)
class Engine:
    """A controller with webhooks, and a Helm chart in its Go module. ``name`` is that of the release."""

    name: str
    manager: Program
    module: str
    """The Go module of the manager and the chart."""
    deployment: str
    version: str
    """Tag of the manager's image ``e2e.local/NAME``, which no registry has."""
    values: Mapping[str, str]
    """The chart's values, by path: for that image, and for nodes with little CPU."""
    probe: Mapping[str, Any]
    """An object of one of its kinds. The webhooks answer once the API server accepts it."""

    @property
    def namespace(self) -> str:
        """Where it is installed."""
        return f"{self.name}-system"

    @property
    def chart(self) -> Path:
        """The folder of the chart in Go's module cache."""
        return source(self.manager, self.module) / "charts" / self.name

    def install(self, cluster: Cluster, product: Product) -> None:
        """Build the manager, load its image and install the chart; returns once its webhooks answer."""
        load(self.manager, f"e2e.local/{self.name}:{self.version}", cluster)
        self.helm(product, "install", "--create-namespace")

    def helm(self, product: Product, verb: str, *arguments: str, stdin: str = "") -> None:
        """``helm install`` or ``upgrade`` with our values; returns once its webhooks answer."""
        values = [part for path, value in self.values.items() for part in ("--set-string", f"{path}={value}")]
        where = (self.name, str(self.chart), "-n", self.namespace)
        product.typed("helm", verb, *where, *values, *arguments, stdin=stdin)
        self.ready(product)

    def uninstall(self, product: Product) -> None:
        """Uninstall the release."""
        product.typed("helm", "uninstall", self.name, "-n", self.namespace, *HELM_WAIT)

    def ready(self, product: Product) -> None:
        """Return once the manager is rolled out and its webhooks answer."""
        rolled_out(product, self.namespace, self.deployment)

        def answers() -> bool:
            create = ("kubectl", "create", "--dry-run=server", "-f", "-")
            return product.run(*create, stdin=json.dumps(self.probe)).code == 0

        wait_for(f"the webhooks of {self.name} answer", answers, timeout=300)


def load(
    manager: Program, image: str, cluster: Cluster, path: str = "/manager", *, user: str = NOBODY
) -> None:
    """Build a manager and load it into every node, as ``path`` of ``image``."""
    program = built([manager], print)[manager.name]
    cluster.load_image(image_of(image, path, program, user=user))


def rolled_out(product: Product, namespace: str, deployment: str) -> None:
    """Return once the manager is ready. Managers create their certificates first, which takes up to a minute."""
    wait = ("kubectl", "rollout", "status", "-n", namespace, f"deployment/{deployment}", "--timeout=300s")
    product.typed(*wait, timeout_s=330)


def source(manager: Program, module: str) -> Path:
    """The folder of the module in Go's cache, at the version from which the manager is built; downloaded if it is not there."""
    found = subprocess.run(
        ["go", "mod", "download", "-json", module],
        cwd=manager.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return Path(json.loads(found.stdout)["Dir"])


def kustomized(
    product: Product, folder: Path, resources: Sequence[str], namespace: str, **more: object
) -> str:
    """Manifests of a module: ``resources`` are folders below ``folder``, ``more`` is the rest of a kustomization.

    An empty ``namespace`` leaves each object in its own.
    """
    with tempfile.TemporaryDirectory() as overlay:
        found = [os.path.relpath(folder / path, Path(overlay).resolve()) for path in resources]
        kustomization = {"namespace": namespace, "resources": found, **more}
        (Path(overlay) / "kustomization.yaml").write_text(json.dumps(kustomization))
        return product.kubectl("kustomize", overlay)


_POD: Final = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox:1.36"}]}}

JOBSET: Final = Engine(
    name="jobset",
    manager=Program("jobset", "engines", "sigs.k8s.io/jobset"),
    module="sigs.k8s.io/jobset",
    deployment="jobset-controller",
    version="0.11",
    values={
        "image.repository": "e2e.local/jobset",
        "image.tag": "0.11",
        "image.pullPolicy": "IfNotPresent",
        "controller.resources.requests.cpu": "100m",
    },
    probe={
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "probe"},
        "spec": {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": _POD}}}]},
    },
)
LEADERWORKERSET: Final = Engine(
    name="lws",
    manager=Program("lws", "engines", "sigs.k8s.io/lws/cmd"),
    module="sigs.k8s.io/lws",
    deployment="lws-controller-manager",
    version="0.8",
    values={
        "image.manager.repository": "e2e.local/lws",
        "image.manager.tag": "0.8",
        "image.manager.pullPolicy": "IfNotPresent",
        "resources.requests.cpu": "100m",
        "resources.requests.memory": "128Mi",
    },
    probe={
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "probe"},
        "spec": {
            "leaderWorkerTemplate": {
                "size": 1,
                "workerTemplate": {"spec": {"containers": _POD["spec"]["containers"]}},
            }
        },
    },
)
KUEUE: Final = Engine(
    name="kueue",
    manager=Program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    module="sigs.k8s.io/kueue",
    deployment="kueue-controller-manager",
    version="0.17",
    values={
        "controllerManager.manager.image.repository": "e2e.local/kueue",
        "controllerManager.manager.image.tag": "0.17",
        "controllerManager.manager.image.pullPolicy": "IfNotPresent",
        "controllerManager.manager.resources.requests.cpu": "100m",
    },
    probe={
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "probe"},
    },
)
