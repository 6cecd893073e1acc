"""JobSet creates Jobs, gpushare places their pods: gangs over all Jobs of a JobSet, and pods on several GPUs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.engines.engine import JOBSET
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
PODS = "jobset.sigs.k8s.io/jobset-name=train"


@pytest.fixture(scope="module")
def with_jobset(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    JOBSET.install(engines_cluster, engines_product)
    yield engines_product
    JOBSET.uninstall(engines_product)


@pytest.fixture
def product(with_jobset: Product) -> Iterator[Product]:
    yield with_jobset
    with_jobset.kubectl("delete", "jobsets", "--all", "--timeout=60s")
    with_jobset.delete_all()


def jobset(*jobs: Json, annotations: Json | None = None, **spec: object) -> Json:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "default", "annotations": annotations or {}},
        "spec": {"replicatedJobs": list(jobs), **spec},
    }


def job(name: str, labels: Json, *, gang: int = 0, limits: Json | None = None) -> Json:
    """A replicated Job of two pods, which belong to a gang of so many, and fail once there is a file ``/tmp/fail``."""
    if gang:
        labels = {**labels, names.LABEL_GANG_NAME: "train", names.LABEL_GANG_LEAST: str(gang)}
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", "until test -e /tmp/fail; do sleep 0.2; done; exit 1"],
        "resources": {"limits": limits or {names.GPU_MEM: 6}},
    }
    pod = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return {
        "name": name,
        "template": {"spec": {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": pod}},
    }


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def test_what_the_page_shows(product: Product, engines_cluster: Cluster, tmp_path: Path) -> None:
    pages = Pages(product, tmp_path, engines_cluster.state, "core-mem-v100x4")
    pages.type("jobset")


def test_a_gang_of_which_a_pod_fails_is_restarted_as_a_whole(product: Product) -> None:
    product.apply(jobset(job("a", {}, gang=4), job("b", {}, gang=4), failurePolicy={"maxRestarts": 1}))
    before = product.running(PODS, 4)
    product.kubectl("exec", before[0]["metadata"]["name"], "--", "touch", "/tmp/fail")

    def restarted() -> bool:
        path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/train"
        restarts: int = product.get(path)["status"].get("restarts", 0)
        return restarts == 1 and not uids(before) & uids(product.pods(PODS))

    wait_for("JobSet recreates all Jobs", restarted, timeout=90)
    product.running(PODS, 4)


def test_pods_get_several_gpus_by_the_label(product: Product) -> None:
    product.apply(jobset(job("a", {names.LABEL_POD_GPU_COUNT: "2"}, gang=2)))

    for pod in product.running(PODS, 2):
        visible = product.environment(pod["metadata"]["name"])[names.ENV_VISIBLE_DEVICES]
        assert len(set(visible.split(","))) == 2


def test_a_limit_of_that_name_is_rejected_with_what_to_write(product: Product) -> None:
    product.apply(jobset(job("a", {}, limits={names.GPU_MEM: 6, names.GPU_COUNT: 2})))

    product.wait_for_event("train", "set the pod's label of that name to spread a pod over GPUs")


@pytest.mark.parametrize(
    ("spec", "annotations"),
    [
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, {}),
        ({}, {"alpha.jobset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"}),
    ],
)
def test_what_creates_pods_one_after_the_other_leaves_a_gang_pending(
    product: Product, spec: Json, annotations: Json
) -> None:
    product.apply(jobset(job("a", {}, gang=4), job("b", {}, gang=4), annotations=annotations, **spec))
    pods = wait_for("it has pods", lambda: product.pods(PODS), timeout=60)

    product.wait_for_event(pods[0]["metadata"]["name"], "gang default/train needs 4 pods together: there")
