"""Argo Workflows as its manifests install it, without its server, with controller and executor built from their module."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from tests.e2e.cluster import Cluster
from tests.e2e.cluster.kept import cache, digest, renamed
from tests.e2e.cluster.programs import Program
from tests.e2e.engines.engine import kustomized, load, rolled_out, source
from tests.e2e.product.product import Product

NAMESPACE: Final = "argo"
MODULE: Final = "github.com/argoproj/argo-workflows/v4"
_TAG: Final = "v4.0.5"
# By its version a controller names the executor's image.
_LDFLAGS: Final = f"-s -w -X {MODULE}.version={_TAG}"
CONTROLLER: Final = Program("workflow-controller", "argo", f"{MODULE}/cmd/workflow-controller", "", _LDFLAGS)
_WITH_LINK: Final = "workflow/executor/osspecific"
_RIGHTS_OF_STEPS: Final = ("executor/emissary/executor-role.yaml", "executor-default-rolebinding.yaml")


def executor() -> Program:
    """The executor, built from a copy of the module with a file that the module lacks.

    Of ``signal_linux.go`` Argo has made a symbolic link to the file for Darwin, and Go leaves links out of modules.
    """
    pins, sums = ((CONTROLLER.folder / name).read_text() for name in ("go.mod", "go.sum"))
    copy = cache() / "sources" / f"argo-{digest([pins, sums])}"
    if not copy.is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=copy.parent, prefix=".making-"))
        without = shutil.ignore_patterns("docs", "examples", "sdks", "ui")
        shutil.copytree(
            source(CONTROLLER, MODULE), making / "argo", ignore=without, copy_function=shutil.copyfile
        )
        folder = making / "argo" / _WITH_LINK
        folder.chmod(0o755)
        (folder / "signal_linux.go").symlink_to("signal_darwin.go")
        (making / "go.mod").write_text(f"{pins}\nreplace {MODULE} => ./argo\n")
        (making / "go.sum").write_text(sums)
        renamed(making, copy)
    return Program("argoexec", str(copy), f"{MODULE}/cmd/argoexec", "", _LDFLAGS)


def install(cluster: Cluster, product: Product) -> None:
    """Build both programs, load their images and apply the manifests; returns once the controller is ready."""
    load(CONTROLLER, f"quay.io/argoproj/workflow-controller:{_TAG}", cluster, "/bin/workflow-controller")
    # As root, like Argo's own: it reads what the step's container writes.
    load(executor(), f"quay.io/argoproj/argoexec:{_TAG}", cluster, "/bin/argoexec", user="0")
    product.kubectl("create", "namespace", NAMESPACE)
    # The annotation in which kubectl would record a client-side apply is larger than the API server allows.
    product.kubectl("apply", "--server-side", "-f", "-", stdin=_manifests(product))
    for path in _RIGHTS_OF_STEPS:
        product.kubectl("apply", "-f", str(_folder() / "quick-start" / "base" / path))
    rolled_out(product, NAMESPACE, "workflow-controller")


def uninstall(product: Product) -> None:
    """Delete what ``install`` has created."""
    for path in _RIGHTS_OF_STEPS:
        product.kubectl("delete", "-f", str(_folder() / "quick-start" / "base" / path))
    product.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=_manifests(product))
    product.kubectl("delete", "namespace", NAMESPACE)


def _folder() -> Path:
    return source(CONTROLLER, MODULE) / "manifests"


def _manifests(product: Product) -> str:
    """The manifests for a whole cluster, with the image that was loaded."""
    parts = [
        "base/crds/minimal",
        "base/workflow-controller",
        "cluster-install-no-crds/workflow-controller-rbac",
    ]
    image = {"name": "quay.io/argoproj/workflow-controller", "newTag": _TAG}
    return kustomized(product, _folder(), parts, NAMESPACE, images=[image])
