"""Pods of several GPUs, and several pods that run together, on the real cluster."""

import json

from gpushare.api import names
from gpushare_playground import gpus
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod
from tests.e2e.product.stream import disagreements

NODE = "core-mem-v100x4"
UUIDS = [gpu.uuid for gpu in gpus.preset("core-mem-4", NODE).gpus]


def members(name: str, count: int, mem: int) -> list[dict[str, object]]:
    labels = {"app": name, names.LABEL_GANG_NAME: name, names.LABEL_GANG_LEAST: str(count)}
    return [gpu_pod(f"{name}-{number}", mem, labels=labels, node=NODE) for number in range(count)]


def test_a_pod_gets_an_equal_part_of_each_of_several_gpus(product: Product) -> None:
    product.offers(NODE, gpu_mem=60, gpu_core=400)
    labels = {"app": "wide", names.LABEL_POD_GPU_COUNT: "2"}
    product.apply(gpu_pod("wide", 8, labels=labels, node=NODE))
    (pod,) = product.running("app=wide")
    shares = json.loads(pod["metadata"]["annotations"][names.ANN_SHARE])["gpus"]
    assert [share["units"] for share in shares] == [4, 4]
    environment = product.environment("wide")
    visible = environment[names.ENV_VISIBLE_DEVICES].split(",")
    assert {UUIDS.index(one) for one in visible} == {share["index"] for share in shares}
    assert (environment[names.ENV_MEM_CONTAINER], environment[names.ENV_MEM_DEVICE]) == ("4", "15")
    assert sorted(cell for cell in product.row(NODE) if cell.endswith("/15")) == [
        "0/15",
        "0/15",
        "4/15",
        "4/15",
    ]
    ran = product.run("kubectl", "apply", "-f", "-", stdin=json.dumps(gpu_pod("odd", 7, labels=labels)))
    assert ran.code == 1, "7 units over 2 GPUs"
    assert names.LABEL_POD_GPU_COUNT in ran.text


def test_whole_gpus_are_exclusive_to_their_pod(cluster: Cluster, product: Product) -> None:
    """The kubelet counts the 8 and the 16 requested units: reserving the rest of the GPUs is up to us."""
    product.offers(NODE, gpu_mem=60, gpu_core=400)
    whole = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}
    product.apply(gpu_pod("beside", 3, labels={"app": "beside"}, node=NODE))
    product.running("app=beside")
    product.apply(gpu_pod("alone", 8, labels={"app": "alone", **whole}, node=NODE))
    (pod,) = product.running("app=alone")
    (share,) = json.loads(pod["metadata"]["annotations"][names.ANN_SHARE])["gpus"]
    environment = product.environment("alone")
    assert environment[names.ENV_VISIBLE_DEVICES] == share["uuid"]
    assert (environment[names.ENV_MEM_CONTAINER], environment[names.ENV_MEM_DEVICE]) == ("15", "15")
    assert environment[names.ENV_MEM_LIMIT] == "16160", "held to nothing less than the card"

    two = {"app": "two", names.LABEL_POD_GPU_COUNT: "2", **whole}
    product.apply(gpu_pod("two", 16, labels=two, node=NODE))
    product.running("app=two")
    assert sorted(cell for cell in product.row(NODE) if cell.endswith("/15")) == ["15/15"] * 3 + ["3/15"]
    product.apply(gpu_pod("after", 13, labels={"app": "after"}, node=NODE))
    wait_for(
        "an event says that its node has no room",
        lambda: any("FailedScheduling" in one and "GPU" in one for one in product.events("after")),
        timeout=60,
    )
    assert not product.node_of("after")
    product.kubectl("delete", "pod", "alone", "--grace-period=1")
    (after,) = product.running("app=after")
    (moved,) = json.loads(after["metadata"]["annotations"][names.ANN_SHARE])["gpus"]
    assert moved["uuid"] == share["uuid"]
    assert not disagreements(cluster)


def test_containers_with_a_gpu_each_see_their_own(cluster: Cluster, product: Product) -> None:
    product.offers(NODE, gpu_mem=60, gpu_core=400)
    pod = gpu_pod("apart", 10, 30, labels={"app": "apart", names.LABEL_POD_APART: "true"}, node=NODE)
    (main,) = pod["spec"]["containers"]
    pod["spec"]["containers"].append({**main, "name": "other"})
    product.apply(pod)
    (running,) = product.running("app=apart")
    shares = json.loads(running["metadata"]["annotations"][names.ANN_SHARE])["gpus"]
    assert [share["units"] for share in shares] == [10, 10]
    visible = set()
    for container in ("main", "other"):
        environment = product.environment("apart", container)
        assert (environment[names.ENV_MEM_CONTAINER], environment[names.ENV_MEM_DEVICE]) == ("10", "15")
        assert environment[names.ENV_MEM_POD] == "20"
        visible.add(environment[names.ENV_VISIBLE_DEVICES])
    assert visible == {share["uuid"] for share in shares}
    assert len(visible) == 2, "a GPU each"
    assert not disagreements(cluster)


def test_init_containers_and_a_sidecar_have_their_parts_of_the_pods_one_gpu(
    cluster: Cluster, product: Product, k8s: str
) -> None:
    """4 units before the others start, then 1 and 2 concurrently: Kubernetes counts 4.

    1.28 has no sidecars yet: there it is only the init container and the main one.
    """
    sidecars = k8s != "1.28"
    product.offers(NODE, gpu_mem=60)
    pod = gpu_pod("pipeline", 2, labels={"app": "pipeline"}, node=NODE)
    (main,) = pod["spec"]["containers"]
    prepare = {**main, "name": "prepare", "command": ["true"], "resources": {"limits": {names.GPU_MEM: 4}}}
    sidecar = {"name": "watch", "restartPolicy": "Always", "resources": {"limits": {names.GPU_MEM: 1}}}
    pod["spec"]["initContainers"] = [prepare, {**main, **sidecar}] if sidecars else [prepare]
    product.apply(pod)
    (running,) = product.running("app=pipeline")
    (share,) = json.loads(running["metadata"]["annotations"][names.ANN_SHARE])["gpus"]
    assert share["units"] == 4
    assert "4/60" in product.row(NODE)
    for container, units in (("watch", "1"), ("main", "2"))[not sidecars :]:
        environment = product.environment("pipeline", container)
        assert (environment[names.ENV_VISIBLE_DEVICES], environment[names.ENV_MEM_CONTAINER]) == (
            share["uuid"],
            units,
        )
    assert not disagreements(cluster)


def test_a_gang_runs_whole_or_not_at_all(product: Product) -> None:
    product.offers(NODE, gpu_mem=60, gpu_core=400)
    product.apply(gpu_pod("before", 15, labels={"app": "before"}, node=NODE))
    product.running("app=before")
    product.apply(*members("together", 4, 15))
    for number in range(4):
        wait_for(
            "each says what its gang lacks",
            lambda pod=f"together-{number}": any(
                "gang default/together" in one for one in product.events(pod)
            ),
            timeout=60,
        )
    assert not any(pod["spec"].get("nodeName") for pod in product.pods("app=together"))
    product.kubectl("delete", "pod", "before", "--grace-period=1")
    product.running("app=together", 4)
