"""The manifests with which other DRA drivers show and test themselves run in mode ``dra``: with our
DeviceClass, and an image that the cluster has.

They come from the drivers' Go modules, at the versions that ``modules/dra-demos`` pins. On every pull
``test_dra.py`` covers what they use, except parameters for other drivers.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster.programs import MODULES
from tests.e2e.product.claiming import CUDA_SAMPLE, NODE, Json, offered, until
from tests.e2e.product.conftest import serves_claims
from tests.e2e.product.product import MODES, Product

pytestmark = pytest.mark.nightly

EXAMPLE: Final = "sigs.k8s.io/dra-example-driver"
NVIDIA: Final = "sigs.k8s.io/dra-driver-nvidia-gpu"
QUICKSTART: Final = "demo/specs/quickstart/v1"
SPECS: Final = "tests/bats/specs"
#: MiB of each of the node's four GPUs.
WHOLE: Final = "16160"


@pytest.fixture(scope="module")
def serving(installed: Product, k8s: str) -> Iterator[Product]:
    """The product with a ``dra`` node."""
    if not serves_claims(k8s):
        pytest.skip("devices are shared by capacity from Kubernetes 1.36 on")
    installed.label(NODE, "dra")
    try:
        until("the node's slice", lambda: offered(installed) == 4)
        yield installed
    finally:
        installed.label(NODE, MODES[NODE])
        installed.offers(NODE, gpu_mem=60, gpu_core=400)


@cache
def folder_of(module: str) -> Path:
    """The module in Go's cache, at the version that is pinned."""
    download = ("go", "mod", "download", "-json", module)
    done = subprocess.run(
        download, cwd=MODULES / "dra-demos", capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"$ {' '.join(download)}\n{done.stdout}{done.stderr}"
    return Path(json.loads(done.stdout)["Dir"])


def manifest(module: str, path: str) -> str:
    """The file with our class, our image, and without programs that this image lacks."""
    text = (folder_of(module) / path).read_text()
    text, classes = re.subn(
        r"(deviceClassName: )gpu\.(example|nvidia)\.com", rf"\g<1>{names.DRA_DRIVER}", text
    )
    text, images = re.subn(r"(image: ).*", rf"\g<1>{CUDA_SAMPLE}", text)
    assert classes
    assert images
    return text.replace("/tmp/sample --benchmark --numbodies=4226000 &", "sleep 9999 &")


def demo(name: str) -> str:
    return f"demo/examples/{name}/{name}.yaml"


@pytest.fixture
def applied(serving: Product, request: pytest.FixtureRequest) -> Iterator[tuple[Product, str]]:
    """The product, and the namespace of a manifest that is applied, and deleted afterwards."""
    text = manifest(*request.param)
    serving.kubectl("apply", "-f", "-", stdin=text)
    (namespace,) = {
        one["metadata"].get("namespace", "default")
        for one in yaml.safe_load_all(text)
        if one and one["kind"] != "Namespace"
    }
    try:
        yield serving, namespace
    finally:
        serving.kubectl("delete", "-f", "-", "--timeout=120s", stdin=text)


@pytest.mark.parametrize(
    ("applied", "containers", "gpus"),
    [
        ((EXAMPLE, demo("basic-resourceclaimtemplate")), 2, 2),
        ((EXAMPLE, demo("basic-multiple-requests")), 1, 2),
        ((EXAMPLE, demo("basic-shared-claim-across-containers")), 2, 1),
        ((EXAMPLE, demo("basic-shared-claim-across-pods")), 2, 1),
        ((EXAMPLE, demo("basic-resourceclaim-opaque-config")), 4, 2),
        ((EXAMPLE, demo("initcontainer-shared-gpu")), 1, 1),
        ((EXAMPLE, demo("admin-access")), 1, 4),
        ((NVIDIA, f"{QUICKSTART}/gpu-test1.yaml"), 2, 2),
        ((NVIDIA, f"{QUICKSTART}/gpu-test2.yaml"), 2, 1),
        ((NVIDIA, f"{QUICKSTART}/gpu-test3.yaml"), 2, 1),
        ((NVIDIA, f"{QUICKSTART}/gpu-test5.yaml"), 4, 2),
        ((NVIDIA, f"{QUICKSTART}/gpu-test-mps.yaml"), 2, 1),
        ((NVIDIA, f"{SPECS}/gpu-simple-full.yaml"), 1, 1),
        ((NVIDIA, f"{SPECS}/gpu-1pod-2cnt-1gpu.yaml"), 2, 1),
        ((NVIDIA, f"{SPECS}/gpu-2pods-1gpu.yaml"), 2, 1),
        ((NVIDIA, f"{SPECS}/gpu-2pods-2gpus.yaml"), 2, 2),
        ((NVIDIA, f"{SPECS}/gpu-job-rct-parallel.yaml"), 2, 2),
        ((NVIDIA, f"{SPECS}/gpu-timeslicing.yaml"), 2, 1),
        ((NVIDIA, f"{SPECS}/gpu-mps.yaml"), 2, 1),
        # The container is limited to one of its two claims.
        ((NVIDIA, f"{SPECS}/gpu-two-claims-one-pod.yaml"), 1, 1),
    ],
    indirect=["applied"],
    ids=lambda value: Path(value[1]).stem if isinstance(value, tuple) else None,
)
def test_containers_run_with_as_many_gpus_as_in_the_manifest(
    applied: tuple[Product, str], containers: int, gpus: int
) -> None:
    product, namespace = applied
    ready: list[Json] = []

    def all_run() -> bool:
        statuses = [
            status
            for pod in product.pods("", namespace)
            for status in pod["status"].get("containerStatuses", ())
        ]
        ready[:] = [one for one in statuses if one["ready"]]
        return len(ready) == len(statuses) == containers

    until(f"{containers} containers run", all_run)
    assert not any(one["restartCount"] for one in ready)
    uuids: set[str] = set()
    for pod in product.pods("", namespace):
        for container in pod["spec"]["containers"]:
            where = (pod["metadata"]["name"], container["name"], namespace)
            environment = product.environment(*where)
            visible = environment[names.ENV_VISIBLE_DEVICES].split(",")
            uuids.update(visible)
            if namespace == "admin-access":
                assert names.ENV_MEM_LIMIT not in environment, where
            elif len(visible) == 1:
                assert environment[names.ENV_MEM_LIMIT] == WHOLE, where
        for container in pod["spec"].get("initContainers", ()):
            # It prints its environment.
            where = (pod["metadata"]["name"], "-c", container["name"], "-n", namespace)
            assert any(gpu in product.kubectl("logs", *where) for gpu in visible), where
    assert len(uuids) == gpus


@pytest.mark.parametrize(
    ("applied", "pod", "reason"),
    [
        # 16Gi of GPUs with 16160 MiB.
        ((EXAMPLE, demo("gpu-allow-multiple-allocations")), "pod0", "cannot allocate all claims"),
        # Attributes that our devices do not have.
        ((EXAMPLE, demo("cel-selector")), "pod0", "no such key"),
        ((EXAMPLE, demo("prioritized-alternatives")), "pod0", "no such key"),
        ((NVIDIA, f"{SPECS}/gpu-cel-nomatch.yaml"), "pod-cel-nomatch", "no such key"),
    ],
    indirect=["applied"],
    ids=lambda value: Path(value[1]).stem if isinstance(value, tuple) else "",
)
def test_requests_that_our_devices_cannot_meet_stay_pending_with_a_reason(
    applied: tuple[Product, str], pod: str, reason: str
) -> None:
    product, namespace = applied
    until("kube-scheduler's reason", lambda: any(reason in one for one in product.events(pod, namespace)))
    assert not any(one["spec"].get("nodeName") for one in product.pods("", namespace))


@pytest.mark.parametrize(
    "applied",
    [(NVIDIA, f"{SPECS}/gpu-job-rct.yaml")],
    indirect=True,
    ids=["gpu-job-rct"],
)
def test_a_job_completes_one_pod_after_the_other(applied: tuple[Product, str]) -> None:
    product, _ = applied
    product.kubectl("wait", "--for=condition=complete", "job/gpu-job-rct", "--timeout=120s")
    logs = product.kubectl("logs", "-l", "job-name=gpu-job-rct")
    assert logs.count("GPU 0: ") == 2, logs
    assert logs.count("GPU Job completed successfully") == 2, logs
