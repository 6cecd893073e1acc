"""ResourcePolicies through the whole playground: pods fill units in order, and leave them in reverse."""

import json

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import Json, is_finished, is_running, node_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Each with 8 CPUs; one with several GPUs, one labelled as virtual.
NODES = (
    shared_node("wide", "core-mem-4", "share", ("paidtype", "reserved")),
    shared_node("first", "t4", "share", ("paidtype", "subscription")),
    shared_node("second", "t4", "share", ("paidtype", "pay-as-you-go")),
    shared_node("cloud", "t4", "share", ("type", "virtual-kubelet")),
)
POLICIES = f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/namespaces/default/{names.POLICY_PLURAL}"
TAINT = "virtual-kubelet.io/provider"
DOCUMENTED = [
    {"resource": "ecs", "nodeSelector": {"paidtype": "subscription"}},
    {"resource": "ecs", "nodeSelector": {"paidtype": "pay-as-you-go"}},
    {"resource": "eci"},
]


def policy(name: str, *units: Json, **spec: object) -> Json:
    meta = {"name": name, "namespace": "default"}
    kind = {"apiVersion": f"{names.POLICY_GROUP}/{names.POLICY_VERSION}", "kind": "ResourcePolicy"}
    return {**kind, "metadata": meta, "spec": {"selector": {"app": name}, "units": list(units), **spec}}


def deployment(name: str, replicas: int) -> Json:
    """Pods without a GPU, of which two fit on a node."""
    spec = gpu_pod("any", None, limits={"cpu": "4"})["spec"]
    spec |= {
        "restartPolicy": "Always",
        "schedulerName": names.SCHEDULER_NAME,
        "tolerations": [{"key": TAINT, "operator": "Exists"}],
    }
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def plain_pod(name: str, app: str, **more: object) -> Json:
    """A pod without a GPU that our scheduler places."""
    made = gpu_pod(name, None, labels={"app": app})
    made["spec"] |= {"schedulerName": names.SCHEDULER_NAME, **more}
    return made


def pods_by_node(cluster: World, app: str) -> dict[str, int]:
    """How many pods of the app run on each node, without terminating ones."""
    found: dict[str, int] = {}
    for pod in cluster.pods.items.values():
        meta = pod["metadata"]
        if meta.get("labels", {}).get("app") == app and is_running(pod) and "deletionTimestamp" not in meta:
            found[node_of(pod)] = found.get(node_of(pod), 0) + 1
    return found


def alive(cluster: World, app: str) -> int:
    """How many pods of the app exist, in whatever state."""
    return sum(
        pod["metadata"].get("labels", {}).get("app") == app and not is_finished(pod)
        for pod in cluster.pods.items.values()
    )


async def are_on(cluster: World, app: str, **nodes: int) -> None:
    """Wait until that many pods of the app run on these nodes, and there are no others."""
    await cluster.pods.until(
        lambda: pods_by_node(cluster, app) == nodes and alive(cluster, app) == sum(nodes.values()),
        f"pods of {app} are {nodes}",
        detail=lambda: {key: (node_of(pod), waits_because(pod)) for key, pod in cluster.pods.items.items()},
    )


async def status_says(cluster: World, name: str, summary: str) -> None:
    """Wait until the policy's status has these counts."""

    async def reached() -> bool:
        raw = await cluster.session.request("GET", f"{POLICIES}/{name}")
        return bool((json.loads(raw).get("status") or {}).get("summary") == summary)

    await until(reached, f"status of {name} says {summary}")


async def put(cluster: World, item: Json) -> None:
    """Apply; of a policy, also wait until the scheduler applies it: it sees pods by another watch."""
    ran = await cluster.apply(item)
    assert ran.code == 0, ran.text
    if item["kind"] == "ResourcePolicy":
        await in_force(cluster, item["metadata"]["name"])


async def in_force(cluster: World, name: str) -> None:
    """Wait until the scheduler has read the policy, and the pods of its namespace: then it writes its status."""

    async def read() -> bool:
        return "status" in json.loads(await cluster.session.request("GET", f"{POLICIES}/{name}"))

    await until(read, f"the scheduler has read policy {name}")


async def drop(cluster: World, name: str) -> None:
    """Delete the deployment and the policy of that name, with all pods."""
    for kind in ("deployment", "resourcepolicy"):
        ran = await cluster.kubectl("delete", kind, name, "--ignore-not-found", "--wait=false")
        assert ran.code == 0, ran.text
    await cluster.delete_all()


async def test_the_documented_deployment_grows_to_6_and_shrinks_to_2_over_its_three_units(
    cluster: World,
) -> None:
    ran = await cluster.kubectl("taint", "node", "cloud", f"{TAINT}=any:NoSchedule", "--overwrite")
    assert ran.code == 0, ran.text
    await put(cluster, policy("nginx", *DOCUMENTED))
    await put(cluster, deployment("nginx", 2))
    await are_on(cluster, "nginx", first=2)
    await cluster.kubectl("scale", "deployment/nginx", "--replicas=4")
    await are_on(cluster, "nginx", first=2, second=2)
    # The state that the next steps need is only at the API server.
    cluster.playground.kill("extender")
    await cluster.kubectl("scale", "deployment/nginx", "--replicas=6")
    await are_on(cluster, "nginx", first=2, second=2, cloud=2)
    await status_says(cluster, "nginx", "2, 2, 2")
    table = await cluster.kubectl("get", "resourcepolicy", "nginx")
    assert "2, 2, 2" in table.out, table.text
    await cluster.kubectl("scale", "deployment/nginx", "--replicas=4")
    await are_on(cluster, "nginx", first=2, second=2)
    cluster.playground.kill("extender")
    await cluster.kubectl("scale", "deployment/nginx", "--replicas=2")
    await are_on(cluster, "nginx", first=2)
    await status_says(cluster, "nginx", "2, 0, 0")
    await cluster.kubectl("taint", "node", "cloud", f"{TAINT}-")
    await drop(cluster, "nginx")


async def test_a_max_is_never_exceeded_by_pods_with_and_without_gpus_while_the_extender_is_killed(
    cluster: World,
) -> None:
    units = [{**DOCUMENTED[0], "max": 3}, {**DOCUMENTED[1], "max": 4}, {"resource": "eci"}]
    await put(cluster, policy("many", *units))
    plain = [plain_pod(f"plain-{number}", "many") for number in range(6)]
    with_gpu = [gpu_pod(f"gpu-{number}", 1, labels={"app": "many"}) for number in range(6)]
    await cluster.create(*plain[:3], *with_gpu[:3])
    cluster.playground.kill("extender")
    await cluster.create(*plain[3:], *with_gpu[3:])
    # No pod is evicted, so there were never more than in the end.
    await are_on(cluster, "many", first=3, second=4, cloud=5)
    await status_says(cluster, "many", "3/3, 4/4, 5")
    await drop(cluster, "many")


async def test_a_pod_waits_for_its_unit_for_the_policys_time_whatever_others_request(
    cluster: World,
) -> None:
    # No node is in the first unit.
    units = [{"nodeSelector": {"paidtype": "none-yet"}, "max": 5}, DOCUMENTED[1]]
    wait = {"policy": "TimeoutOrExceedMax", "timeout": "6s"}
    await put(cluster, policy("patient", *units, whenTryNextUnits=wait))
    await cluster.create(plain_pod("waiter", "patient"))
    await cluster.pods.until(
        lambda: "unit 1 comes before it" in waits_because(cluster.pod("waiter")),
        "the pod waits",
        detail=lambda: waits_because(cluster.pod("waiter")),
    )
    cluster.playground.kill("extender")
    await are_on(cluster, "patient", second=1)
    since, bound = (
        next(
            one["lastTransitionTime"]
            for one in cluster.pod("waiter")["status"]["conditions"]
            if one["type"] == kind
        )
        for kind in ("PodScheduled", "Ready")
    )
    assert since <= bound
    await drop(cluster, "patient")


async def test_a_tenants_policy_records_nothing_on_a_pod(cluster: World) -> None:
    """A real API server refuses such a policy; where it is stored, the scheduler ignores it."""
    (device,) = json.loads(cluster.nodes.items["first"]["metadata"]["annotations"][names.ANN_DEVICES])["gpus"]
    whole = {"uuid": device["uuid"], "index": 0, "mib": 15360, "units": 15, "of": 15, "core": 100}
    record = {"version": 1, "unit": "1GiB", "gpus": [whole], "containers": {}}
    made = policy("squat", {"resource": "ecs", "podAnnotations": {names.ANN_SHARE: json.dumps(record)}})
    applied = await cluster.apply(made)
    if applied.code:
        assert "a key in which gpushare records allocations" in applied.err
        return
    try:
        await cluster.create(plain_pod("squatter", "squat", nodeSelector={"kubernetes.io/hostname": "first"}))
        await cluster.run_all("squatter")
        assert names.ANN_SHARE not in cluster.pod("squatter")["metadata"].get("annotations", {})
        await cluster.create(gpu_pod("all-of-it", 15, node="first"))
        await cluster.run_all("all-of-it")
    finally:
        await cluster.kubectl("delete", "resourcepolicy", "squat")
