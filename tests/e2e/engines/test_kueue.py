"""Kueue decides when a Job may start, gpushare on which GPU its pods run: quotas, borrowing and flavors over shares."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import names
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.engines.engine import KUEUE
from tests.e2e.engines.examples import example, load_stand_in
from tests.e2e.engines.kueue import configure
from tests.e2e.product.pages import Pages
from tests.e2e.product.product import CHECKOUT, Product

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
API = "kueue.x-k8s.io/v1beta2"
PAGE = CHECKOUT / "docs" / "guide" / "kueue.md"
QUEUE = "kueue.x-k8s.io/queue-name"


@pytest.fixture(scope="module")
def with_kueue(engines_cluster: Cluster, engines_product: Product) -> Iterator[Product]:
    KUEUE.install(engines_cluster, engines_product)
    yield engines_product
    KUEUE.uninstall(engines_product)


@pytest.fixture
def product(with_kueue: Product) -> Iterator[Product]:
    yield with_kueue
    # With their Workloads, which hold the queues.
    with_kueue.kubectl("delete", "jobs", "--all", "--timeout=60s")
    with_kueue.delete_all()
    kinds = "localqueues.kueue.x-k8s.io,clusterqueues.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io"
    with_kueue.kubectl("delete", kinds, "--all", "-A", "--timeout=60s")


def flavor(name: str, mode: str) -> Json:
    spec = {"nodeLabels": {names.LABEL_MODE: mode}}
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def queue(name: str, quotas: Mapping[str, Mapping[str, object]], **spec: object) -> list[Json]:
    """A ClusterQueue and the default namespace's LocalQueue of that name; ``quotas``: by flavor and resource."""
    flavors = [
        {"name": one, "resources": [{"name": what, "nominalQuota": much} for what, much in its.items()]}
        for one, its in quotas.items()
    ]
    covered = list(next(iter(quotas.values())))
    groups = [{"coveredResources": covered, "flavors": flavors}]
    cluster_queue = {"namespaceSelector": {}, "resourceGroups": groups, **spec}
    return [
        {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": cluster_queue},
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterQueue": name},
        },
    ]


def job(name: str, into: str, limits: Mapping[str, object], *, pods: int = 1, **annotations: str) -> Json:
    """A Job of that queue whose pods sleep; keyword arguments are annotations of Kueue's, such as ``min_parallelism``."""
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sleep", "100000"],
        "resources": {"limits": dict(limits)},
    }
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": {QUEUE: into},
        "annotations": {
            f"kueue.x-k8s.io/job-{key.replace('_', '-')}": value for key, value in annotations.items()
        },
    }
    pod = {
        "metadata": {"labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {"parallelism": pods, "completions": pods, "template": pod}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def suspended(product: Product, name: str) -> bool:
    found: bool = product.get(f"/apis/batch/v1/namespaces/default/jobs/{name}")["spec"]["suspend"]
    return found


def refusal(product: Product, name: str) -> str:
    """Why Kueue does not admit a Job or pod yet; waits until it says so."""

    def message() -> str:
        for workload in product.json("get", "workloads.kueue.x-k8s.io")["items"]:
            if workload["metadata"]["ownerReferences"][0]["name"] != name:
                continue
            for condition in workload.get("status", {}).get("conditions", ()):
                if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                    return str(condition["message"])
        return ""

    return wait_for(f"Kueue says why {name} is not admitted", message, timeout=60)


def waits(product: Product, name: str) -> str:
    """Why Kueue does not admit a Job yet, which is suspended."""
    why = refusal(product, name)
    assert suspended(product, name)
    return why


def test_a_job_waits_for_quota_and_then_runs_on_a_share(product: Product) -> None:
    product.apply(flavor("cgpu", "cgpu"), *queue("team", {"cgpu": {names.GPU_MEM: 6}}))
    product.apply(job("first", "team", {names.GPU_MEM: 3}, pods=2))
    product.running("app=first", 2)
    product.apply(job("second", "team", {names.GPU_MEM: 3}))

    assert "insufficient unused quota for aliyun.com/gpu-mem" in waits(product, "second")
    assert not product.pods("app=second")
    assert {product.node_of(pod["metadata"]["name"]) for pod in product.pods("app=first")} == {"cgpu-t4"}

    product.kubectl("delete", "job", "first")
    product.running("app=second")


def test_a_flavor_leads_to_nodes_of_its_mode(product: Product) -> None:
    quota = {names.GPU_MEM: 60, names.GPU_CORE: 400}
    product.apply(flavor("core-mem", "core_mem"), *queue("team", {"core-mem": quota}))
    product.apply(job("limited", "team", {names.GPU_MEM: 3, names.GPU_CORE: 30}))

    (pod,) = product.running("app=limited")
    assert pod["spec"]["nodeName"] == "core-mem-v100x4"


@pytest.mark.parametrize(
    ("mode", "share"),
    [("cgpu", {names.GPU_MEM: 6}), ("core_mem", {names.GPU_MEM: 6, names.GPU_CORE: 30})],
)
def test_borrowed_capacity_is_returned(product: Product, mode: str, share: Mapping[str, int]) -> None:
    takes_back = {"cohortName": "all", "preemption": {"reclaimWithinCohort": "Any"}}
    for team in ("a", "b"):
        product.apply(*queue(team, {"nodes": share}, **takes_back))
    product.apply(flavor("nodes", mode))
    product.apply(job("borrows", "b", share, pods=2))
    product.running("app=borrows", 2)

    product.apply(job("owns", "a", share))
    product.running("app=owns")

    wait_for("the Job that borrowed is suspended", lambda: suspended(product, "borrows"), timeout=60)
    wait_for("its pods are gone", lambda: not product.pods("app=borrows"), timeout=60)
    product.kubectl("delete", "job", "owns")
    product.running("app=borrows", 2)


@pytest.fixture
def urgent(product: Product) -> Iterator[Json]:
    """A Job of twelve units with a higher priority, for a queue that evicts for priority."""
    name = {"name": "urgent"}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": name, "value": 1000}
    product.apply(kind)
    found = job("urgent", "team", {names.GPU_MEM: 12})
    found["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    yield found
    product.kubectl("delete", "priorityclass", "urgent")


def preempted(product: Product) -> list[Json]:
    """Events of pods that kube-scheduler or gpushare evicted for others. Kueue's are about Workloads."""
    events: list[Json] = product.json("get", "events")["items"]
    return [one for one in events if one["reason"] == "Preempted" and one["involvedObject"]["kind"] == "Pod"]


def test_where_the_quota_is_full_kueue_evicts_and_gpushare_does_not(product: Product, urgent: Json) -> None:
    evicts = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    product.apply(flavor("cgpu", "cgpu"), *queue("team", {"cgpu": {names.GPU_MEM: 12}}, **evicts))
    product.apply(job("low", "team", {names.GPU_MEM: 6}, pods=2))
    product.running("app=low", 2)
    before = len(preempted(product))

    product.apply(urgent)
    product.running("app=urgent")

    assert suspended(product, "low")
    assert len(preempted(product)) == before
    product.kubectl("delete", "job", "urgent")
    product.running("app=low", 2)


def test_where_quotas_exceed_the_gpus_gpushare_evicts_once_and_the_job_waits(
    product: Product, urgent: Json
) -> None:
    evicts = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    product.apply(flavor("cgpu", "cgpu"), *queue("team", {"cgpu": {names.GPU_MEM: 24}}, **evicts))
    product.apply(job("low", "team", {names.GPU_MEM: 6}, pods=2))
    victims = {pod["metadata"]["name"] for pod in product.running("app=low", 2)}
    before = len(preempted(product))

    product.apply(urgent)
    product.running("app=urgent")

    def again() -> bool:
        pods = [pod for pod in product.pods("app=low") if pod["metadata"]["name"] not in victims]
        return len(pods) == 2 and not any(pod["spec"].get("nodeName") for pod in pods)

    wait_for("the Job has two pods again, which are pending", again, timeout=60)
    assert not suspended(product, "low"), "Kueue has quota for both"
    wait_for("both evictions are reported", lambda: len(preempted(product)) >= before + 2, timeout=30)
    assert len(preempted(product)) == before + 2
    product.kubectl("delete", "job", "urgent")
    product.running("app=low", 2)


def test_a_job_starts_with_fewer_pods_where_it_may(product: Product) -> None:
    product.apply(flavor("cgpu", "cgpu"), *queue("team", {"cgpu": {names.GPU_MEM: 6}}))
    product.apply(job("partly", "team", {names.GPU_MEM: 3}, pods=4, min_parallelism="2"))

    product.running("app=partly", 2)
    assert len(product.pods("app=partly")) == 2


def test_memory_in_bytes_is_counted_as_it_is_written(product: Product) -> None:
    product.apply(flavor("cgpu", "cgpu"), *queue("team", {"cgpu": {names.GPU_MEMORY: "8Gi"}}))
    product.apply(job("fits", "team", {names.GPU_MEMORY: "6Gi"}))
    product.running("app=fits")
    product.apply(job("waits", "team", {names.GPU_MEMORY: "3Gi"}))

    assert "insufficient unused quota for gpushare.dev/gpu-memory" in waits(product, "waits")


def test_a_plain_pods_bytes_are_counted_as_the_units_that_admission_made_of_them(product: Product) -> None:
    product.apply(flavor("cgpu", "cgpu"), *queue("team", {"cgpu": {names.GPU_MEM: 8}}))
    template = job("pod", "team", {names.GPU_MEMORY: "6Gi"})["spec"]["template"]
    for name in ("first", "second"):
        metadata = {"name": name, "namespace": "default", "labels": {QUEUE: "team", "app": name}}
        product.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        if name == "first":
            product.running("app=first")

    assert "insufficient unused quota for aliyun.com/gpu-mem" in refusal(product, "second")


def test_what_the_page_shows(product: Product, engines_cluster: Cluster, tmp_path: Path) -> None:
    pages = Pages(product, tmp_path, engines_cluster.state, "core-mem-v100x4")
    pages.type("kueue")


def test_its_own_example_runs_with_the_resource_renamed(product: Product, engines_cluster: Cluster) -> None:
    """The Job of the example requests no GPU; here each pod requests one unit."""
    load_stand_in(engines_cluster, "gcr.io/google-containers/busybox:latest")
    files = ("00-resource-flavor", "01-cluster-queues", "01.5-cohorts", "02-local-queues")
    files += ("07-workload-priority-classes", "05-cancer-cure-research")
    folder = "cmd/kueueviz/examples"
    read = [one for path in files for one in example(KUEUE.manager, KUEUE.module, f"{folder}/{path}.yaml")]
    for group in (g for one in read for g in one.get("spec", {}).get("resourceGroups", ())):
        group["coveredResources"] = [_renamed(name) for name in group["coveredResources"]]
        for resource in (each for one in group["flavors"] for each in one["resources"]):
            resource["name"] = _renamed(resource["name"])
    research = read[-1]
    (container,) = research["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {names.GPU_MEM: 1}}
    product.kubectl("label", "node", "cgpu-t4", "instance-type=gpu")
    try:
        product.apply(*read)
        for pod in product.running("job-name=cancer-research", 3):
            assert pod["spec"]["nodeName"] == "cgpu-t4"
            visible = product.environment(pod["metadata"]["name"])[names.ENV_VISIBLE_DEVICES]
            assert visible.startswith("GPU-")
    finally:
        product.kubectl("label", "node", "cgpu-t4", "instance-type-")
        product.kubectl("delete", "jobs", "--all", "--timeout=60s")
        product.kubectl("delete", "cohorts.kueue.x-k8s.io,workloadpriorityclasses", "--all", "--timeout=60s")


def _renamed(resource: str) -> str:
    return names.GPU_MEM if resource == "gpu" else resource


def test_units_count_as_bytes_by_the_pages_transformation(product: Product) -> None:
    (configuration,) = re.findall(r"```yaml\n(resources:.*?)```", PAGE.read_text(), re.DOTALL)
    configure(product, yaml.safe_load(configuration))
    product.apply(flavor("cgpu", "cgpu"), *queue("team", {"cgpu": {names.GPU_MEMORY: "8Gi"}}))
    product.apply(job("units", "team", {names.GPU_MEM: 6}))
    product.running("app=units")
    product.apply(job("bytes", "team", {names.GPU_MEMORY: "3Gi"}))

    assert "insufficient unused quota for gpushare.dev/gpu-memory" in waits(product, "bytes")
