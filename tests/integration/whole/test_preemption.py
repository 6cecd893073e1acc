"""A more important pod preempts on one GPU, by us or by kube-scheduler, and no pod is evicted needlessly."""

import asyncio
import json

import pytest

from gpushare_playground.cluster.embedded import EmbeddedControl
from tests.integration.whole.seen import Json, is_running, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 15 GiB on each of four GPUs, and 16 on one.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))


async def classes(seen: World) -> None:
    for name, value, policy in (
        ("low", 10, "PreemptLowerPriority"),
        ("high", 1000, "PreemptLowerPriority"),
        ("polite", 2000, "Never"),
    ):
        await seen.apply(
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


async def test_one_pod_ends_where_the_sum_would_do_and_no_gpu_does(seen: World) -> None:
    await classes(seen)
    low = [f"low-{number}" for number in range(4)]
    await seen.create(*(pod(name, 11, "low", "four") for name in low))
    await seen.run_all(*low)
    await seen.create(pod("high", 8, "high", "four"))
    await seen.run_all("high")
    assert sum(is_running(seen.pod(name)) for name in low) == 3
    (ended,) = {f"default/{name}" for name in low} - seen.pods.items.keys()
    await seen.event(ended.partition("/")[2], "Preempted", "ended for pod default/high (priority 1000)")

    high = await seen.kubectl("inspect", "cgpu", "--why", "high", "-o", "json")
    gone = await seen.kubectl("inspect", "cgpu", "--why", ended)
    assert (gone.code, "is gone: Preempted: ended for pod default/high (priority 1000)" in gone.err) == (
        1,
        True,
    )
    if isinstance(seen.cluster.control, EmbeddedControl):
        preemption = json.loads(high.out)["record"]["preemption"]
        (room,) = preemption["room"]
        assert (preemption["by"], preemption["said"], room["node"]) == ("gpushare", "", "four")
        assert [(one["pod"], one["priority"]) for one in room["victims"]] == [(ended, 10)]


async def test_a_budget_protects_its_pods_and_is_named_in_the_reason(seen: World) -> None:
    await classes(seen)
    await seen.create(*(pod(f"low-{number}", 11, "low", "four", app="kept") for number in range(4)))
    await seen.run_all(*(f"low-{number}" for number in range(4)))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "kept"}}},
    }
    assert (await seen.apply(budget)).code == 0
    await seen.create(pod("high", 8, "high", "four"))
    await seen.event("high", "PreemptionRefused", "PodDisruptionBudget protects")
    if isinstance(seen.cluster.control, EmbeddedControl):
        text = (await seen.kubectl("inspect", "cgpu", "--why", "high")).out
        assert "no victims at" in text
        assert "that a PodDisruptionBudget protects now: default/low-0, default/low-1" in text
    assert all(is_running(seen.pod(f"low-{number}")) for number in range(4))
    await seen.kubectl("delete", "pdb", "kept")
    # The first pod that ends by itself makes the room.
    await seen.delete("low-0")
    await seen.run_all("high")


async def test_what_kube_schedulers_victims_leave_goes_to_the_pod_that_it_has_nominated(seen: World) -> None:
    """The node's processors are short: kube-scheduler ends pods by itself, one of which takes its time to go."""
    await classes(seen)
    cpu = int(seen.allocatable("single", "cpu"))
    grace_s = {"quick": 1, "slow": 4}
    for name in grace_s:
        low = pod(name, 8, "low", "single")
        low["spec"]["terminationGracePeriodSeconds"] = grace_s[name]
        [container] = low["spec"]["containers"]
        container["command"] = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
        container["resources"]["requests"] = {"cpu": f"{500 * cpu - 100}m"}
        await seen.create(low)
    await seen.run_all(*grace_s)
    high = pod("high", 16, "high", "single")
    high["spec"]["containers"][0]["resources"]["requests"] = {"cpu": f"{1000 * cpu - 200}m"}
    await seen.create(high)
    await seen.pods.until(lambda: "Insufficient cpu" in waits_because(seen.pod("high")), "it waits")
    if isinstance(seen.cluster.control, EmbeddedControl):
        # The playground's kube-scheduler does not preempt: what the real one writes.
        named = json.dumps({"status": {"nominatedNodeName": "single"}})
        patched = await seen.kubectl(
            "patch", "pod", "high", "--subresource=status", "--type=merge", "-p", named
        )
        assert patched.code == 0, patched.text
        await asyncio.gather(*(seen.delete(name, grace_s=left_s) for name, left_s in grace_s.items()))
    await seen.pods.until(lambda: "default/quick" not in seen.pods.items, "the first has ended")
    # One that asks for no processors, and is as important as those that end, would fit where the first of them was.
    await seen.create(pod("thief", 8, "low", "single"))
    await seen.run_all("high")
    await seen.pods.until(lambda: waits_because(seen.pod("thief")), "no second eviction was needed")
