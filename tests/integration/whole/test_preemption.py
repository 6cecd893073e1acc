"""A higher-priority pod preempts on one GPU, by us or by kube-scheduler, and no pod is evicted needlessly."""

import asyncio
import json

import pytest

from gpushare_playground.cluster.embedded import EmbeddedControl
from tests.integration.whole.cluster import Json, is_running, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 15 GiB on each of four GPUs, and 16 on one.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))


async def classes(cluster: World) -> None:
    for name, value, policy in (
        ("low", 10, "PreemptLowerPriority"),
        ("high", 1000, "PreemptLowerPriority"),
        ("polite", 2000, "Never"),
    ):
        await cluster.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "preemptionPolicy": policy,
            }
        )


def pod(name: str, units: int, important: str, node: str, **labels: str) -> Json:
    made = gpu_pod(name, units, node=node, labels=labels)
    made["spec"]["priorityClassName"] = important
    return made


async def test_one_pod_is_evicted_where_the_sum_suffices_but_no_single_gpu(cluster: World) -> None:
    await classes(cluster)
    low = [f"low-{number}" for number in range(4)]
    await cluster.create(*(pod(name, 11, "low", "four") for name in low))
    await cluster.run_all(*low)
    await cluster.create(pod("high", 8, "high", "four"))
    await cluster.run_all("high")
    assert sum(is_running(cluster.pod(name)) for name in low) == 3
    (victim,) = {f"default/{name}" for name in low} - cluster.pods.items.keys()
    await cluster.event(victim.partition("/")[2], "Preempted", "ended for pod default/high (priority 1000)")

    high = await cluster.kubectl("inspect", "cgpu", "--why", "high", "-o", "json")
    gone = await cluster.kubectl("inspect", "cgpu", "--why", victim)
    assert (gone.code, "is gone: Preempted: ended for pod default/high (priority 1000)" in gone.err) == (
        1,
        True,
    )
    if isinstance(cluster.playground.control, EmbeddedControl):
        preemption = json.loads(high.out)["record"]["preemption"]
        (room,) = preemption["room"]
        assert (preemption["by"], preemption["said"], room["node"]) == ("gpushare", "", "four")
        assert [(one["pod"], one["priority"]) for one in room["victims"]] == [(victim, 10)]


async def test_a_budget_protects_its_pods_and_is_reported_in_the_reason(cluster: World) -> None:
    await classes(cluster)
    await cluster.create(*(pod(f"low-{number}", 11, "low", "four", app="kept") for number in range(4)))
    await cluster.run_all(*(f"low-{number}" for number in range(4)))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "kept"}}},
    }
    assert (await cluster.apply(budget)).code == 0
    await cluster.create(pod("high", 8, "high", "four"))
    await cluster.event("high", "PreemptionRefused", "PodDisruptionBudget protects")
    if isinstance(cluster.playground.control, EmbeddedControl):
        text = (await cluster.kubectl("inspect", "cgpu", "--why", "high")).out
        assert "no victims at" in text
        assert "that a PodDisruptionBudget protects now: default/low-0, default/low-1" in text
    assert all(is_running(cluster.pod(f"low-{number}")) for number in range(4))
    await cluster.kubectl("delete", "pdb", "kept")
    # The first pod that ends by itself makes room.
    await cluster.delete("low-0")
    await cluster.run_all("high")


async def test_memory_freed_by_kube_schedulers_victims_goes_to_the_nominated_pod(
    cluster: World,
) -> None:
    """The node's CPUs are short: kube-scheduler evicts pods by itself, one of which takes time to terminate."""
    await classes(cluster)
    cpu = int(cluster.allocatable("single", "cpu"))
    grace_s = {"quick": 1, "slow": 4}
    for name in grace_s:
        low = pod(name, 8, "low", "single")
        low["spec"]["terminationGracePeriodSeconds"] = grace_s[name]
        [container] = low["spec"]["containers"]
        container["command"] = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
        container["resources"]["requests"] = {"cpu": f"{500 * cpu - 100}m"}
        await cluster.create(low)
    await cluster.run_all(*grace_s)
    high = pod("high", 16, "high", "single")
    high["spec"]["containers"][0]["resources"]["requests"] = {"cpu": f"{1000 * cpu - 200}m"}
    await cluster.create(high)
    await cluster.pods.until(lambda: "Insufficient cpu" in waits_because(cluster.pod("high")), "it waits")
    if isinstance(cluster.playground.control, EmbeddedControl):
        # The playground's kube-scheduler does not preempt: what the real one writes.
        nomination = json.dumps({"status": {"nominatedNodeName": "single"}})
        patched = await cluster.kubectl(
            "patch", "pod", "high", "--subresource=status", "--type=merge", "-p", nomination
        )
        assert patched.code == 0, patched.text
        await asyncio.gather(*(cluster.delete(name, grace_s=left_s) for name, left_s in grace_s.items()))
    await cluster.pods.until(lambda: "default/quick" not in cluster.pods.items, "the first has ended")
    # One that requests no CPU, and has the priority of the evicted ones, would fit where the first of them was.
    await cluster.create(pod("thief", 8, "low", "single"))
    await cluster.run_all("high")
    await cluster.pods.until(lambda: waits_because(cluster.pod("thief")), "no second eviction was needed")
