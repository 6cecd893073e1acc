"""LeaderWorkerSet creates groups of pods, gpushare starts each group together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.engines.engine import LEADERWORKERSET
from tests.e2e.engines.examples import example, load_stand_in
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
PODS = "leaderworkerset.sigs.k8s.io/name=llm"
PATH = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets/llm"


@pytest.fixture(scope="module")
def with_leaderworkerset(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    LEADERWORKERSET.install(engines_cluster, engines_product)
    yield engines_product
    LEADERWORKERSET.uninstall(engines_product)


@pytest.fixture
def product(with_leaderworkerset: Product) -> Iterator[Product]:
    yield with_leaderworkerset
    with_leaderworkerset.kubectl("delete", "lws", "--all", "--cascade=foreground", "--timeout=60s")
    with_leaderworkerset.delete_all()


def leaderworkerset(
    version: str = "1", *, replicas: int = 1, annotations: Json | None = None, **spec: object
) -> Json:
    """Groups of three pods of 9 units, of which each is a gang."""
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sleep", "100000"],
        "env": [{"name": "VERSION", "value": version}],
        "resources": {"limits": {names.GPU_MEM: 9}},
    }
    template = {
        "metadata": {
            "labels": {names.LABEL_GANG_NAME: "llm", names.LABEL_GANG_LEAST: "3"},
            "annotations": {names.ANN_GANG_BY: "leaderworkerset.sigs.k8s.io/group-index"},
        },
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "llm", "namespace": "default", "annotations": annotations or {}},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": 3, "workerTemplate": template},
            **spec,
        },
    }


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def test_what_the_page_shows(product: Product, engines_cluster: Cluster, tmp_path: Path) -> None:
    pages = Pages(product, tmp_path, engines_cluster.state, "core-mem-v100x4")
    pages.type("leaderworkerset")


@pytest.mark.parametrize(
    ("engine", "image", "units"),
    [("vllm/GPU", "vllm/vllm-openai:v0.8.5", 8), ("sglang", "lmsysorg/sglang:latest", 1)],
)
def test_its_own_examples_run_with_the_resource_renamed(
    product: Product, engines_cluster: Cluster, engine: str, image: str, units: int
) -> None:
    serves = f"httpd -f -p {8080 if engine == 'vllm/GPU' else 40000}"
    # vLLM's leader starts Ray with bash and serves with python3, its worker is Ray alone.
    worker = '[ "$2" = leader ] || exec sleep 100000'
    load_stand_in(engines_cluster, f"docker.io/{image}", bash=worker, python3=serves)
    path = f"docs/examples/{engine}/lws.yaml"
    objects = example(LEADERWORKERSET.manager, LEADERWORKERSET.module, path)
    product.apply(*objects)

    name = objects[0]["metadata"]["name"]
    for pod in product.running(f"leaderworkerset.sigs.k8s.io/name={name}", 4):
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {names.GPU_MEM: str(units)}
        assert product.environment(pod["metadata"]["name"])[names.ENV_VISIBLE_DEVICES].startswith("GPU-")
    product.kubectl("delete", "service", objects[1]["metadata"]["name"])


def test_an_update_goes_through_while_every_gpu_is_full(product: Product) -> None:
    product.apply(leaderworkerset("1", replicas=2))
    before = product.running(PODS, 6)
    product.apply(leaderworkerset("2", replicas=2))

    wait_for("no earlier pod is left", lambda: not uids(before) & uids(product.pods(PODS)), timeout=120)
    for pod in product.running(PODS, 6):
        assert product.environment(pod["metadata"]["name"])["VERSION"] == "2"


def test_a_group_of_which_a_pod_is_deleted_is_recreated_and_runs(product: Product) -> None:
    product.apply(leaderworkerset())
    before = product.running(PODS, 3)
    product.kubectl("delete", "pod", "llm-0-1", "--grace-period=1")

    wait_for("no earlier pod is left", lambda: not uids(before) & uids(product.pods(PODS)), timeout=90)
    product.running(PODS, 3)


def test_pods_get_several_gpus_by_the_label(product: Product) -> None:
    group = leaderworkerset()
    template = group["spec"]["leaderWorkerTemplate"]
    template["size"] = 2
    template["workerTemplate"]["metadata"] = {"labels": {names.LABEL_POD_GPU_COUNT: "2"}}
    template["workerTemplate"]["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_MEM: 8}}
    product.apply(group)

    for pod in product.running(PODS, 2):
        visible = product.environment(pod["metadata"]["name"])[names.ENV_VISIBLE_DEVICES]
        assert len(set(visible.split(","))) == 2


@pytest.mark.parametrize(
    ("spec", "annotations"),
    [
        ({"startupPolicy": "LeaderReady"}, {}),
        ({}, {"leaderworkerset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"}),
    ],
)
def test_workers_that_wait_for_their_leader_leave_a_gang_pending(
    product: Product, spec: Json, annotations: Json
) -> None:
    product.apply(leaderworkerset(annotations=annotations, **spec))

    product.wait_for_event("llm-0", "gang default/llm/0 needs 3 pods together: there is 1")
