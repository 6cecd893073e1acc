"""The result of ``gpushare simulate`` for a manifest is what happens when it is applied."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.simulate.snapshot import workload_of
from tests.integration.whole.cluster import Json, is_running, node_of, record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, run, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (
    shared_node("four", "core-mem-4", "core_mem"),
    shared_node("single", "v100-16384"),
    shared_node("eight", "two-islands", "topology"),
)
SIMULATE = (sys.executable, "-m", "gpushare", "simulate")


def workload(kind: str, name: str, replicas: int, mem: int | None, **labels: str) -> Json:
    labels = {"app": name, **labels}
    made = gpu_pod("x", mem, limits={names.GPU_WHOLE: 2} if mem is None else None, labels=labels)
    template: Json = {"metadata": {"labels": labels}, "spec": made["spec"]}
    spec: Json = {"template": template}
    if kind == "Job":
        spec |= {"parallelism": replicas, "completions": replicas}
    else:
        template["spec"]["restartPolicy"] = "Always"
        spec |= {"replicas": replicas, "selector": {"matchLabels": {"app": name}}}
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


MANIFESTS = (
    workload("Deployment", "web", 4, 3),
    workload("StatefulSet", "set", 1, 15),
    workload("Job", "gang", 2, 14, **{names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}),
    workload("Deployment", "whole", 2, None),
    gpu_pod("core", 2, limits={names.GPU_CORE: 30}),
    gpu_pod("big", 16),
)


async def simulated(cluster: World, *options: str, stdin: str = "", code: int = 0) -> Json:
    kubeconfig = {"KUBECONFIG": str(cluster.playground.kubeconfig)}
    ran = await run(*SIMULATE, "-o", "json", *options, env=kubeconfig, stdin=stdin)
    assert ran.code == code, ran.text
    return dict(json.loads(ran.out))


def landed(cluster: World) -> Counter[tuple[str, str, tuple[int, ...]]]:
    """Each pod's owner, its node and its GPUs' indices."""
    return Counter(
        (
            workload_of(pod).partition("/")[2],
            node_of(pod),
            tuple(sorted(share["index"] for share in record_of(pod))),
        )
        for pod in cluster.pods.items.values()
        if node_of(pod)
    )


async def test_the_simulation_equals_what_happens(cluster: World, tmp_path: Path) -> None:
    await cluster.create(gpu_pod("there", 8, node="single"))
    await cluster.run_all("there")
    there = landed(cluster)
    text = json.dumps({"kind": "List", "items": list(MANIFESTS)})
    snapshot = tmp_path / "cluster.json"
    document = await simulated(cluster, "-f", "-", "--save", str(snapshot), "--min-nodes", stdin=text, code=3)
    expected = Counter(
        (one["workload"], one["node"], tuple(gpu["index"] for gpu in one["gpus"]))
        for one in document["pods"]
        if one["node"]
    )
    waits = {one["name"]: one["why"] for one in document["pods"] if not one["node"]}
    assert set(waits) == {"core", "big"}
    # It has only been read: nothing was created.
    assert landed(cluster) == there

    # Controllers work concurrently, and the order matters: one after the other, as they were read.
    for manifest in MANIFESTS:
        made = f"{manifest['kind']} {manifest['metadata']['name']}"
        applied = await cluster.apply(manifest)
        assert applied.code == 0, applied.err
        wanted = sum(count for (what, _, _), count in expected.items() if what == made)

        def running(made: str = made) -> int:
            listed = (pod for pod in cluster.pods.items.values() if is_running(pod))
            return sum(workload_of(pod).endswith(f"/{made}") for pod in listed)

        await cluster.pods.until(
            lambda running=running, wanted=wanted: running() == wanted,
            f"{wanted} of {made} run",
            detail=lambda: {
                key: (node_of(pod), waits_because(pod)) for key, pod in cluster.pods.items.items()
            },
        )
    for name, why in waits.items():

        def waiting(name: str = name) -> str:
            return waits_because(cluster.pod(name))

        await cluster.pods.until(waiting, f"{name} waits", detail=lambda: str(cluster.pods.items))
        assert waiting().startswith(why.rstrip("."))
    await cluster.settled()
    assert landed(cluster) - there == expected

    # A snapshot saved before gives the same result afterwards; and pods pending now are pending in a new
    # reading too.
    again = await simulated(cluster, "--snapshot", str(snapshot), "-f", "-", stdin=text, code=3)
    assert again["pods"] == document["pods"]
    now = await simulated(cluster, code=3)
    assert {one["name"]: one["node"] for one in now["pods"]} == {"core": None, "big": None}

    # Workloads that are applied again have all their pods, and these are as their templates have them.
    made = [one for one in MANIFESTS if one["kind"] != "Pod"]
    repeated = await simulated(cluster, "-f", "-", stdin=json.dumps({"kind": "List", "items": made}), code=3)
    assert not [one for one in repeated["pods"] if one["new"]]
    assert [(one["pods"], one["coming"], one["differs"]) for one in repeated["existing"]] == [
        (4, 0, []),
        (1, 0, []),
        (2, 0, []),
        (2, 0, []),
    ]

    # The reported number of additional nodes lets all in, and fewer do not.
    (least,) = (one for one in document["minNodes"] if one["shape"] == "like single")
    # With that many the pods with memory alone leave the node that offers compute to the one that requests it.
    assert (least["moreNodes"], least["stillPending"]) == (5, [])
    for kind in ("deployments", "statefulsets", "jobs"):
        assert (await cluster.kubectl("delete", kind, "--all")).code == 0


async def test_simulated_victims_are_evicted(cluster: World) -> None:
    important = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    low, urgent = workload("Deployment", "low", 1, 9), gpu_pod("urgent", 10)
    for one in (low["spec"]["template"]["spec"], urgent["spec"]):
        one["nodeSelector"] = {"kubernetes.io/hostname": "single"}
    urgent["spec"]["priorityClassName"] = "urgent"
    for manifest in (important, low):
        applied = await cluster.apply(manifest)
        assert applied.code == 0, applied.err

    def lows() -> set[str]:
        return {key for key, pod in cluster.pods.items.items() if "/low-" in key and is_running(pod)}

    await cluster.pods.until(lambda: len(lows()) == 1, "low runs", detail=lambda: str(cluster.pods.items))
    before = lows()
    text = json.dumps(urgent)
    without = await simulated(cluster, "--no-preemption", "-f", "-", stdin=text, code=3)
    assert {one["name"]: one["node"] for one in without["pods"]} == {"urgent": None}
    document = await simulated(cluster, "-f", "-", stdin=text, code=3)
    (eviction,) = document["evictions"]
    assert {eviction["pod"]} == before
    assert (eviction["node"], eviction["for"]) == ("single", "default/urgent")
    assert lows() == before
    assert (await cluster.apply(urgent)).code == 0
    await cluster.run_all("urgent")
    assert not lows()
    assert node_of(cluster.pod("urgent")) == "single"
    assert (await cluster.kubectl("delete", "deployments", "--all")).code == 0
