"""KubeRay as its manifests install it, with its operator built from its module, and a stand-in for Ray's image."""

from typing import Final

from images.oci import file
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.programs import Program
from tests.e2e.cluster.sample_images import busybox
from tests.e2e.engines.engine import kustomized, load, rolled_out, source
from tests.e2e.product.product import Product

NAMESPACE: Final = "kuberay-system"
RAY_IMAGE: Final = "docker.io/rayproject/ray:2.55.1"
MODULE: Final = "github.com/ray-project/kuberay/ray-operator"
OPERATOR: Final = Program("ray-operator", "engines", MODULE)
_IMAGE: Final = "e2e.local/kuberay"
_TAG: Final = "1.6"
_RAY: Final = b"""\
#!/bin/sh
# Stands in for Ray: the head always answers, and a node that has started is healthy.
[ "$1" = start ] || exit 0
mkdir -p /tmp/www/api && echo success > /tmp/www/api/healthz
exec httpd -f -p 52365 -h /tmp/www
"""


def install(cluster: Cluster, product: Product) -> None:
    """Build the operator, load its image and the stand-in, and apply the manifests; returns once the operator is ready."""
    load(OPERATOR, f"{_IMAGE}:{_TAG}", cluster)
    load_ray(cluster, RAY_IMAGE)
    product.kubectl("create", "namespace", NAMESPACE)
    # The annotation in which kubectl would record a client-side apply is larger than the API server allows.
    product.kubectl("apply", "--server-side", "-f", "-", stdin=_manifests(product))
    rolled_out(product, NAMESPACE, "kuberay-operator")


def load_ray(cluster: Cluster, image: str) -> None:
    """Load a stand-in for Ray under the image's name."""
    bash = file("/bin/bash", b'#!/bin/sh\nexec sh "$@"\n', 0o755)
    cluster.load_image(busybox([image], [bash, file("/bin/ray", _RAY, 0o755)]))


def uninstall(product: Product) -> None:
    """Delete what ``install`` has created."""
    product.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=_manifests(product))
    product.kubectl("delete", "namespace", NAMESPACE)


def _manifests(product: Product) -> str:
    """The operator's manifests, in a namespace of its own and with the image that was loaded."""
    folder = source(OPERATOR, MODULE) / "config"
    image = {"name": "quay.io/kuberay/operator", "newName": _IMAGE, "newTag": _TAG}
    return kustomized(product, folder, ["default"], NAMESPACE, images=[image])
